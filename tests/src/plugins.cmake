# SPDX-License-Identifier: MIT
# Plug-ins: tests/CMakeLists.txt includes this file. One shared object for each thing that attn_load_kernels() refuses.
set(plugin_folder ${CMAKE_CURRENT_BINARY_DIR}/plugins)
set(refused_plugins "")
foreach(wrong NOTHING ENTRY ABI SIZE NAME TAKEN TWICE TIER MEMBER START VERSION COUNT GROWN NEWER)
  string(TOLOWER ${wrong} name)
  list(LENGTH refused_plugins number)
  add_library(plugin_${name} MODULE src/plugins/refused.c)
  target_compile_definitions(plugin_${name} PRIVATE WRONG=${number})
  target_include_directories(plugin_${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(plugin_${name} PRIVATE attn_warnings)
  set_target_properties(plugin_${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${plugin_folder}
                                                  C_VISIBILITY_PRESET hidden)
  list(APPEND refused_plugins plugin_${name})
endforeach()

if(TARGET test_load)
  target_compile_definitions(test_load PRIVATE PLUGIN_FOLDER="${plugin_folder}"
                             PLUGIN_SUFFIX="${CMAKE_SHARED_MODULE_SUFFIX}")
  add_dependencies(test_load ${refused_plugins})
endif()

add_executable(plugin_client src/plugins/client.c)
target_compile_definitions(plugin_client PRIVATE _POSIX_C_SOURCE=200809L)
target_link_libraries(plugin_client PRIVATE attn_shared attn_warnings Threads::Threads)
add_dependencies(plugin_client ${refused_plugins} ${ATTN_PLUGIN_TARGETS})
set(plugin_tests "")
if(ATTN_STATIC_BACKENDS) # then libattn has no plug-ins of its own
  set(plugin_tests Refused Loaded OwnKernel)
endif()
# Under ThreadSanitizer (scripts/test.sh, stage races) this is the test of the lock around loading.
add_labelled(plugins_race "unit" plugin_client race ${plugin_folder}/plugin_nothing.so)
set_tests_properties(plugins_race PROPERTIES PASS_REGULAR_EXPRESSION "^ATTN_OK" FAIL_REGULAR_EXPRESSION "ThreadSanitizer")
add_python_test(plugins src/test_plugins.py $<TARGET_FILE:plugin_client> $<TARGET_FILE:attn_shared> ${plugin_folder}
                $<TARGET_FILE:attnbench> ${CMAKE_C_COMPILER} ${plugin_tests})
