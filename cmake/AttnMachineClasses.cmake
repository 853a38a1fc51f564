# SPDX-License-Identifier: MIT
# Writes OUTPUT, the tuning files of a folder as C strings, {"amd-zen4", "attn-tuning 5\n..."} for amd-zen4.tuning:
#
#   cmake -DFOLDER=kernels/machines -DOUTPUT=FILE -P AttnMachineClasses.cmake
cmake_minimum_required(VERSION 3.25)
file(GLOB inputs ${FOLDER}/*.tuning)
set(text "")
foreach(input IN LISTS inputs)
  get_filename_component(name ${input} NAME_WE)
  file(STRINGS ${input} lines)
  string(APPEND text "{\"${name}\",\n")
  foreach(line IN LISTS lines)
    string(APPEND text " \"${line}\\n\"\n")
  endforeach()
  string(APPEND text "},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
