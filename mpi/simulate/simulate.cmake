# SPDX-License-Identifier: MIT
# attn_mpi_simulate, where SimGrid is: a module that smpirun loads. Included by mpi/CMakeLists.txt.
find_program(ATTN_SMPICC smpicc)
find_program(ATTN_SMPIRUN smpirun)
find_library(ATTN_SIMGRID simgrid)
find_path(ATTN_SMPI_HEADERS smpi/smpi_helpers.h)
mark_as_advanced(ATTN_SMPICC ATTN_SMPIRUN ATTN_SIMGRID ATTN_SMPI_HEADERS)
if(NOT ATTN_SMPICC OR NOT ATTN_SMPIRUN OR NOT ATTN_SIMGRID OR NOT ATTN_SMPI_HEADERS OR ATTN_SANITIZE)
  return()
endif()
add_library(attn_mpi_simulate MODULE simulate/attn_mpi_simulate.c simulate/simulated.c ${attn_mpi_sources})
attn_mpi_options(attn_mpi_simulate)
# smpi_helpers.h puts the simulated clock in the place of the real one.
target_compile_options(attn_mpi_simulate PRIVATE "SHELL:-include smpi/smpi_helpers.h"
                                                 "SHELL:-include mpi/simulate/simulated.h")
target_compile_definitions(attn_mpi_simulate PRIVATE SMPI_NO_OVERRIDE_MALLOC)
target_include_directories(attn_mpi_simulate SYSTEM BEFORE PRIVATE ${ATTN_SMPI_HEADERS}/smpi)
target_link_libraries(attn_mpi_simulate PRIVATE attn_shared ${ATTN_SIMGRID} m)
foreach(copy mpi_start_states mpi_pack_keys mpi_pack_heads mpi_pack_rows mpi_copy_tokens)
  target_link_options(attn_mpi_simulate PRIVATE -Wl,--wrap=${copy})
endforeach()
set_target_properties(attn_mpi_simulate PROPERTIES PREFIX "")
