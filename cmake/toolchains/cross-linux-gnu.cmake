# SPDX-License-Identifier: MIT
# Cross-builds for CPUs whose best tier is `portable`, with Debian's compilers; the tests run under qemu-user. ATTN_CROSS is
# riscv64, powerpc64le, s390x or loongarch64.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTN_CROSS)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${ATTN_CROSS})
set(CMAKE_C_COMPILER ${ATTN_CROSS}-linux-gnu-gcc)
string(REPLACE powerpc64 ppc64 attn_qemu qemu-${ATTN_CROSS})
set(CMAKE_CROSSCOMPILING_EMULATOR ${attn_qemu} -L /usr/${ATTN_CROSS}-linux-gnu)
# Programs come from the host; headers, libraries and packages only from the target.
set(CMAKE_FIND_ROOT_PATH /usr/${ATTN_CROSS}-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
