# SPDX-License-Identifier: MIT
# Finds oneDNN, 2.6 or 3.x: a package of the system, or what ATTN_ONEDNN_ROOT points to, such as a folder into which
# scripts/get_onednn.sh has put a build of PyPI. Defines the target attn::onednn, ATTN_ONEDNN_VERSION and ATTN_ONEDNN_PC;
# otherwise ATTN_ONEDNN_MISSING. A kernel that needs a newer version gets a kernel_reason_<kernel>. Installed
# with attnConfig.cmake, because the static library needs it again.
#
# Header and library are looked up by name, not through dnnl-config.cmake: Debian's demands OpenCL's development files, which
# its package does not bring and the C API does not need, and the newest wheels of PyPI have none. dnnl_DIR still
# works.
if(NOT DEFINED ATTN_ONEDNN_ROOT) # else attnConfig.cmake has set it
  set(ATTN_ONEDNN_ROOT "" CACHE PATH "Where oneDNN is, if not where the system has it: a folder with include/ and lib/")
endif()
set(ATTN_ONEDNN_MISSING "oneDNN was not found")

# With a root, only the root is searched: forget what an earlier configure found elsewhere.
set(_attn_onednn_where "")
if(ATTN_ONEDNN_ROOT)
  set(_attn_onednn_where PATHS ${ATTN_ONEDNN_ROOT} NO_DEFAULT_PATH)
  set(ATTN_ONEDNN_MISSING "there is no oneDNN in ATTN_ONEDNN_ROOT=${ATTN_ONEDNN_ROOT}")
elseif(dnnl_DIR)
  set(_attn_onednn_where HINTS ${dnnl_DIR}/../../.. ${dnnl_DIR}/../../../..)
endif()
if(NOT "${ATTN_ONEDNN_ROOT};${dnnl_DIR}" STREQUAL "${_ATTN_ONEDNN_SEEN}")
  unset(ATTN_ONEDNN_INCLUDE_DIR CACHE)
  unset(ATTN_ONEDNN_LIBRARY CACHE)
endif()
set(_ATTN_ONEDNN_SEEN "${ATTN_ONEDNN_ROOT};${dnnl_DIR}" CACHE INTERNAL "")
find_path(ATTN_ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h PATH_SUFFIXES include ${_attn_onednn_where})
find_library(ATTN_ONEDNN_LIBRARY NAMES dnnl PATH_SUFFIXES lib ${_attn_onednn_where})
mark_as_advanced(ATTN_ONEDNN_INCLUDE_DIR ATTN_ONEDNN_LIBRARY)

set(_attn_onednn_number "")
if(ATTN_ONEDNN_INCLUDE_DIR AND ATTN_ONEDNN_LIBRARY)
  file(READ ${ATTN_ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h _attn_onednn_header)
  if(_attn_onednn_header MATCHES "VERSION_MAJOR +([0-9]+).*VERSION_MINOR +([0-9]+).*VERSION_PATCH +([0-9]+)")
    set(_attn_onednn_number ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
  endif()
  if(_attn_onednn_number VERSION_LESS 2.6 OR _attn_onednn_number VERSION_GREATER_EQUAL 4)
    set(ATTN_ONEDNN_MISSING "oneDNN in ${ATTN_ONEDNN_LIBRARY} is version '${_attn_onednn_number}', and 2.6 to 3.x is needed")
    set(_attn_onednn_number "")
  endif()
endif()

set(kernel_reason_graph_onednn "")
if(_attn_onednn_number)
  # The runtime decides which threads the library uses: OMP, TBB, SEQ or THREADPOOL, and SYCL for other devices.
  file(STRINGS ${ATTN_ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h _attn_onednn_runtimes
       REGEX "define DNNL_CPU_.*RUNTIME DNNL_")
  string(REGEX MATCHALL "RUNTIME_[A-Z]+" _attn_onednn_runtimes "${_attn_onednn_runtimes}")
  list(TRANSFORM _attn_onednn_runtimes REPLACE "RUNTIME_" "")
  list(REMOVE_DUPLICATES _attn_onednn_runtimes)
  list(JOIN _attn_onednn_runtimes "/" _attn_onednn_runtimes)
  set(ATTN_ONEDNN_VERSION "${_attn_onednn_number}, ${_attn_onednn_runtimes}")
  if(NOT EXISTS ${ATTN_ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_graph.h)
    set(kernel_reason_graph_onednn
        "oneDNN ${_attn_onednn_number} has no graph API, which came with 3.1 (to get one: scripts/get_onednn.sh DIR)")
  endif()
  get_filename_component(_attn_onednn_folder ${ATTN_ONEDNN_LIBRARY} DIRECTORY)
  set(ATTN_ONEDNN_PC -ldnnl)
  set(_attn_onednn_options "")
  # A project of C++ alone knows the second list only.
  if(NOT _attn_onednn_folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES AND
     NOT _attn_onednn_folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    # RPATH rather than RUNPATH: it also holds for the libraries that libdnnl needs from its own folder without saying where
    # they are.
    set(_attn_onednn_options -Wl,--disable-new-dtags -Wl,-rpath,${_attn_onednn_folder}
        -Wl,-rpath-link,${_attn_onednn_folder})
    list(PREPEND ATTN_ONEDNN_PC -L${_attn_onednn_folder} ${_attn_onednn_options})
    string(APPEND ATTN_ONEDNN_VERSION ", ${ATTN_ONEDNN_LIBRARY}")
  endif()
  if(NOT TARGET attn::onednn)
    # Imported with its real type, so that programs that link our shared library find it too.
    add_library(attn::onednn SHARED IMPORTED)
    set_target_properties(attn::onednn PROPERTIES
      IMPORTED_LOCATION ${ATTN_ONEDNN_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${ATTN_ONEDNN_INCLUDE_DIR}
      INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}"
      INTERFACE_LINK_OPTIONS "${_attn_onednn_options}")
  endif()
endif()
if(TARGET attn::onednn)
  set(AttnoneDNN_FOUND TRUE)
else()
  set(AttnoneDNN_FOUND FALSE)
endif()
