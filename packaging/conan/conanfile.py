# SPDX-License-Identifier: MIT
"""Conan 2 recipe, which packs the sources that it lies in: `conan create packaging/conan`."""
from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy

SOURCES = ["CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "kernels/*", "harness/*", "docs/*",
           "packaging/attnbench.bash", "scripts/*"]


# ruff: noqa: RUF012 (Conan reads these from the class)
class Attn(ConanFile):
    name = "attn"
    version = "0.1.0"
    license = "MIT"
    description = "Attention kernels for CPUs"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "tools": [True, False], "max_isa": ["ANY"]}
    default_options = {"shared": True, "fPIC": True, "tools": False, "max_isa": ""}
    languages = "C"
    implements = ["auto_shared_fpic"]

    def export_sources(self):
        root = Path(self.recipe_folder).parent.parent
        for pattern in SOURCES:
            copy(self, pattern, str(root), self.export_sources_folder)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({f"ATTN_{name}": "OFF" for name in (
            "BUILD_TESTS", "BUILD_EXAMPLES", "GBENCH", "OPENBLAS", "ONEDNN", "HWLOC")})
        toolchain.cache_variables["ATTN_BUILD_HARNESS"] = bool(self.options.tools)
        toolchain.cache_variables["ATTN_MAX_ISA"] = str(self.options.max_isa)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")  # its own attnConfig.cmake
        self.cpp_info.builddirs = ["lib/cmake/attn"]
        self.cpp_info.libs = ["attn_nn", "attn"]
        if self.settings.os == "Linux":
            self.cpp_info.system_libs = ["m"] if self.options.shared else ["m", "dl", "gomp", "pthread"]
