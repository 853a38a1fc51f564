# SPDX-License-Identifier: MIT
# Imitated machines: the tests that depend on the machine run again as if it had other CPUs, fewer CPUs, another topology, or
# libraries that choose other code. Each must pass or be skipped with a reason on all of them. The label is `feigned`;
# `scripts/test.sh --stage machines` runs them.

set(few_machine_cases "")
if(ATTN_TEST_CASES) # not with --long
  set(few_machine_cases ATTN_TEST_FEW=1)
endif()

# add_feigned(MACHINE "VARIABLE=VALUE;..." "command prefix" TEST...): each TEST again, named TEST@MACHINE.
function(add_feigned machine environment prefix)
  foreach(test IN LISTS ARGN)
    get_property(command GLOBAL PROPERTY command_of_${test})
    if(command)
      get_property(usual TEST ${test} PROPERTY ENVIRONMENT)
      add_labelled(${test}@${machine} "feigned" ${prefix} ${command})
      set_property(TEST ${test}@${machine} PROPERTY ENVIRONMENT ${usual} ${environment} ${few_machine_cases})
    endif()
  endforeach()
endfunction()

# Small selections of the suites for these machines; tiny ones for emulated CPUs.
function(add_small name)
  add_labelled(${name} "feigned" attnbench check --seed 5 ${ARGN})
endfunction()
add_small(small_edge --suite edge --cases 40)
add_small(tiny_edge --suite edge --cases 1)
add_small(long_edge --suite edge --cases 20) # only with --long
foreach(folder blas onednn)
  if(folder_kernels_${folder})
    list(JOIN folder_kernels_${folder} "," kernels)
    add_small(small_${folder} --cases 120 --suite conformance --kernel ${kernels})
  endif()
endforeach()

add_executable(feign harness/machine/feign.c)
target_link_libraries(feign PRIVATE attn_warnings)

# ---- The code that libraries choose, under every cap ----------------------------------------------------------------------
# The kernels of a library whose code is above the cap are refused with the reason, which its unit test checks.
foreach(core Prescott Haswell Zen SkylakeX)
  foreach(cap c avx2 avx512)
    add_feigned(${core}_${cap} "OPENBLAS_CORETYPE=${core};ATTN_MAX_ISA=${cap}" "" openblas product plan)
  endforeach()
  add_feigned(${core} "OPENBLAS_CORETYPE=${core};ATTN_MAX_ISA=avx512" "" small_blas)
endforeach()
# Where both libraries run code of tier c, their kernels are candidates beside those of plain C.
add_feigned(libraries_c "OPENBLAS_CORETYPE=Prescott;ONEDNN_MAX_CPU_ISA=SSE41;OMP_NUM_THREADS=4" ""
            choice flush paying_threads tune tuning)
foreach(isa SSE41 AVX2 AVX512_CORE)
  foreach(cap c avx2 avx512)
    add_feigned(${isa}_${cap} "ONEDNN_MAX_CPU_ISA=${isa};ATTN_MAX_ISA=${cap}" "" onednn)
  endforeach()
  add_feigned(${isa} "ONEDNN_MAX_CPU_ISA=${isa}" "" small_onednn)
endforeach()

# ---- Fewer CPUs and threads, other topologies, no permission for tiles -------------------------------------------------
set(unit_of_machine affinity args choice flush goals layer merge mha nn_layers nonfinite onednn openblas plan process
                    product score_steps)
add_feigned(one_cpu "" "$<TARGET_FILE:feign>;--one-cpu" ${unit_of_machine} bits cpus small_edge)
if(Python3_FOUND) # without the tests of plain commands, unless --long
  set(few_of_cli "")
  if(ATTN_TEST_CASES)
    set(few_of_cli -k Files -k Layers -k Resuming -k environment -k openmp)
  endif()
  add_labelled(cli@one_cpu "feigned" $<TARGET_FILE:feign> --one-cpu ${Python3_EXECUTABLE}
               ${CMAKE_CURRENT_SOURCE_DIR}/harness/commands/test_cli.py $<TARGET_FILE:attnbench> ${few_of_cli})
endif()
add_feigned(crowded "OMP_NUM_THREADS=7" "$<TARGET_FILE:feign>;--one-cpu" ${unit_of_machine})
add_feigned(one_thread "OMP_THREAD_LIMIT=1;OMP_DYNAMIC=true" "" ${unit_of_machine})
add_feigned(two_sockets "HWLOC_SYNTHETIC=pack:2 numa:1 core:8 pu:2" "" affinity plan cpus)
add_feigned(one_pu "HWLOC_SYNTHETIC=core:1 pu:1" "" affinity plan cpus)
add_feigned(another_machine "HWLOC_XMLFILE=${CMAKE_CURRENT_SOURCE_DIR}/data/hwloc/two_cores.xml" "" affinity plan cpus)
add_feigned(no_tiles "" "$<TARGET_FILE:feign>;--no-tiles" ${unit_of_machine} bits tier_avx512 tier_amx small_edge)

# ---- Other CPUs, emulated by qemu-user: without AVX, and without AVX-512 -----------------------------------------------
find_program(ATTN_QEMU_X86_64 qemu-x86_64 DOC "qemu-user for x86-64: other CPU models, in the tests")
foreach(model Nehalem Haswell)
  if(NOT ATTN_QEMU_X86_64)
    add_skipped(plan@qemu_${model} "feigned" "no qemu-x86_64 (Debian: apt-get install qemu-user)")
    continue()
  endif()
  set(qemu ${ATTN_QEMU_X86_64} -cpu ${model})
  add_feigned(qemu_${model} "" "${qemu}" plan choice choice_amd-zen4 score_steps merge nonfinite onednn args
              tier_avx512 tiny_edge long_edge)
  set_tests_properties(long_edge@qemu_${model} PROPERTIES LABELS "feigned;long")
  if(model STREQUAL "Haswell") # a quarter of a minute for kernels that the test without an emulator runs too
    set_tests_properties(nonfinite@qemu_${model} PROPERTIES LABELS "feigned;long")
  endif()
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${model}/attnbench
       CONTENT "#!/bin/sh\nexec ${ATTN_QEMU_X86_64} -cpu ${model} $<TARGET_FILE:attnbench> \"$@\"\n"
       FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  if(Python3_FOUND)
    add_labelled(cli@qemu_${model} "feigned" ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/harness/commands/test_cli.py
                 ${CMAKE_CURRENT_BINARY_DIR}/${model}/attnbench -k openblas -k skip_has)
  endif()
  add_feigned(qemu_${model}_SkylakeX "OPENBLAS_CORETYPE=SkylakeX" "${qemu}" openblas) # refused: this CPU cannot run the code
endforeach()
