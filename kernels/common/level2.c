/* SPDX-License-Identifier: MIT */
#include "level2.h"

#include <stdatomic.h>
#ifdef __linux__
#include <unistd.h>
#endif

static int64_t ask(void) {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 0;
#else
  return 0;
#endif
}

int64_t attn_level2_bytes(void) {
  static _Atomic int64_t cached; /* bytes + 1 */
  int64_t bytes = atomic_load(&cached);
  if (!bytes) {
    bytes = ask() + 1;
    atomic_store(&cached, bytes);
  }
  return bytes - 1;
}
