# SPDX-License-Identifier: MIT
# Writes attnbench(1) and a page for each sub-command into FOLDER: cmake -DATTNBENCH=... -DFOLDER=... -P AttnManual.cmake
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${ATTNBENCH} --help=words OUTPUT_VARIABLE commands OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(STATUS "no manual pages: ${ATTNBENCH} does not run here")
  return()
endif()
string(REPLACE "\n" ";" commands "${commands}")
execute_process(COMMAND ${ATTNBENCH} --help=man OUTPUT_FILE ${FOLDER}/attnbench.1)
foreach(command IN LISTS commands)
  execute_process(COMMAND ${ATTNBENCH} ${command} --help=man OUTPUT_FILE ${FOLDER}/attnbench-${command}.1)
endforeach()
