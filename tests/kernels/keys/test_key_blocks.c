/* SPDX-License-Identifier: MIT */
/* Lists of key blocks (ATTN_USE_KEY_BLOCKS, ATTN_USE_FULL_KEY_BLOCKS), and masks of the newest keys (mask_keys): every
 * kernel that takes them gives the bits of the call with a bool mask that says the same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/operation.h"
#include "tests/support/support.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, DIM = 24, MOST_DIM = 64, PAGE = 16 };
enum { MOST_QUERIES = 150, MOST_KEYS = 2200, ROUNDS = 48 };
enum { MOST_LISTS = BATCH * KV_HEADS * (MOST_QUERIES / 16 + 1), MOST_ENTRIES = MOST_KEYS / 64 + 1 };
enum { MOST_ROWS = BATCH * HEADS * MOST_QUERIES, ROOM = BATCH * KV_HEADS * (MOST_KEYS + PAGE) * MOST_DIM };

static uint32_t random_state;
static int64_t below(int64_t count) {
  random_state = random_state * 1664525u + 1013904223u;
  return (int64_t)(random_state >> 8) % count;
}

/* Rounds have one of three layouts, and lists or none: few of them still meet each. */
static int round_step(void) { return test_few() ? 5 : 1; }

typedef struct world {
  attn_problem listed, masked;
  attn_args args; /* without lists, mask and outputs */
  int32_t counts[2][MOST_LISTS], entries[2][MOST_LISTS * MOST_ENTRIES], table[BATCH * (MOST_KEYS / PAGE + 1)];
  int32_t kv_len[BATCH];
  uint8_t given[MOST_ROWS * (MOST_KEYS + 70)], dense[MOST_ROWS * MOST_KEYS];
  float q[ROOM], k[ROOM], v[ROOM], sinks[HEADS], slopes[HEADS];
  uint16_t narrow[3][ROOM]; /* q, k and v in bf16 */
  float right[MOST_ROWS * (MOST_DIM + 1)], got[MOST_ROWS * (MOST_DIM + 1)];
} world;

static void choose_problem(world *w, int round) {
  static const int64_t queries[] = {1, 3, 4, 5, 40, 97, MOST_QUERIES}, rows[] = {16, 48, 128, 256}, keys[] = {64, 128, 192};
  attn_problem *p = &w->listed;
  const int64_t dim = below(2) ? DIM : MOST_DIM;
  attn_problem_init(p, BATCH, HEADS, KV_HEADS, queries[below(7)], 1 + below(below(2) ? MOST_KEYS : 700), dim, dim);
  p->uses |= ATTN_USE_LSE;
  if (below(3) == 0) attn_problem_set_causal(p, ATTN_ALIGN_BOTTOM_RIGHT);
  if (below(4) == 0) p->window_left = 100;
  if (below(4) == 0) p->softcap = 5;
  if (below(4) == 0) p->uses |= ATTN_USE_SINKS;
  if (below(4) == 0) p->uses |= ATTN_USE_ALIBI;
  if (below(2)) p->uses |= ATTN_USE_MASK;
  if (round % 3 == 1) attn_problem_set_bshd(p);
  if (round % 3 == 2) attn_problem_set_pages(p, PAGE, BATCH * ((p->seq_k - 1) / PAGE + 1));
  w->masked = *p;
  w->masked.uses |= ATTN_USE_MASK;
  attn_problem_set_key_blocks(p, rows[below(4)], keys[below(3)]);
  p->uses |= ATTN_USE_FULL_KEY_BLOCKS;
  if (below(4) == 0) p->kv_num_blocks_stride.h = p->kv_indices_stride.h = 0;
}

/* Lists in any order, sometimes with a block twice, and behind them what names no block. */
static void choose_lists(world *w) {
  const int64_t blocks = w->listed.kv_indices_stride.s;
  memset(w->entries, 0xff, sizeof w->entries);
  for (int full = 0; full < 2; full++)
    for (int64_t n = 0; n < MOST_LISTS; n++) {
      w->counts[full][n] = (int32_t)below(blocks + 1);
      for (int64_t i = 0; i < w->counts[full][n]; i++) w->entries[full][n * blocks + i] = (int32_t)below(blocks);
    }
}

/* Marks the blocks of keys that the list of query i names. */
static void mark_listed(const world *w, int full, int64_t b, int64_t h, int64_t i, bool listed[MOST_ENTRIES]) {
  const attn_problem *p = &w->listed;
  const attn_strides *n = &p->kv_num_blocks_stride, *entry = &p->kv_indices_stride;
  const int64_t kv = h / (HEADS / KV_HEADS), list = i / p->block_queries;
  const int32_t *at = w->entries[full] + b * entry->b + kv * entry->h + list * entry->s;
  memset(listed, 0, MOST_ENTRIES * sizeof *listed);
  for (int32_t left = w->counts[full][b * n->b + kv * n->h + list * n->s]; left > 0; left--) listed[*at++] = true;
}

