# SPDX-License-Identifier: MIT
# attn_warnings: an interface target with the warnings, sanitizers and language flags that every target shares.
add_library(attn_warnings INTERFACE)
target_compile_options(attn_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
                                               -Wpointer-arith -Wvla -Wundef $<$<BOOL:${ATTN_WERROR}>:-Werror>)
# Enumerators without a type are integer constants here; clang 19 warns where they meet floating-point numbers.
target_compile_options(attn_warnings INTERFACE $<$<C_COMPILER_ID:Clang>:-Wno-enum-float-conversion>)
if(WIN32) # printf as in C11. Other builds check its formats, of which this compiler knows those of Microsoft.
  target_compile_definitions(attn_warnings INTERFACE __USE_MINGW_ANSI_STDIO=1)
  target_compile_options(attn_warnings INTERFACE -Wno-format -Wno-format-extra-args
                                                 -Wno-float-conversion) # of its isfinite()
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # The stack of Windows is aligned to 16 bytes. gcc spills wider vectors by moves that fault there (gcc bug 54412).
    target_compile_options(attn_warnings INTERFACE -Wa,-muse-unaligned-vector-move)
  endif()
endif()
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "s390") # C11 there computes floats in double
  target_compile_options(attn_warnings INTERFACE -fexcess-precision=fast)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES) # part of a project that chooses none
  target_compile_options(attn_warnings INTERFACE -O3)
endif()
if(ATTN_SANITIZE OR ATTN_EMULATE_AVX512 OR ATTN_FEW_INLINED)
  target_compile_definitions(attn_warnings INTERFACE ATTN_FEW_INLINED)
  # Loops whose length only inlining tells are not unrolled.
  target_compile_options(attn_warnings INTERFACE $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>)
endif()
if(ATTN_SANITIZE)
  target_compile_options(attn_warnings INTERFACE -fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer -g1)
  target_link_options(attn_warnings INTERFACE -fsanitize=${ATTN_SANITIZE})
endif()
