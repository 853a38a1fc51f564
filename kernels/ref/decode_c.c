/* SPDX-License-Identifier: MIT */
/* decode_c: split-KV in plain C, the decode algorithm to be read first.
 *
 * With few query rows and many keys, only the keys can be divided among threads. They are split at fixed borders. For each
 * split, all rows that share the KV head stream its keys as in flash_c, so K and V are read once for any number of query
 * heads. A split leaves (row_max, row_sum, acc). The merge phase rescales these to one reference and adds them up in the
 * order of the keys (Dao et al. 2023, "Flash-Decoding", https://crfm.stanford.edu/2023/10/12/flashdecoding.html). */
#include "kernels/common/decode/split_keys.h"
#include "kernels/common/memory/partial.h"
#include "streaming_c.h"

/* ---- Memory: the state of every row, once per split ---- */

static int64_t row_state_floats(const attn_problem *p) { return 2 + p->dim_v; /* row_max, row_sum, acc */ }

static float *state_of(const attn_problem *p, float *unit_memory, int64_t split, int64_t row) {
  return unit_memory + (split * rows_per_kv_head(p) + row) * row_state_floats(p);
}

/* All rows of one query head are one row_block. */
static const char *decode_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  return too_many_rows(p, ROWS, buffer, buffer_bytes);
}

/* Offsets in a thread's scratch, in bytes: one block of K and V and one query head's scores, q and acc of all rows of the
 * group, and a row_block for each of its heads. The plan data. */
