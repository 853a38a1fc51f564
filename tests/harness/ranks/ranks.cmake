# SPDX-License-Identifier: MIT
# attnbench-mpi with each MPI that is there: ranks_openmpi and ranks_mpich. tests/CMakeLists.txt includes this behind
# mpi/tests/tests.cmake, which looks for them.
file(GLOB ranks_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/harness/ranks/*.c)
foreach(mpi openmpi mpich)
  if(NOT TARGET test_mpi_${mpi})
    add_skipped(ranks_${mpi} "tools" "no ${mpi} (Debian: apt-get install lib${mpi}-dev), or ATTN_MPI=OFF")
    continue()
  endif()
  add_executable(attnbench_mpi_${mpi} ${ranks_sources})
  target_compile_definitions(attnbench_mpi_${mpi} PRIVATE _GNU_SOURCE)
  target_include_directories(attnbench_mpi_${mpi} SYSTEM PRIVATE ${attn_mpi_folders_${mpi}})
  target_link_libraries(attnbench_mpi_${mpi} PRIVATE attnbench_core attn_warnings ${attn_mpi_flags_${mpi}})
  add_python_test(ranks_${mpi} harness/ranks/test_ranks.py $<TARGET_FILE:attnbench> $<TARGET_FILE:attnbench_mpi_${mpi}>
                  ${ATTN_MPIRUN_${mpi}})
endforeach()
