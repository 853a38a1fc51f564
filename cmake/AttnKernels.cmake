# SPDX-License-Identifier: MIT
# Turns kernels/tiers.def and kernels/kernels.def into sources with the flags of their folder. Nothing here asks what the
# host CPU is. It sets
#   ATTN_TIERS, ATTN_VECTOR_TIERS            the tiers of this architecture, low to high; those that have a vec_<isa>.h
#   ATTN_KERNEL_SOURCES                      sources of libattn
#   ATTN_KERNELS_BUILT                       names of all kernels that are built, also those of plug-ins
#   plugin_sources_<plug-in>                 sources of the kernels on a library
#   ATTN_PEAK_SOURCES                        peak loops, which only the harness links
# and writes to ATTN_GENERATED_DIR what C files include: kernels_built.def, product_built.def and plugins_built.def
# (src/registry/registry.c), tier_parts_built.def (src/registry/tier_parts.c), peak_built.def (kernels/peak.c), and for
# each plug-in plugin_<plug-in>/plugin_built.def (kernels/plugin/entry.c). ATTN_GENERATED_DIR_ALL holds the first
# three for a registry in which all kernels are built in: for tests, and with ATTN_STATIC_BACKENDS for libattn.
set(ATTN_GENERATED_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)
set(ATTN_GENERATED_DIR_ALL ${ATTN_GENERATED_DIR}/all_built_in)
set(ATTN_KERNEL_SOURCES "")
set(ATTN_KERNELS_BUILT "")
set(ATTN_PEAK_SOURCES "")
set(ATTN_TIERS "")
set(ATTN_VECTOR_TIERS "")
set(kernels_text "")     # of the registry of libattn, and of one with everything built in
set(kernels_all_text "")
set(plugins_text "")
set(plugins_all_text "")
# Files beside the kernels; a tier without one uses the next lower tier's. Products and peak loops have tables of their own;
# flash_few_<isa>.c belongs to its tier's flash kernel alone.
set(ATTN_TIER_PARTS score_steps product kv_rows rows peak flash_few)
set(tier_parts_text "")
set(product_text "")
set(peak_text "")
set(flash_few_text "")

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" attn_arch)
if(attn_arch MATCHES "^(x86_64|amd64)$")
  set(attn_arch x86_64)
elseif(attn_arch MATCHES "^(aarch64|arm64)$")
  set(attn_arch aarch64)
endif()

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS kernels/tiers.def kernels/kernels.def)
set(tiers_known "")
set(above_cap "") # set once the highest tier to build has been read: lines go from low to high

file(STRINGS kernels/tiers.def tier_lines REGEX "^ATTN_TIER\\(")
foreach(line IN LISTS tier_lines)
  if(NOT line MATCHES "^ATTN_TIER\\(([a-z0-9]+), ([a-z0-9]+), ([a-z0-9_]+), \"([^\"]*)\"")
    message(FATAL_ERROR "kernels/tiers.def: cannot read '${line}'")
  endif()
  set(isa ${CMAKE_MATCH_1})
  set(folder ${CMAKE_MATCH_2})
  set(folder_of_${isa} ${folder})
  set(folder_arch_${folder} ${CMAKE_MATCH_3})
  set(flags "${CMAKE_MATCH_4}")
  separate_arguments(folder_flags_${folder} UNIX_COMMAND "${flags}")
  if(ATTN_EMULATE_AVX512 AND flags MATCHES "-mavx512")
    set(folder_flags_${folder} -mavx2 -mfma -mf16c -isystem ${PROJECT_SOURCE_DIR}/tests/emulation)
  endif()
  if(NOT folder_arch_${folder} STREQUAL "any" AND NOT folder_arch_${folder} STREQUAL attn_arch)
    set(folder_reason_${folder} "needs an ${folder_arch_${folder}} CPU; this build is for ${attn_arch}")
    continue()
  endif()
  list(APPEND tiers_known ${isa})
  if(WIN32 AND flags MATCHES "-mamx") # nor can gcc 12 assemble its tile loads there, whose strides have 32 bits
    set(folder_reason_${folder} "needs AMX tiles, which this library does not ask Windows for")
  elseif(above_cap)
    set(folder_reason_${folder} "ATTN_MAX_ISA=${ATTN_MAX_ISA} at build time")
  else()
    set(folder_reason_${folder} "")
    list(APPEND ATTN_TIERS ${isa})
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/${folder}/vec_${isa}.h)
      list(APPEND ATTN_VECTOR_TIERS ${isa})
    endif()
    foreach(part IN LISTS ATTN_TIER_PARTS)
      set(source kernels/${folder}/${part}_${isa}.c)
      if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
        if(part STREQUAL "peak")
          list(APPEND ATTN_PEAK_SOURCES ${source})
        else()
          list(APPEND ATTN_KERNEL_SOURCES ${source})
        endif()
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${folder_flags_${folder}}")
        string(TOUPPER ${part} macro)
        set(table tier_parts)
        if(DEFINED ${part}_text)
          set(table ${part})
        endif()
        string(APPEND ${table}_text "ATTN_${macro}(${isa})\n")
      endif()
    endforeach()
  endif()
  if(isa STREQUAL ATTN_MAX_ISA)
    set(above_cap TRUE)
  endif()
