# SPDX-License-Identifier: MIT
list(LENGTH ATTN_KERNELS_BUILT kernel_count)
message(STATUS "attn ${PROJECT_VERSION} for ${attn_arch}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, "
               "${CMAKE_BUILD_TYPE}")
message(STATUS "  kernels   ${kernel_count} built")
message(STATUS "  OpenMP    ${ATTN_OPENMP_STATUS}")
message(STATUS "  hwloc     ${ATTN_HWLOC_STATUS}")
message(STATUS "  gbench    ${ATTN_GBENCH_STATUS}")
if(DEFINED ATTN_GGML_STATUS)
  message(STATUS "  ggml      ${ATTN_GGML_STATUS}")
endif()
foreach(line IN LISTS ATTN_LIBRARY_SUMMARY)
  message(STATUS "  ${line}")
endforeach()
