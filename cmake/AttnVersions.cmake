# SPDX-License-Identifier: MIT
# attn_versions(TARGET MAP): gives the functions of a shared library the symbol versions in MAP, where files are ELF.
# The number in the library's name (SOVERSION) is the major version: while it stays, old programs run with newer libraries
# (docs/library.md, "Versions"). find_package(attn) says the same (cmake/AttnInstall.cmake: SameMajorVersion).
function(attn_versions target map)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  if(UNIX AND NOT APPLE)
    target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/${map})
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/${map})
  endif()
endfunction()
