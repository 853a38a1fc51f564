# SPDX-License-Identifier: MIT
# Turns text files into C initializers, {"amd-zen4", "attn-tuning 5\n..."}, for amd-zen4.tuning, in the order of their names,
# except that FIRST, if given, comes first:
#
#   cmake -DPATTERN=machines/*.tuning -DFIRST=machines/generic.tuning -DOUTPUT=machine_classes.h -P AttnEmbed.cmake
cmake_minimum_required(VERSION 3.25)
file(GLOB inputs ${PATTERN})
if(FIRST)
  list(REMOVE_ITEM inputs ${FIRST})
  list(PREPEND inputs ${FIRST})
endif()
set(text "")
foreach(input IN LISTS inputs)
  get_filename_component(name ${input} NAME_WE)
  file(READ ${input} content)
  string(REPLACE "\\" "\\\\" content "${content}")
  string(REPLACE "\"" "\\\"" content "${content}")
  string(REPLACE "\n" "\\n\"\n \"" content "${content}")
  string(APPEND text "{\"${name}\",\n \"${content}\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
