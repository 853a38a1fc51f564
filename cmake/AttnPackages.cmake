# SPDX-License-Identifier: MIT
# Packages by `cpack -G DEB` in the build folder: one for each install component. packaging/check_deb.sh makes and checks
# them.
set(attn_soversion ${PROJECT_VERSION_MAJOR})
set(attn_package_runtime libattn${attn_soversion})
set(attn_package_development libattn-dev)
set(attn_package_tools attnbench)
foreach(plugin IN LISTS ATTN_PLUGINS)
  set(attn_package_plugin_${plugin} libattn${attn_soversion}-${plugin})
endforeach()
list(TRANSFORM ATTN_PLUGINS PREPEND plugin_ OUTPUT_VARIABLE attn_plugin_components)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME attn)
set(CPACK_PACKAGE_VENDOR "attn")
set(CPACK_PACKAGE_CONTACT "attn maintainers <attn@users.noreply.github.com>")
set(CPACK_PACKAGE_HOMEPAGE_URL "https://github.com/attn/attn")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_COMPONENTS_ALL runtime development tools ${attn_plugin_components})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                                                WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
# Control files of libattn0; CPack adds scripts that call ldconfig.
set(attn_own_version "${attn_package_runtime} (= ${PROJECT_VERSION}-1)")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs "libattn ${attn_soversion} ${attn_own_version}\n"
                                               "libattn_nn ${attn_soversion} ${attn_own_version}\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers ${PROJECT_BINARY_DIR}/debian/shlibs)

# attn_package(COMPONENT SECTION DEPENDS SUMMARY DESCRIPTION): CPack's variables, and the files that Debian asks for.
function(attn_package component section depends summary description)
  set(package ${attn_package_${component}})
  string(TOUPPER ${component} COMPONENT)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${COMPONENT}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${COMPONENT}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package})
  install(FILES ${PROJECT_BINARY_DIR}/debian/copyright ${PROJECT_BINARY_DIR}/debian/changelog.Debian.gz
          DESTINATION ${doc} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

attn_package(runtime libs "" "attention kernels for CPUs (shared library)"
  "Scaled dot-product attention in plain C, AVX2, AVX-512, AMX and NEON;\none interface picks a kernel at run time.")
attn_package(development libdevel "${attn_own_version}" "attention kernels for CPUs (development files)"
  "Headers, static libraries, CMake package and pkg-config files of libattn.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "python3-matplotlib") # attnbench plot and report
attn_package(tools science "" "benchmark of attention kernels on CPUs"
  "Compares every kernel of libattn with a float64 oracle and times what\npasses, as a share of the CPU's peak.")
foreach(plugin IN LISTS ATTN_PLUGINS)
  attn_package(plugin_${plugin} libs "${attn_own_version}" "attention kernels for CPUs (kernels on ${plugin})"
    "A plug-in of libattn, which programs load by attn_load_kernels\nand attnbench loads by itself.")
endforeach()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)

# Debian's copyright file and changelog.
file(READ ${PROJECT_SOURCE_DIR}/LICENSE attn_license)
string(REGEX REPLACE "\n\n" "\n.\n" attn_license "${attn_license}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" attn_license "${attn_license}")
file(WRITE ${PROJECT_BINARY_DIR}/debian/copyright
  "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: attn\n\n"
  "Files: *\nCopyright: the contributors of attn\nLicense: Expat\n ${attn_license}")
string(TIMESTAMP attn_date "%a, %d %b %Y 00:00:00 +0000" UTC)
file(WRITE ${PROJECT_BINARY_DIR}/debian/changelog "attn (${PROJECT_VERSION}-1) unstable; urgency=medium\n\n"
  "  * See CHANGELOG.md in the sources.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${attn_date}\n")
find_program(ATTN_GZIP gzip)
if(ATTN_GZIP)
  execute_process(COMMAND ${ATTN_GZIP} -9nkfc ${PROJECT_BINARY_DIR}/debian/changelog
                  OUTPUT_FILE ${PROJECT_BINARY_DIR}/debian/changelog.Debian.gz)
endif()
include(CPack)
