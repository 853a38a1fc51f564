# SPDX-License-Identifier: MIT
# Turns text files into one C file: cmake -DARRAY=bench_presets -DOUTPUT=presets_data.c "-DINPUTS=a.preset;b.preset" -P
# AttnEmbed.cmake. The result defines an array of bench_preset (harness/cases/cases.h), one entry per file, named without
# its extension.
set(text "/* Made from files of harness/ by cmake/AttnEmbed.cmake. */\n#include \"cases/cases.h\"\n\n")
string(APPEND text "extern const bench_preset ${ARRAY}[];\nconst bench_preset ${ARRAY}[] = {\n")
foreach(input IN LISTS INPUTS)
  get_filename_component(name ${input} NAME_WE)
  file(READ ${input} content)
  string(REPLACE "\\" "\\\\" content "${content}")
  string(REPLACE "\"" "\\\"" content "${content}")
  string(REPLACE "\n" "\\n\"\n     \"" content "${content}")
  string(APPEND text "    {\"${name}\",\n     \"${content}\"},\n")
endforeach()
string(APPEND text "    {0, 0},\n};\n")
file(WRITE ${OUTPUT} "${text}")
