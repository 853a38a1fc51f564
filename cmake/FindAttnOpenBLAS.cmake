# SPDX-License-Identifier: MIT
# Finds OpenBLAS with its CBLAS interface: a package of the system, or what ATTN_OPENBLAS_ROOT points to, such as a folder
# into which scripts/get_openblas.sh has put the build of PyPI, whose names carry a prefix. Defines the target
# attn::openblas, whose users see <cblas.h> and the macro ATTN_OPENBLAS_PREFIX, ATTN_OPENBLAS_VERSION and ATTN_OPENBLAS_PC;
# otherwise ATTN_OPENBLAS_MISSING. Installed with attnConfig.cmake, because the static library needs it again.
get_property(_attn_openblas_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
set(_attn_openblas_language C)
if(NOT C IN_LIST _attn_openblas_languages) # in a project of C++ alone
  set(_attn_openblas_language CXX)
endif()
include(Check${_attn_openblas_language}SourceCompiles)
if(NOT DEFINED ATTN_OPENBLAS_ROOT) # else attnConfig.cmake has set it
  set(ATTN_OPENBLAS_ROOT "" CACHE PATH
      "Where OpenBLAS is, if not in the system: a folder with include/ and lib/, or the one above it")
endif()
set(ATTN_OPENBLAS_MISSING "OpenBLAS was not found")

# With a root, only the root is searched: forget what an earlier configure found elsewhere.
set(_attn_openblas_where "")
if(ATTN_OPENBLAS_ROOT)
  set(_attn_openblas_where PATHS ${ATTN_OPENBLAS_ROOT} ${ATTN_OPENBLAS_ROOT}/scipy_openblas32 NO_DEFAULT_PATH)
  set(ATTN_OPENBLAS_MISSING "there is no OpenBLAS in ATTN_OPENBLAS_ROOT=${ATTN_OPENBLAS_ROOT}")
endif()
if(NOT "${ATTN_OPENBLAS_ROOT}" STREQUAL "${_ATTN_OPENBLAS_SEEN_ROOT}")
  unset(ATTN_OPENBLAS_INCLUDE_DIR CACHE)
  unset(ATTN_OPENBLAS_LIBRARY CACHE)
endif()
set(_ATTN_OPENBLAS_SEEN_ROOT "${ATTN_OPENBLAS_ROOT}" CACHE INTERNAL "")
find_path(ATTN_OPENBLAS_INCLUDE_DIR openblas_config.h
          PATH_SUFFIXES include openblas-pthread openblas-openmp openblas-serial openblas ${_attn_openblas_where})
find_library(ATTN_OPENBLAS_LIBRARY NAMES openblas scipy_openblas PATH_SUFFIXES lib ${_attn_openblas_where})
mark_as_advanced(ATTN_OPENBLAS_INCLUDE_DIR ATTN_OPENBLAS_LIBRARY)

# Sets ${result} if a program that calls OpenBLAS by names with this prefix can be built.
function(_attn_openblas_try prefix result)
  set(CMAKE_REQUIRED_QUIET ON)
  set(CMAKE_REQUIRED_INCLUDES ${ATTN_OPENBLAS_INCLUDE_DIR})
  set(CMAKE_REQUIRED_LIBRARIES ${ATTN_OPENBLAS_LIBRARY} m)
  unset(${result} CACHE)
  set(program "#include <cblas.h>
    int main(void) {
      float one[1] = {1};
      ${prefix}cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1.0f, one, 1, one, 1, 0.0f, one, 1);
      ${prefix}openblas_set_num_threads(${prefix}openblas_get_num_threads());
      return ${prefix}openblas_get_corename()[0] + ${prefix}openblas_get_config()[0];
    }")
  if(_attn_openblas_language STREQUAL C)
    check_c_source_compiles("${program}" ${result})
  else()
    check_cxx_source_compiles("${program}" ${result})
  endif()
  set(${result} ${${result}} PARENT_SCOPE)
endfunction()

set(_attn_openblas_prefix none)
if(ATTN_OPENBLAS_INCLUDE_DIR AND ATTN_OPENBLAS_LIBRARY)
  _attn_openblas_try("" ATTN_OPENBLAS_PLAIN_NAMES)
  if(ATTN_OPENBLAS_PLAIN_NAMES)
    set(_attn_openblas_prefix "")
  else()
    _attn_openblas_try(scipy_ ATTN_OPENBLAS_SCIPY_NAMES)
    if(ATTN_OPENBLAS_SCIPY_NAMES)
      set(_attn_openblas_prefix scipy_)
    else()
      set(ATTN_OPENBLAS_MISSING "${ATTN_OPENBLAS_LIBRARY} could not be linked by cblas_sgemm or scipy_cblas_sgemm")
    endif()
  endif()
endif()

if(NOT _attn_openblas_prefix STREQUAL "none")
  file(STRINGS ${ATTN_OPENBLAS_INCLUDE_DIR}/openblas_config.h _attn_openblas_line REGEX "define OPENBLAS_VERSION ")
  string(REGEX MATCH "[0-9][0-9.]*" ATTN_OPENBLAS_VERSION "${_attn_openblas_line}")
  get_filename_component(_attn_openblas_folder ${ATTN_OPENBLAS_LIBRARY} DIRECTORY)
  get_filename_component(_attn_openblas_link ${ATTN_OPENBLAS_LIBRARY} NAME_WE)
  string(REGEX REPLACE "^lib" "-l" ATTN_OPENBLAS_PC ${_attn_openblas_link})
  if(NOT _attn_openblas_folder IN_LIST CMAKE_${_attn_openblas_language}_IMPLICIT_LINK_DIRECTORIES)
    list(PREPEND ATTN_OPENBLAS_PC -L${_attn_openblas_folder} -Wl,-rpath,${_attn_openblas_folder})
    string(APPEND ATTN_OPENBLAS_VERSION ", ${ATTN_OPENBLAS_LIBRARY}")
  endif()
  if(NOT TARGET attn::openblas)
    add_library(attn::openblas INTERFACE IMPORTED)
    set_target_properties(attn::openblas PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${ATTN_OPENBLAS_INCLUDE_DIR}
      INTERFACE_LINK_LIBRARIES ${ATTN_OPENBLAS_LIBRARY}
      INTERFACE_COMPILE_DEFINITIONS ATTN_OPENBLAS_PREFIX=${_attn_openblas_prefix})
  endif()
endif()
if(TARGET attn::openblas)
  set(AttnOpenBLAS_FOUND TRUE)
else()
  set(AttnOpenBLAS_FOUND FALSE)
endif()
