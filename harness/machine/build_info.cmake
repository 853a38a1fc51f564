# SPDX-License-Identifier: MIT
# Writes OUTPUT, a header that says what this program was built from: commit and whether the tree was dirty, compiler, flags.
# Run at every build, so that the commit is that of the build and not of the configuration; touches the file only if
# something changed.
set(commit "unknown")
set(tree "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE}" source)
  # Unpacked inside somebody else's repository, our commit is not theirs.
  if(top STREQUAL source)
    execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse HEAD WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks status --porcelain --untracked-files=no
                    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes RESULT_VARIABLE failed ERROR_QUIET)
    if(head)
      set(commit "${head}")
    endif()
    if(NOT failed AND changes STREQUAL "")
      set(tree "clean")
    elseif(NOT failed)
      set(tree "dirty")
    endif()
  endif()
endif()

set(text "/* Made by harness/machine/build_info.cmake. */\n")
foreach(name IN ITEMS commit tree COMPILER BUILD_TYPE C_FLAGS LIBRARY_FLAGS SANITIZE OPENMP)
  string(TOUPPER ${name} macro)
  string(STRIP "${${name}}" value)
  string(REPLACE "\\" "\\\\" value "${value}")
  string(REPLACE "\"" "\\\"" value "${value}")
  string(APPEND text "#define BENCH_BUILD_${macro} \"${value}\"\n")
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${text}" @ONLY)
