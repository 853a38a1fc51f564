# SPDX-License-Identifier: MIT
# What happens when the system does not give what is asked for: tests/CMakeLists.txt includes this file.
add_executable(fault_memory fault_memory.c)
target_compile_definitions(fault_memory PRIVATE _GNU_SOURCE)
target_link_libraries(fault_memory PRIVATE attnbench_core attn_warnings)
foreach(function malloc calloc realloc aligned_alloc strdup free)
  target_link_options(fault_memory PRIVATE -Wl,--wrap=${function})
endforeach()
add_labelled(fault_memory "unit;sanitize" fault_memory 10)
add_labelled(fault_memory_every "long" fault_memory)
