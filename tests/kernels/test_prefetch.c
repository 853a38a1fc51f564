/* SPDX-License-Identifier: MIT */
/* The lines of K and V that prefetch.h leads to over dense keys, against the order in which decode reads them. */
#include <stdint.h>
#include <string.h>

static void record(uintptr_t at);
#define __builtin_prefetch(at, ...) record((uintptr_t)(at)) /* NOLINT: this is what the test looks at */
#include "kernels/common/memory/prefetch.h"
#include "tests/support/support.h"

enum { KEYS = 32, BLOCKS = 24, SETTLED = 6, MOST_LINES = BLOCKS * KEYS * 32 };

/* Lines of K and V from address 0 and V_AT on: how often they were prefetched, and how often before their use. */
static const uintptr_t V_AT = (uintptr_t)1 << 30;
static struct {
  int prefetched[2][MOST_LINES], in_time[2][MOST_LINES];
  uintptr_t read[2]; /* up to where loops have read */
} seen;

static void record(uintptr_t at) {
  const int of_v = at >= V_AT;
  const uintptr_t line = (at - (of_v ? V_AT : 0)) / LINE_BYTES;
  if (line >= MOST_LINES) return;
  seen.prefetched[of_v][line]++;
  seen.in_time[of_v][line] += line * LINE_BYTES >= seen.read[of_v];
}

/* Reads all blocks of rows of so many bytes as decode does: K, of which each pair of lines calls for one of both tensors,
 * then V likewise. */
static void read_blocks(int64_t row_bytes, prefetch_policy policy, bool nearer, int pairs) {
  memset(&seen, 0, sizeof seen);
  const line_rows k = {NULL, row_bytes, row_bytes, LINE_BYTES};
  const line_rows v = {(const void *)V_AT, row_bytes, row_bytes, LINE_BYTES}; /* NOLINT: no memory */
  prefetch_lines next = prefetch_of(k, v, KEYS, policy, nearer);
  const uintptr_t step = (uintptr_t)pairs * 2 * LINE_BYTES, block = (uintptr_t)(KEYS * row_bytes);
  for (int b = 0; b < BLOCKS; b++)
    for (int of_v = 0; of_v < 2; of_v++)
      for (uintptr_t done = 0; done < block; done += step) {
        prefetch_ahead(&next, policy, false, pairs, LINE_BYTES, of_v ? &next.k_again : &next.v_again);
        seen.read[of_v] += step;
      }
}

static void expect_times(int64_t row_bytes, prefetch_policy policy, bool nearer, int times) {
  for (int pairs = 1; pairs <= 2; pairs++) {
    read_blocks(row_bytes, policy, nearer, pairs);
    const int64_t of_block = KEYS * row_bytes / LINE_BYTES;
    for (int of_v = 0; of_v < 2; of_v++)
      for (int64_t line = SETTLED * of_block; line < (BLOCKS - SETTLED) * of_block; line++) {
        assert_int_equal(seen.prefetched[of_v][line], times);
        assert_int_equal(seen.in_time[of_v][line], times);
      }
  }
}

static void each_line_is_prefetched_before_its_use(void **state) {
  (void)state;
  for (int64_t row_bytes = 128; row_bytes <= 2048; row_bytes *= 2) {
    expect_times(row_bytes, PREFETCH_ONCE, false, 1);
    expect_times(row_bytes, PREFETCH_TWICE, false, 2);
  }
  for (int64_t row_bytes = 384; row_bytes <= 512; row_bytes += 64) expect_times(row_bytes, PREFETCH_TWICE, true, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_line_is_prefetched_before_its_use)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
