# SPDX-License-Identifier: MIT
# attn_warnings: an interface target with the warnings, sanitizers and language flags that every target shares.
add_library(attn_warnings INTERFACE)
target_compile_options(attn_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
                                               -Wpointer-arith -Wvla -Wundef $<$<BOOL:${ATTN_WERROR}>:-Werror>)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES) # part of a project that chooses none
  target_compile_options(attn_warnings INTERFACE -O3)
endif()
if(ATTN_SANITIZE)
  target_compile_options(attn_warnings INTERFACE -fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer -g)
  target_link_options(attn_warnings INTERFACE -fsanitize=${ATTN_SANITIZE})
endif()
