# SPDX-License-Identifier: MIT
# Tests of libattn_mpi, compiled for each MPI that is there: mpi_openmpi, mpi_mpich and mpi_death. Included by
# tests/CMakeLists.txt.
set(attn_mpi_labels "unit;sanitize;once")
set(attn_mpi_runs "")
set(attn_mpi_cases bits)
if(ATTN_SANITIZE)
  set(attn_mpi_cases few)
endif()
foreach(mpi openmpi mpich)
  find_program(ATTN_MPICC_${mpi} mpicc.${mpi})
  find_program(ATTN_MPIRUN_${mpi} mpirun.${mpi})
  mark_as_advanced(ATTN_MPICC_${mpi} ATTN_MPIRUN_${mpi})
  if(NOT ATTN_MPICC_${mpi} OR NOT ATTN_MPIRUN_${mpi} OR NOT TARGET attn_mpi_shared)
    add_skipped(mpi_${mpi} "${attn_mpi_labels}" "no ${mpi} (Debian: apt-get install lib${mpi}-dev), or ATTN_MPI=OFF")
    continue()
  endif()
  execute_process(COMMAND ${ATTN_MPICC_${mpi}} -show OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(folders ${flags})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER flags INCLUDE REGEX "^-[Ll]")
  set(attn_mpi_folders_${mpi} ${folders}) # for tests/harness/ranks too
  set(attn_mpi_flags_${mpi} ${flags})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/mpi/*.c)
  add_executable(test_mpi_${mpi} ${PROJECT_SOURCE_DIR}/mpi/tests/test_mpi.c ${sources})
  attn_mpi_options(test_mpi_${mpi})
  target_include_directories(test_mpi_${mpi} SYSTEM PRIVATE ${folders})
  target_link_libraries(test_mpi_${mpi} PRIVATE attn_shared ${flags} m)
  list(APPEND attn_mpi_runs ${ATTN_MPIRUN_${mpi}} $<TARGET_FILE:test_mpi_${mpi}>)
  add_labelled(mpi_${mpi} "${attn_mpi_labels}" ${PROJECT_SOURCE_DIR}/mpi/tests/run.sh ${attn_mpi_cases} ${ATTN_MPIRUN_${mpi}}
               $<TARGET_FILE:test_mpi_${mpi}>)
endforeach()
if(attn_mpi_runs)
  add_labelled(mpi_death "${attn_mpi_labels}" ${PROJECT_SOURCE_DIR}/mpi/tests/run.sh death ${attn_mpi_runs})
else()
  add_skipped(mpi_death "${attn_mpi_labels}" "no MPI")
endif()

# libattn.mpi, where the MPI of the build is one of those, and Python's mpi4py stands on it.
if(TARGET attn_mpi_shared AND TARGET attn_python AND Python3_FOUND AND MPIEXEC_EXECUTABLE)
  add_labelled(mpi_python "tools" ${PROJECT_SOURCE_DIR}/mpi/tests/run.sh python ${MPIEXEC_EXECUTABLE} ${Python3_EXECUTABLE})
  set_property(TEST mpi_python APPEND PROPERTY ENVIRONMENT LIBATTN_PYTHON=$<TARGET_FILE:attn_python>
                                                          LIBATTN_MPI=$<TARGET_FILE:attn_mpi_shared>)
endif()

# Simulated clusters.
if(TARGET attn_mpi_simulate)
  add_labelled(mpi_simulate "tools" ${PROJECT_SOURCE_DIR}/mpi/simulate/run.sh check ${ATTN_SMPIRUN}
               $<TARGET_FILE:attn_mpi_simulate>)
else()
  add_skipped(mpi_simulate "tools" "no SimGrid (Debian: apt-get install libsimgrid-dev), or ATTN_MPI=OFF, or sanitizers")
endif()