/* The mask that says what lists and given mask say. */
static void choose_masks(world *w) {
  const attn_problem *p = &w->listed;
  const bool given = attn_uses(p, ATTN_USE_MASK);
  for (int64_t row = 0; row < BATCH * HEADS * p->seq_q; row++) {
    const int64_t i = row % p->seq_q, h = row / p->seq_q % HEADS, b = row / p->seq_q / HEADS;
    bool partly[MOST_ENTRIES], fully[MOST_ENTRIES];
    mark_listed(w, 0, b, h, i, partly);
    mark_listed(w, 1, b, h, i, fully);
    for (int64_t j = 0, n = row * p->seq_k; j < p->seq_k; j++, n++) {
      const int64_t block = j / p->block_keys;
      w->given[n] = (uint8_t)below(3);
      w->dense[n] = fully[block] || (partly[block] && (!given || w->given[n]));
    }
  }
}

static void round_tensors(world *w) {
  const float *wide[] = {w->q, w->k, w->v};
  for (int n = 0; n < 3; n++)
    for (int64_t i = 0; i < ROOM; i++) attn_store_f32(w->narrow[n], ATTN_BF16, i, wide[n][i]);
}

static world *new_world(void) {
  world *w = test_allocate(sizeof *w);
  test_fill(w->q, ROOM, 1), test_fill(w->k, ROOM, 2), test_fill(w->v, ROOM, 3);
  test_fill(w->sinks, HEADS, 4), test_fill(w->slopes, HEADS, 5);
  round_tensors(w);
  return w;
}

/* A bf16 kernel's world. */
static void narrow_inputs(world *w) {
  w->listed.dtype_q = w->listed.dtype_kv = w->masked.dtype_q = w->masked.dtype_kv = ATTN_BF16;
  w->args.q = w->narrow[0], w->args.k = w->narrow[1], w->args.v = w->narrow[2];
}

static void make_world(world *w, int round) {
  random_state = (uint32_t)round + 1;
  choose_problem(w, round);
  choose_lists(w);
  choose_masks(w);
  const attn_problem *p = &w->listed;
  for (int b = 0; b < BATCH; b++) w->kv_len[b] = (int32_t)(p->seq_k - b * p->seq_k / 3);
  const int64_t pages = BATCH * ((p->seq_k - 1) / PAGE + 1);
  for (int64_t n = 0; n < pages; n++) w->table[n] = (int32_t)(pages - 1 - n);
  w->args = ATTN_STRUCT(attn_args, .q = w->q, .k = w->k, .v = w->v);
  if (attn_uses(p, ATTN_USE_SINKS)) w->args.sinks = w->sinks;
  if (attn_uses(p, ATTN_USE_ALIBI)) w->args.alibi_slopes = w->slopes;
  if (attn_uses(p, ATTN_USE_PAGES)) w->args.kv_len = w->kv_len, w->args.page_table = w->table;
}

/* The outputs of a call: O, then LSE. Returns false if the kernel refuses the problem. */
static bool outputs_of(const attn_problem *p, attn_args args, const char *kernel, float *to) {
  args.o = to;
  args.lse = to + p->batch * p->heads_q * p->seq_q * p->dim_v;
  const attn_status status = test_run(p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1));
  if (status == ATTN_UNSUPPORTED) return false;
  test_ok(status);
  return true;
}

static attn_args with_lists(const world *w) {
  attn_args args = w->args;
  args.kv_num_blocks = w->counts[0], args.kv_indices = w->entries[0];
  args.full_kv_num_blocks = w->counts[1], args.full_kv_indices = w->entries[1];
  return args;
}

static void compare_outputs(const world *w, const char *kernel, int round) {
  const int64_t numbers = BATCH * HEADS * w->listed.seq_q * (w->listed.dim_v + 1);
  for (int64_t n = 0; n < numbers; n++) { /* sums that start later may give a zero another sign */
    if (w->got[n] == 0 && w->right[n] == 0) continue;
    if (memcmp(&w->got[n], &w->right[n], sizeof(float)))
      fail_msg("%s, round %d, number %lld: %.9g, %.9g by a whole mask", kernel, round, (long long)n, (double)w->got[n],
               (double)w->right[n]);
  }
}

static bool listed_outputs(world *w, const char *kernel) {
  attn_args args = with_lists(w);
  if (attn_uses(&w->listed, ATTN_USE_MASK)) args.mask = w->given;
  return outputs_of(&w->listed, args, kernel, w->got);
}

static const char *rejection_of(const char *kernel, bool lists, attn_dtype dtype) {
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV_HEADS, 4, 64, DIM, DIM);
  p.dtype_q = p.dtype_kv = dtype;
  if (lists) attn_problem_set_key_blocks(&p, 16, 64);
  return attn_kernel_rejects(attn_kernel_find(kernel), &p);
}