endforeach()
if(ATTN_MAX_ISA AND NOT above_cap)
  list(JOIN tiers_known ", " tiers_known)
  message(FATAL_ERROR "ATTN_MAX_ISA=${ATTN_MAX_ISA}: should be a tier of ${attn_arch}: ${tiers_known}")
endif()

# A library's folder may hold more files, which its kernels share. Its products rank behind those of tiers, which
# product_built.def lists from low to high.
set(product_all_text "${product_text}")
foreach(folder IN LISTS ATTN_LIBRARY_FOLDERS)
  set(plugin ${folder_plugin_${folder}})
  set(plugin_sources_${plugin} "")
  set(plugin_text_${plugin} "")
  set(not_built "NULL")
  if(folder_reason_${folder} STREQUAL "")
    file(GLOB plugin_sources_${plugin} RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS kernels/${folder}/*.c)
    foreach(source IN LISTS plugin_sources_${plugin})
      if(source MATCHES "/product_([a-z0-9]+)\\.c$")
        string(APPEND plugin_text_${plugin} "ATTN_PRODUCT(${CMAKE_MATCH_1})\n")
        set(product_all_text "ATTN_PRODUCT(${CMAKE_MATCH_1})\n${product_all_text}")
      endif()
    endforeach()
    string(APPEND plugins_all_text "ATTN_PLUGIN(${plugin}, true, NULL)\n")
  else()
    set(not_built "\"${folder_reason_${folder}}\"")
    string(APPEND plugins_all_text "ATTN_PLUGIN(${plugin}, false, ${not_built})\n")
  endif()
  string(APPEND plugins_text "ATTN_PLUGIN(${plugin}, false, ${not_built})\n")
endforeach()

file(STRINGS kernels/kernels.def kernel_lines REGEX "^ATTN_KERNEL\\(")
foreach(line IN LISTS kernel_lines)
  if(NOT line MATCHES "^ATTN_KERNEL\\(([a-z0-9_]+), ([a-z0-9]+)\\)")
    message(FATAL_ERROR "kernels/kernels.def: cannot read '${line}'")
  endif()
  set(name ${CMAKE_MATCH_1})
  set(folder ${CMAKE_MATCH_2})
  if(NOT DEFINED folder_reason_${folder})
    message(FATAL_ERROR "kernels/kernels.def: ${name}: neither kernels/tiers.def nor kernels/libraries.def has the folder "
                        "'${folder}'")
  endif()
  set(reason "${folder_reason_${folder}}${kernel_reason_${name}}") # of the folder, or of this kernel alone
  set(source kernels/${folder}/${name}.c)
  set(plugin "${folder_plugin_${folder}}")
  if(NOT reason STREQUAL "")
    string(APPEND kernels_text "ATTN_KERNEL_NOT_BUILT(${name}, \"${reason}\")\n")
    string(APPEND kernels_all_text "ATTN_KERNEL_NOT_BUILT(${name}, \"${reason}\")\n")
    if(plugin)
      list(REMOVE_ITEM plugin_sources_${plugin} ${source})
    endif()
    continue()
  endif()
  list(APPEND ATTN_KERNELS_BUILT ${name})
  list(APPEND folder_kernels_${folder} ${name})
  string(APPEND kernels_all_text "ATTN_KERNEL(${name}, ${folder})\n")
  if(plugin)
    string(APPEND plugin_text_${plugin} "ATTN_KERNEL(${name}, ${folder})\n")
    string(APPEND kernels_text "ATTN_KERNEL_IN_PLUGIN(${name}, ${plugin})\n")
  else()
    list(APPEND ATTN_KERNEL_SOURCES ${source})
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${folder_flags_${folder}}")
    string(APPEND kernels_text "ATTN_KERNEL(${name}, ${folder})\n")
  endif()
endforeach()

# write_generated(FOLDER NAME TEXT)
function(write_generated folder name text)
  file(CONFIGURE OUTPUT ${folder}/${name} CONTENT "${text}" @ONLY)
endfunction()
foreach(table kernels product plugins)
  write_generated(${ATTN_GENERATED_DIR_ALL} ${table}_built.def "${${table}_all_text}")
  if(ATTN_STATIC_BACKENDS)
    set(${table}_text "${${table}_all_text}")
  endif()
endforeach()
foreach(table kernels plugins product tier_parts peak)
  write_generated(${ATTN_GENERATED_DIR} ${table}_built.def "${${table}_text}")
endforeach()
foreach(plugin IN LISTS ATTN_PLUGINS)
  write_generated(${ATTN_GENERATED_DIR}/plugin_${plugin} plugin_built.def "${plugin_text_${plugin}}")
endforeach()

# Code versions of all kernels, made anew by every build that changes one.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
set(ATTN_KERNEL_CODES ${ATTN_GENERATED_DIR}/kernel_codes.h)
set(make_kernel_codes ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${ATTN_KERNEL_CODES}
    "-DCOMPILER=${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${build_type}}"
    -P ${PROJECT_SOURCE_DIR}/cmake/AttnKernelCodes.cmake)
execute_process(COMMAND ${make_kernel_codes} COMMAND_ERROR_IS_FATAL ANY) # for tools that read sources before a build
file(GLOB_RECURSE attn_kernel_files CONFIGURE_DEPENDS kernels/*.c kernels/*.h kernels/*.cpp)
add_custom_command(OUTPUT ${ATTN_KERNEL_CODES} COMMAND ${make_kernel_codes} VERBATIM
                   DEPENDS ${attn_kernel_files} kernels/kernels.def kernels/tiers.def include/attn/kernel.h
                           cmake/AttnKernelCodes.cmake)

# Costs by class of CPU.
set(ATTN_MACHINE_CLASSES ${ATTN_GENERATED_DIR}/machine_classes.h)
file(GLOB attn_class_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/machines/*.tuning)
set(make_machine_classes ${CMAKE_COMMAND} -DPATTERN=${PROJECT_SOURCE_DIR}/kernels/machines/*.tuning
    -DFIRST=${PROJECT_SOURCE_DIR}/kernels/machines/generic.tuning -DOUTPUT=${ATTN_MACHINE_CLASSES}
    -P ${PROJECT_SOURCE_DIR}/cmake/AttnEmbed.cmake)
execute_process(COMMAND ${make_machine_classes} COMMAND_ERROR_IS_FATAL ANY) # for tools that read sources before a build
add_custom_command(OUTPUT ${ATTN_MACHINE_CLASSES} COMMAND ${make_machine_classes} VERBATIM
                   DEPENDS ${attn_class_files} cmake/AttnEmbed.cmake)
