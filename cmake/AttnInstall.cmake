# SPDX-License-Identifier: MIT
# Install rules: libraries, header, attnbench, find_package(attn) and pkg-config. Everything installed is relocatable.
# Components: `runtime` what programs load, `development` what building them needs, `tools` attnbench with its scripts, and
# for each plug-in `plugin_openblas`, `plugin_onednn`.
include(CMakePackageConfigHelpers)
set(attn_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)

install(TARGETS attn_static attn_nn_static EXPORT attnTargets ARCHIVE COMPONENT development)
install(TARGETS attn_shared attn_nn_shared EXPORT attnTargets
        RUNTIME COMPONENT runtime
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
        ARCHIVE COMPONENT development)
foreach(target IN LISTS ATTN_PLUGIN_TARGETS)
  string(REPLACE attn_ plugin_ component ${target})
  install(TARGETS ${target} DESTINATION ${CMAKE_INSTALL_LIBDIR}/${ATTN_PLUGIN_SUBFOLDER} COMPONENT ${component})
endforeach()
install(DIRECTORY include/attn TYPE INCLUDE COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
if(ATTN_BUILD_HARNESS)
  set(attn_programs attnbench)
  if(TARGET attnbench_gbench)
    list(APPEND attn_programs attnbench_gbench)
  endif()
  install(TARGETS ${attn_programs} RUNTIME COMPONENT tools)
  if(TARGET attnbench_mpi)
    install(TARGETS attnbench_mpi EXCLUDE_FROM_ALL RUNTIME COMPONENT mpi)
  endif()
  # `attnbench plot` and `report` look in ../share/attn of their own folder (harness/commands/scripts.c).
  cmake_path(SET attn_scripts NORMALIZE ${CMAKE_INSTALL_BINDIR}/../share/attn)
  install(FILES scripts/plot.py scripts/report.py scripts/requirements.txt DESTINATION ${attn_scripts} COMPONENT tools)
  install(DIRECTORY scripts/plotting scripts/reporting DESTINATION ${attn_scripts} COMPONENT tools
          FILES_MATCHING PATTERN "*.py" PATTERN "*.css" PATTERN "*.js" PATTERN __pycache__ EXCLUDE)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/scripts ${PROJECT_BINARY_DIR}/share/attn SYMBOLIC)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools OPTIONAL)
  install(FILES packaging/attnbench.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME attnbench
          COMPONENT tools)
endif()

# Targets attn::shared, attn::static, attn::nn_shared, attn::nn_static; attnConfig.cmake adds attn::attn and attn::nn.
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_config_dir} COMPONENT development)
configure_package_config_file(cmake/attnConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/attnConfig.cmake
                              INSTALL_DESTINATION ${attn_config_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake COMPATIBILITY SameMajorVersion)
set(attn_find_modules ${ATTN_LIBRARIES})
list(TRANSFORM attn_find_modules REPLACE "(.+)" "cmake/FindAttn\\1.cmake")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake
              ${attn_find_modules}
        DESTINATION ${attn_config_dir} COMPONENT development)

# attn.pc finds its prefix from its own place, so that the tree can be moved.
file(RELATIVE_PATH attn_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" attn_pc_to_prefix "${attn_pc_to_prefix}")
set(attn_pc_private -lm)
list(TRANSFORM ATTN_OPENMP_LIBRARIES REPLACE "^([^/]+)$" "-l\\1" OUTPUT_VARIABLE attn_pc_openmp)
list(APPEND attn_pc_private ${attn_pc_openmp} ${ATTN_LIBRARY_PC})
list(JOIN attn_pc_private " " attn_pc_private)
foreach(name attn attn_nn)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attn.pc ${CMAKE_CURRENT_BINARY_DIR}/attn_nn.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# The target `uninstall` removes what `cmake --install` wrote last.
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_CURRENT_BINARY_DIR}
                                      -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/AttnUninstall.cmake VERBATIM)
endif()

if(PROJECT_IS_TOP_LEVEL)
  include(AttnPackages)
endif()
