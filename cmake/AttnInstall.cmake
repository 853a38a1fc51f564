# SPDX-License-Identifier: MIT
# Install rules: libraries, header, attnbench, find_package(attn) and pkg-config. Everything installed is relocatable.
include(CMakePackageConfigHelpers)
set(attn_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)

install(TARGETS attn_static attn_shared attn_nn_static attn_nn_shared EXPORT attnTargets)
install(DIRECTORY include/attn TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
if(ATTN_BUILD_HARNESS)
  install(TARGETS attnbench)
endif()

# Targets attn::shared, attn::static, attn::nn_shared, attn::nn_static; attnConfig.cmake adds attn::attn and attn::nn.
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_config_dir})
configure_package_config_file(cmake/attnConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/attnConfig.cmake
                              INSTALL_DESTINATION ${attn_config_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set(attn_find_modules ${ATTN_LIBRARIES})
list(TRANSFORM attn_find_modules REPLACE "(.+)" "cmake/FindAttn\\1.cmake")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake
              ${attn_find_modules}
        DESTINATION ${attn_config_dir})

# attn.pc finds its prefix from its own place, so that the tree can be moved.
file(RELATIVE_PATH attn_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" attn_pc_to_prefix "${attn_pc_to_prefix}")
set(attn_pc_private -lm)
if(ATTN_OPENMP_TARGET)
  list(APPEND attn_pc_private ${OpenMP_C_FLAGS})
endif()
list(APPEND attn_pc_private ${ATTN_LIBRARY_PC})
list(JOIN attn_pc_private " " attn_pc_private)
foreach(name attn attn_nn)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attn.pc ${CMAKE_CURRENT_BINARY_DIR}/attn_nn.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
