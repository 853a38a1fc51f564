# SPDX-License-Identifier: MIT
# Copies the C library into python/source, for an sdist: pip packs only what lies below python/.
set(target ${CMAKE_CURRENT_SOURCE_DIR}/source)
file(REMOVE_RECURSE ${target})
foreach(part CMakeLists.txt LICENSE cmake include src kernels harness)
  file(COPY ${attn_source}/${part} DESTINATION ${target})
endforeach()
