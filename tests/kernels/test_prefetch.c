/* SPDX-License-Identifier: MIT */
/* The lines of K and V that prefetch.h leads to over dense keys, and decode over pages, against the order in which decode
 * reads them. */
#ifndef ATTN_FEW_INLINED
#define ATTN_FEW_INLINED /* all of decode compiles in a tenth of the time, and prefetches the same lines */
#endif
#include <stdint.h>
#include <string.h>

void record(uintptr_t at); /* not static: headers of the compiler have it in inline functions */
#define __builtin_prefetch(at, ...) record((uintptr_t)(at)) /* NOLINT: this is what the test looks at */
#include "kernels/portable/decode_portable.c" /* NOLINT(bugprone-suspicious-include): in place of the library's */
#include "tests/support/support.h"

enum { KEYS = 32, BLOCKS = 24, SETTLED = 6, MOST_LINES = BLOCKS * KEYS * 32 };

/* Lines of K and V from address 0 and V_AT on: how often they were prefetched, and how often before their use. */
static const uintptr_t V_AT = (uintptr_t)1 << 30;
static struct {
  int prefetched[2][MOST_LINES], in_time[2][MOST_LINES];
  uintptr_t read[2]; /* up to where loops have read */
} seen;

static void record_dense(uintptr_t at) {
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

/* ---- Pages ---- */

enum { TOKENS = 16, PAGES = 64, HEADS = 2, DIM = 64 };
static struct {
  const char *begin;     /* K or V: [PAGES][HEADS][TOKENS][DIM] */
  int64_t bytes, of_run; /* in all, and in a head's keys in a page */
  int lines[1 << 15];    /* how often each was prefetched */
} watched[2];

void record(uintptr_t at) {
  if (!watched[0].begin) {
    record_dense(at);
    return;
  }
  for (int i = 0; i < 2; i++) {
    const int64_t place = (int64_t)(at - (uintptr_t)watched[i].begin);
    if (place < 0 || place >= watched[i].bytes) continue;
    watched[i].lines[place / LINE_BYTES]++;
  }
}

/* Streams do not take these types with factors, or at all: blocks of keys are computed one by one. */
static void runs_of_pages_are_prefetched_where_they_lie(void **state) {
  static const attn_dtype types[] = {ATTN_BF16, ATTN_F8_E4M3};
  static const float one = 1;
  static int32_t table[PAGES];
  static float q[HEADS * 4 * DIM], o[HEADS * 4 * DIM];
  (void)state;
  for (int t = 0; t < 2; t++) {
    attn_problem p;
    attn_problem_init(&p, 1, HEADS * 4, HEADS, 1, TOKENS * PAGES, DIM, DIM);
    attn_problem_set_pages(&p, TOKENS, PAGES);
    p.dtype_kv = types[t];
    p.uses |= ATTN_USE_KV_SCALES;
    const int64_t size = attn_elements_bytes(types[t], HEADS * TOKENS * PAGES * DIM);
    char *kv[2];
    for (int i = 0; i < 2; i++) {
      kv[i] = aligned_alloc(4096, (size_t)size);
      assert_non_null(kv[i]);
      memset(kv[i], 0, (size_t)size);
      memset(&watched[i], 0, sizeof watched[i]);
      watched[i].begin = kv[i], watched[i].bytes = size, watched[i].of_run = size / HEADS / PAGES;
    }
    for (int i = 0; i < PAGES; i++) table[i] = i * 27 % PAGES;
    assert_true(size / LINE_BYTES <= (int64_t)COUNT(watched[0].lines));
    const int32_t kv_len = TOKENS * PAGES;
    attn_plan *plan;
    const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = kv[0], .v = kv[1], .o = o, .page_table = table,
                                       .kv_len = &kv_len, .k_scale = &one, .v_scale = &one);
    test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = "decode_portable", .threads = 1), &plan));
    void *workspace = aligned_alloc(64, (attn_plan_workspace(plan) + 63) / 64 * 64);
    assert_non_null(workspace);
    test_ok(attn_plan_run(plan, &args, workspace, attn_plan_workspace(plan)));
    free(workspace);
    attn_plan_destroy(plan);
    int64_t missed = 0, again = 0, lines = 0;
    for (int i = 0; i < 2; i++)
      for (int64_t n = 4; n < PAGES; n++) /* behind the first blocks */
        for (int64_t h = 0; h < HEADS; h++)
          for (int64_t line = 0; line < watched[i].of_run / LINE_BYTES; line++, lines++) {
            const int times = watched[i].lines[(table[n] * HEADS + h) * watched[i].of_run / LINE_BYTES + line];
            missed += times == 0;
            again += times > 1;
          }
    assert_in_range(missed, 0, lines / 50);
    assert_in_range(again, 0, lines / 32); /* behind the last keys */
    for (int i = 0; i < 2; i++) free(kv[i]), watched[i].begin = NULL;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_line_is_prefetched_before_its_use),
                                     cmocka_unit_test(runs_of_pages_are_prefetched_where_they_lie)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
