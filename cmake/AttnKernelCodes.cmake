# SPDX-License-Identifier: MIT
# Writes OUTPUT, a table of every kernel's code version: a hash of the sources that it is compiled from, the compiler and its
# flags. A tuning file names the versions that it was measured with (src/choice/tuning_identity.c). Run by `cmake -P` at
# every build that changes a kernel:
#
#   cmake -DSOURCE=FOLDER -DOUTPUT=FILE -DCOMPILER=TEXT -P AttnKernelCodes.cmake
#
# A kernel is compiled from its own file, all headers of its folder and of kernels/ref (which several tiers share), what
# kernels/common and kernels/library hold, and for kernels on libraries the other files of the folder.
cmake_minimum_required(VERSION 3.25)

# hash_files(VARIABLE FILE...)
function(hash_files variable)
  set(all "")
  foreach(file IN LISTS ARGN)
    file(SHA256 ${file} hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA256 hash "${all}")
  set(${variable} ${hash} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE common ${SOURCE}/kernels/common/*)
file(GLOB shared ${SOURCE}/kernels/library/* ${SOURCE}/kernels/ref/*.h ${SOURCE}/include/attn/kernel.h)
list(FILTER shared EXCLUDE REGEX "oracle_f64\\.h$") # no kernel includes an oracle
list(APPEND shared ${common})
list(SORT shared)
hash_files(shared_hash ${shared})

file(STRINGS ${SOURCE}/kernels/kernels.def lines REGEX "^ATTN_KERNEL\\(")
set(text "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "\\(([a-z0-9_]+), ([a-z0-9]+)\\)" line "${line}")
  set(name ${CMAKE_MATCH_1})
  set(folder ${CMAKE_MATCH_2})
  file(STRINGS ${SOURCE}/kernels/tiers.def tier REGEX "^ATTN_TIER\\([a-z0-9]+, ${folder},")
  string(REGEX MATCH "\"[^\"]*\"" flags "${tier}")
  if(tier)
    file(GLOB own ${SOURCE}/kernels/${folder}/*.h ${SOURCE}/kernels/${folder}/${name}.c
         ${SOURCE}/kernels/${folder}/flash_few_*.c)
  else()
    file(GLOB own ${SOURCE}/kernels/${folder}/*)
  endif()
  list(SORT own)
  hash_files(own_hash ${own})
  string(SHA256 code "${shared_hash} ${own_hash} ${flags} ${COMPILER}")
  string(SUBSTRING ${code} 0 12 code)
  string(APPEND text "ATTN_KERNEL_CODE(${name}, \"${code}\")\n")
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${text}" @ONLY)
file(TOUCH ${OUTPUT}) # newer than what it was made from
