# SPDX-License-Identifier: MIT
# libattn's plug-ins, for each of ATTN_PLUGINS: libattn_<plug-in>.so beside libattn.so, and installed in a folder of its own
# beside it, which carries the version of libattn's ABI. Their one exported symbol is attn_plugin_entry. They do not link
# libattn: what they need of it the library hands to them (attn/kernel.h), so that they work with libattn.so and libattn.a.
set(ATTN_PLUGIN_SUBFOLDER attn-${PROJECT_VERSION_MAJOR})
set(ATTN_PLUGIN_TARGETS "")
file(CONFIGURE OUTPUT ${ATTN_GENERATED_DIR}/plugin_folders.h CONTENT [[
/* Where src/registry/plugin.c looks for plug-ins: in a folder beside the library, and in that of the installation. */
#define ATTN_PLUGIN_SUBFOLDER "@ATTN_PLUGIN_SUBFOLDER@"
#define ATTN_PLUGIN_FOLDER    "@CMAKE_INSTALL_FULL_LIBDIR@/@ATTN_PLUGIN_SUBFOLDER@"
]] @ONLY)

# attn_kernel_objects(NAME SOURCE...): an object library, built as all code of libattn.
function(attn_kernel_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR} ${ATTN_GENERATED_DIR})
  target_compile_definitions(${name} PRIVATE _POSIX_C_SOURCE=200809L
                                             $<$<BOOL:${ATTN_EMULATE_AVX512}>:ATTN_EMULATE_AVX512>)
  # Contraction would let the compiler fuse differently in two copies of one loop, and bits would depend on tile position.
  target_compile_options(${name} PRIVATE -fvisibility=hidden -ffp-contract=off -fno-math-errno)
  # Programs run the library in threads with small stacks. Sanitizers and -O0 need larger frames.
  if(NOT ATTN_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(${name} PRIVATE -Wframe-larger-than=20480)
  endif()
  target_link_libraries(${name} PRIVATE attn_warnings ${ATTN_OPENMP_TARGET})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# Objects that plug-ins share with libattn: each plug-in has its own copy of those that it calls.
attn_kernel_objects(attn_plugin_objects kernels/plugin/host.c kernels/library/composed.c kernels/common/problem/exact_row.c)
add_library(attn_plugin_parts STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:attn_plugin_objects>)

foreach(plugin IN LISTS ATTN_PLUGINS)
  attn_kernel_objects(attn_${plugin}_objects ${plugin_sources_${plugin}})
  target_link_libraries(attn_${plugin}_objects PRIVATE attn::${plugin})
  if(ATTN_STATIC_BACKENDS)
    continue()
  endif()
  add_library(attn_${plugin} MODULE kernels/plugin/entry.c $<TARGET_OBJECTS:attn_${plugin}_objects>)
  target_include_directories(attn_${plugin} PRIVATE include . ${ATTN_GENERATED_DIR}/plugin_${plugin})
  target_compile_options(attn_${plugin} PRIVATE -fvisibility=hidden)
  target_link_libraries(attn_${plugin} PRIVATE attn_plugin_parts attn::${plugin} ${ATTN_OPENMP_TARGET} m attn_warnings)
  if(NOT ATTN_SANITIZE) # its runtime is linked into the program
    target_link_options(attn_${plugin} PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(attn_${plugin} PROPERTIES PREFIX lib)
  list(APPEND ATTN_PLUGIN_TARGETS attn_${plugin})
endforeach()

# oneDNN's C API throws C++ exceptions where memory is short; kernels/onednn/guard.cpp catches them, if it can be compiled.
if(TARGET attn_onednn AND NOT ATTN_STATIC_BACKENDS)
  attn_find_cxx(has_cxx)
  if(has_cxx)
    enable_language(CXX)
    add_library(attn_onednn_guard OBJECT kernels/onednn/guard.cpp)
    target_compile_options(attn_onednn_guard PRIVATE -fvisibility=hidden)
    target_link_libraries(attn_onednn_guard PRIVATE attn::onednn)
    set_target_properties(attn_onednn_guard PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(attn_onednn PRIVATE $<TARGET_OBJECTS:attn_onednn_guard>)
    set_target_properties(attn_onednn PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endif()

# attn_finds_plugins(PROGRAM): builds the plug-ins with it; it finds them in the build tree and where both are installed.
file(RELATIVE_PATH attn_programs_to_plugins /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR}/${ATTN_PLUGIN_SUBFOLDER})
function(attn_finds_plugins program)
  if(ATTN_PLUGIN_TARGETS)
    add_dependencies(${program} ${ATTN_PLUGIN_TARGETS})
  endif()
  set_target_properties(${program} PROPERTIES BUILD_RPATH $<TARGET_FILE_DIR:attn_shared>
                                              INSTALL_RPATH $ORIGIN/${attn_programs_to_plugins})
  if(ATTN_SANITIZE) # libasan calls dlopen in the program's place, and then the loader reads the program's RPATH only
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endif()
endfunction()