typedef struct decode_layout {
  int64_t k, v, score, q, acc, blocks, total;
} decode_layout;
_Static_assert(sizeof(decode_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static const decode_layout *layout_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* False if a size overflows. */
static bool decode_layout_of(const attn_problem *p, decode_layout *at) {
  const int64_t rows = rows_per_kv_head(p);
  const memory_part parts[] = {
      {&at->k, KEYS, float_bytes(p->dim_qk)},  {&at->v, KEYS, float_bytes(p->dim_v)},
      {&at->score, ROWS, float_bytes(KEYS)},   {&at->q, rows, float_bytes(p->dim_qk)},
      {&at->acc, rows, float_bytes(p->dim_v)}, {&at->blocks, attn_group(p), (int64_t)sizeof(row_block)}};
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

static bool decode_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  decode_layout *scratch = (void *)schedule->own;
  int64_t states, unit = 0;
  const memory_part parts[] = {{&states, split_count(p), float_bytes(rows_per_kv_head(p) * row_state_floats(p))}};
  if (!decode_layout_of(p, scratch) || !LAY_OUT(parts, &unit)) return false;
  schedule->phases = 2;
  schedule->items[0] = split_count(p);
  schedule->items[1] = 1;
  schedule->row_block = rows_per_kv_head(p);
  schedule->key_block = SPLIT_KEYS; /* a piece of keys is whole splits */
  schedule->unit_bytes = (size_t)unit;
  schedule->scratch_bytes = (size_t)scratch->total;
  return true;
}

/* ---- One split ---- */

/* The rows of one query head of the group, with q and acc of their own; K, V and scores are shared by the group. */
static row_block head_block(const attn_schedule *schedule, const attn_args *args, attn_task task, int64_t member,
                            void *scratch) {
  const attn_problem *p = &schedule->problem;
  row_block t = {.problem = p, .args = args, .b = attn_batch_of_unit(p, task.unit), .score_stride = KEYS};
  const decode_layout *at = layout_in(schedule);
  t.head = attn_head_of_unit(p, task.unit) + member;
  t.seq = attn_sequence_of(p, args, t.b);
  t.rows = attn_rows(p, &t.seq);
  t.k = floats_at(scratch, at->k);
  t.v = floats_at(scratch, at->v);
  t.score = floats_at(scratch, at->score);
  t.q = floats_at(scratch, at->q) + member * p->seq_q * p->dim_qk;
  t.acc = floats_at(scratch, at->acc) + member * p->seq_q * p->dim_v;
  t.scores = (query_head){.problem = p, .args = args, .seq = t.seq, .b = t.b, .h = t.head, .k = {t.k, 1, KEYS}};
  return t;
}

static void leave_state(const row_block *t, float *unit_memory, int64_t split, int64_t member) {
  const attn_problem *p = t->problem;
  for (int64_t i = 0; i < t->rows; i++) {
    float *state = state_of(p, unit_memory, split, member * p->seq_q + i);
    state[0] = t->row_max[i];
    state[1] = t->row_sum[i];
    memcpy(state + 2, t->acc + i * p->dim_v, (size_t)p->dim_v * sizeof(float));
  }
}

static void decode_split(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory,
                         float *scratch) {
  const int64_t group = attn_group(&schedule->problem);
  row_block *block = (row_block *)(void *)floats_at(scratch, layout_in(schedule)->blocks);
  for (int64_t member = 0; member < group; member++) {
    block[member] = head_block(schedule, args, task, member, scratch);
    start_rows(&block[member]);
  }
  attn_key_range used =
      keys_of_block(&block[0]); /* masks that depend on the head come later: all heads read the same keys */
  const int64_t first = (first_split(&schedule->problem) + task.item) * SPLIT_KEYS;
  used.begin = max64(used.begin, first);
  used.end = min64(used.end, first + SPLIT_KEYS);
  for (int64_t key = used.begin / KEYS * KEYS; key < used.end; key += KEYS) {
    load_k(&block[0], used, key);
    load_v(&block[0], used, key);
    for (row_block *t = block; t < block + group; t++) {
      score_tile(t, key, t->score);
      softmax_tile(t, key);
      accumulate_tile(t, key, t->score);
    }
  }
  for (int64_t member = 0; member < group; member++) leave_state(&block[member], unit_memory, task.item, member);
}

/* ---- All splits ---- */

/* Adds a later split to row i. Here references are natural logarithms. */
static void merge_row(row_block *t, int64_t i, const float *later) {
  const int64_t dim_v = t->problem->dim_v;
  if (later[0] == -INFINITY && later[1] == 0) return; /* not NaN: scores of NaN have no largest */
  const partial_weights weights = weigh_partials(LOG2_E_DOUBLE * (double)t->row_max[i], LOG2_E_DOUBLE * (double)later[0]);
  t->row_max[i] = fmaxf(t->row_max[i], later[0]);
  t->row_sum[i] = join_partials(weights, t->row_sum[i], later[1]);
  for (int64_t c = 0; c < dim_v; c++) t->acc[i * dim_v + c] = join_partials(weights, t->acc[i * dim_v + c], later[2 + c]);
}

static void merge_splits(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory,
                         float *scratch) {
  const attn_problem *p = &schedule->problem;
  for (int64_t member = 0; member < attn_group(p); member++) {
    row_block t = head_block(schedule, args, task, member, scratch);
    start_rows(&t);
    load_states(&t);
    for (int64_t split = 0; split < schedule->items[0]; split++)
      for (int64_t i = 0; i < t.rows; i++) merge_row(&t, i, state_of(p, unit_memory, split, member * p->seq_q + i));
    finish_rows(&t);
  }
}

static void decode_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch) {
  if (task.phase == 0)
    decode_split(schedule, args, task, unit_memory, scratch);
  else
    merge_splits(schedule, args, task, unit_memory, scratch);
}

const attn_kernel attn_decode_c = {
    .info = {.name = "decode_c",
             .algorithm = "decode",
             .isa = "c",
             .library = "",
             .summary = "few queries, keys split at fixed borders and merged, K and V read once per KV head; plain C",
             .numerics = {.exp_error = 0x1p-23}}, /* expf of the C library: at most 1 ulp in glibc */
    .key_blocks = true,
    .rejects = decode_rejects,
    .plan = decode_plan,
    .run = decode_run,
};