static bool needs_bf16(const char *kernel) { return rejection_of(kernel, false, ATTN_F32); }

static bool takes_lists(const char *kernel) {
  return !rejection_of(kernel, true, needs_bf16(kernel) ? ATTN_BF16 : ATTN_F32);
}

static void compare_round(world *w, const char *kernel, int round) {
  make_world(w, round);
  if (needs_bf16(kernel)) narrow_inputs(w);
  attn_args args = w->args;
  args.mask = w->dense;
  if (!outputs_of(&w->masked, args, kernel, w->right)) return;
  assert_true(listed_outputs(w, kernel));
  compare_outputs(w, kernel, round);
}
static void lists_give_the_bits_of_a_mask(const char *kernel) {
  if (!takes_lists(kernel)) return;
  world *w = new_world();
  for (int round = 0; round < ROUNDS; round += round_step()) compare_round(w, kernel, round);
  free(w);
}
KERNEL_TEST(lists_give_the_bits_of_a_mask)

/* A mask of the newest keys, with lists or without, gives the bits of one of all keys that says the same. */
static void compare_newest(world *w, const char *kernel, int round) {
  make_world(w, round);
  attn_problem *p = &w->listed;
  p->uses |= ATTN_USE_MASK;
  if (round % 2 || !takes_lists(kernel)) p->uses &= ~(uint32_t)(ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS);
  if (needs_bf16(kernel)) narrow_inputs(w);
  const int64_t sizes[] = {1, 30, 64, 100, p->seq_k, p->seq_k + 70}, newest = sizes[below(6)];
  attn_args args = w->args;
  if (attn_lists_keys(p)) args = with_lists(w);
  args.mask = w->dense;
  w->masked = *p;
  attn_problem_set_newest_mask(p, newest);
  for (int64_t row = 0; row < BATCH * HEADS * p->seq_q; row++) {
    const int64_t len_k = attn_len_k(p, &w->args, row / HEADS / p->seq_q);
    for (int64_t j = 0; j < p->seq_k; j++) {
      const int64_t column = j - (len_k - newest);
      w->dense[row * p->seq_k + j] = column < 0 || column >= newest || w->given[row * newest + column];
    }
  }
  if (!outputs_of(&w->masked, args, kernel, w->right)) return;
  args.mask = w->given;
  assert_true(outputs_of(p, args, kernel, w->got));
  compare_outputs(w, kernel, round);
}

static void newest_keys_give_the_bits_of_a_whole_mask(const char *kernel) {
  if (rejection_of(kernel, false, needs_bf16(kernel) ? ATTN_BF16 : ATTN_F32)) return;
  world *w = new_world();
  for (int round = 0; round < ROUNDS; round += round_step()) compare_newest(w, kernel, round);
  free(w);
}
KERNEL_TEST(newest_keys_give_the_bits_of_a_whole_mask)

/* NaN in every key that no list names. */
static void compare_with_poison(const char *kernel, int64_t queries) {
  enum { KEYS = 320 };
  world *w = new_world();
  make_world(w, 0);
  attn_problem *p = &w->listed;
  attn_problem_init(p, 1, 1, 1, queries, KEYS, DIM, DIM);
  attn_problem_set_key_blocks(p, 48, 64);
  p->uses |= ATTN_USE_LSE;
  static const int32_t count = 2, blocks[] = {3, 1};
  w->args = ATTN_STRUCT(attn_args, .q = w->q, .k = w->k, .v = w->v, .kv_num_blocks = &count, .kv_indices = blocks);
  if (needs_bf16(kernel)) narrow_inputs(w);
  assert_true(outputs_of(p, w->args, kernel, w->right));
  for (int64_t n = 0; n < KEYS * DIM; n++)
    if (n / DIM / 64 != 1 && n / DIM / 64 != 3) w->k[n] = w->v[n] = NAN;
  round_tensors(w);
  assert_true(outputs_of(p, w->args, kernel, w->got));
  assert_memory_equal(w->got, w->right, (size_t)(queries * (DIM + 1)) * sizeof(float));
  free(w);
}

static void unlisted_keys_may_hold_anything(const char *kernel) {
  if (!takes_lists(kernel)) return;
  compare_with_poison(kernel, 3);
  compare_with_poison(kernel, 30);
}
KERNEL_TEST(unlisted_keys_may_hold_anything)

TEST(kernels_take_lists_or_say_so) {
  assert_true(takes_lists("naive_c"));
  assert_true(takes_lists("flash_portable"));
  assert_true(takes_lists("decode_portable"));
  const bool has_blas = attn_kernel_find("naive_openblas") && !rejection_of("naive_openblas", false, ATTN_F32);
  if (has_blas) test_contains(rejection_of("naive_openblas", true, ATTN_F32), "ATTN_USE_KEY_BLOCKS");
}
