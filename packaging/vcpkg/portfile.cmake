# SPDX-License-Identifier: MIT
# vcpkg port. SHA512 is that of a release's source archive.
vcpkg_from_github(OUT_SOURCE_PATH SOURCE_PATH REPO attn/attn REF v${VERSION} SHA512 0 HEAD_REF main)
vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES tools ATTN_BUILD_HARNESS)
vcpkg_cmake_configure(SOURCE_PATH ${SOURCE_PATH}
                      OPTIONS ${FEATURE_OPTIONS} -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DATTN_GBENCH=OFF
                              -DATTN_OPENBLAS=OFF -DATTN_ONEDNN=OFF -DATTN_HWLOC=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/attn)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES attnbench AUTO_CLEAN)
endif()
file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/debug/include ${CURRENT_PACKAGES_DIR}/debug/share)
vcpkg_install_copyright(FILE_LIST ${SOURCE_PATH}/LICENSE)
