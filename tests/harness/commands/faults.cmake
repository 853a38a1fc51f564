# SPDX-License-Identifier: MIT
# Tests of failures of the system: no memory, small stacks, full disks, killed processes. tests/CMakeLists.txt includes this.
add_executable(fault_memory harness/commands/fault_memory.c)
target_compile_definitions(fault_memory PRIVATE _GNU_SOURCE)
target_link_libraries(fault_memory PRIVATE attnbench_core attn_warnings)
foreach(function malloc calloc realloc aligned_alloc strdup free)
  target_link_options(fault_memory PRIVATE -Wl,--wrap=${function})
endforeach()
set(shared_library)
if(TARGET attn_shared)
  set(shared_library $<TARGET_FILE:attn_shared>)
endif()
set(fault_step 30)
if(ATTN_SANITIZE)
  set(fault_step 61) # other faults, as each takes several times as long
endif()
add_labelled(fault_memory "unit;sanitize;once" fault_memory ${fault_step} ${shared_library})
add_labelled(fault_memory_every "long" fault_memory 1 ${shared_library})

add_executable(fault_process harness/commands/fault_process.c)
target_link_libraries(fault_process PRIVATE test_all_kernels attn_static attn_warnings Threads::Threads ${CMAKE_DL_LIBS})
if(NOT ATTN_SANITIZE) # sanitizers have larger stack frames and keep the memory of a closed library
  add_labelled(fault_stacks "unit" fault_process stacks)
  add_labelled(fault_dlopen "unit" fault_process dlopen $<TARGET_FILE:attn_shared>)
endif()

add_python_test(faults harness/commands/test_faults.py $<TARGET_FILE:attnbench>)
add_python_test(faults_50_kills harness/commands/test_faults.py $<TARGET_FILE:attnbench> 50
                Faults.test_a_killed_run_loses_at_most_the_case_under_way)
add_python_test(shards harness/report/test_shards.py $<TARGET_FILE:attnbench>)
add_python_test(merging harness/report/test_merging.py $<TARGET_FILE:attnbench>)
add_python_test(shards_50_kills harness/report/test_shards.py $<TARGET_FILE:attnbench> 50
                Shards.test_a_killed_shard_loses_at_most_the_case_under_way)
set_tests_properties(faults_50_kills shards_50_kills PROPERTIES LABELS "long")

# Sanitizers have an operator new of their own.
if(TARGET attn_onednn_guard AND NOT ATTN_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  add_executable(fault_throws kernels/fault_throws.c)
  target_link_libraries(fault_throws PRIVATE attn_static attn_warnings ${CMAKE_DL_LIBS})
  set_target_properties(fault_throws PROPERTIES ENABLE_EXPORTS ON)
  add_labelled(fault_throws "unit" fault_throws $<TARGET_FILE:attn_onednn>)
endif()
