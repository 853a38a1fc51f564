/* SPDX-License-Identifier: MIT */
/* An engine computes a token's row in many ways: cold and whole, in chunks with a past, in a padded batch, packed beside
 * other sequences over shuffled pages whose first ones come from a cache that sequences share. For a named kernel all of
 * them have the bits of one cold dense call. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"
#include "tests/support/support.h"

enum { SEQUENCES = 3, LONGEST = 200, PREFIX = 64, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKENS = 16, CUT = 64, PAGES = 40 };
static const int32_t lengths[SEQUENCES] = {LONGEST, 131, 77};

/* Tensors [sequence][head][token][dim], and the rows of the cold calls: the last `queries` of each sequence. */
typedef struct serving {
  const char *kernel;
  attn_problem problem; /* all sequences, dense, padded */
  test_data data;
  int64_t queries[SEQUENCES];
} serving;

static size_t row_bytes(const serving *s) { return DIM * (size_t)attn_elements_bytes(s->problem.dtype_o, 1); }

static char *row_of(const serving *s, const void *tensor, int64_t b, int64_t heads, int64_t h, int64_t token) {
  return (char *)(uintptr_t)tensor + (size_t)((b * heads + h) * LONGEST + token) * row_bytes(s);
}

static bool takes(const serving *s, const attn_problem *p) { return !attn_kernel_rejects(attn_kernel_find(s->kernel), p); }

static void run(const serving *s, const attn_problem *p, const attn_args *args) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = s->kernel, .threads = 2);
  test_ok(test_run(p, args, &options));
}

static void expect_row(const serving *s, const char *way, int64_t b, int64_t h, int64_t token, const void *o) {
  if (memcmp(o, row_of(s, s->data.args.o, b, HEADS, h, token), row_bytes(s)))
    fail_msg("%s: token %d of sequence %d has other bits %s", s->kernel, (int)token, (int)b, way);
}

/* Queries [first, end) of one sequence over its keys before `end`, dense, to o [head][query][dim]. */
static attn_problem chunk_of(const serving *s, int64_t b, int64_t first, int64_t end, attn_args *args) {
  attn_problem p = s->problem;
  p.batch = 1;
  p.seq_q = end - first;
  p.seq_k = end;
  p.uses = 0;
  p.o_stride = (attn_strides){0, p.seq_q * DIM, DIM, 1};
  *args =
      ATTN_STRUCT(attn_args, .q = row_of(s, s->data.args.q, b, HEADS, 0, first),
                  .k = row_of(s, s->data.args.k, b, KV_HEADS, 0, 0), .v = row_of(s, s->data.args.v, b, KV_HEADS, 0, 0), );
  return p;
}

/* Runs the sequence alone: all of its queries at once or, where the kernel refuses these, as many of the last ones as it
 * takes. */
static bool run_cold(serving *s, int64_t b) {
  const int64_t tries[] = {lengths[b], 16, 8, 1};
  attn_args args;
  attn_problem p = chunk_of(s, b, 0, lengths[b], &args);
  for (size_t i = 0; i < COUNT(tries); i++) {
    p = chunk_of(s, b, lengths[b] - tries[i], lengths[b], &args);
    s->queries[b] = tries[i];
    if (takes(s, &p)) break;
  }
  if (!takes(s, &p)) return false;
  p.o_stride.h = LONGEST * DIM;
  args.o = row_of(s, s->data.args.o, b, HEADS, 0, lengths[b] - s->queries[b]);
  run(s, &p, &args);
  return true;
}

/* ---- Other ways ------------------------------------------------------------------------------------------------------ */

static void in_chunks(const serving *s) {
  char *o = test_allocate(HEADS * LONGEST * row_bytes(s));
  for (int64_t b = 0; b < SEQUENCES; b++)
    for (int64_t first = lengths[b] - s->queries[b], end; first < lengths[b]; first = end) {
      attn_args args;
      end = min64((first / CUT + 1) * CUT, lengths[b]);
      const attn_problem p = chunk_of(s, b, first, end, &args);
      args.o = o;
      run(s, &p, &args);
      for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < p.seq_q; i++)
          expect_row(s, "in chunks", b, h, first + i, o + (size_t)(h * p.seq_q + i) * row_bytes(s));
    }
  free(o);
}

/* Queries of all sequences as [token][head][dim], and where each sequence begins. */
static char *pack_queries(const serving *s, int32_t starts[SEQUENCES + 1]) {
  char *q = test_allocate(SEQUENCES * HEADS * LONGEST * row_bytes(s)), *to = q;
  starts[0] = 0;
  for (int64_t b = 0; b < SEQUENCES; b++) {
    starts[b + 1] = starts[b] + (int32_t)s->queries[b];
    for (int64_t token = lengths[b] - s->queries[b]; token < lengths[b]; token++)
      for (int64_t h = 0; h < HEADS; h++, to += row_bytes(s))
        memcpy(to, row_of(s, s->data.args.q, b, HEADS, h, token), row_bytes(s));
  }
  return q;
}

/* Pages [page][KV head][token][dim]; those of the prefix are the first sequence's. */
static void write_pages(const serving *s, const int32_t *table, char *k, char *v) {
  for (int64_t b = 0; b < SEQUENCES; b++)
    for (int64_t h = 0; h < KV_HEADS; h++)
      for (int64_t j = b ? PREFIX : 0; j < lengths[b]; j++) {
        const int64_t page = table[b * (PAGES / SEQUENCES) + j / TOKENS];
        const size_t at = (size_t)((page * KV_HEADS + h) * TOKENS + j % TOKENS) * row_bytes(s);
        memcpy(k + at, row_of(s, s->data.args.k, b, KV_HEADS, h, j), row_bytes(s));
        memcpy(v + at, row_of(s, s->data.args.v, b, KV_HEADS, h, j), row_bytes(s));
      }
}

static void fill_table(int32_t table[SEQUENCES][PAGES / SEQUENCES]) {
  for (int b = 0; b < SEQUENCES; b++)
    for (int at = 0; at < PAGES / SEQUENCES; at++)
      table[b][at] = at < PREFIX / TOKENS ? table[0][at] : (b * (PAGES / SEQUENCES) + at) * 7 % PAGES;
}

static void over_shared_pages(const serving *s) {
  int32_t starts[SEQUENCES + 1], table[SEQUENCES][PAGES / SEQUENCES] = {{3 * 7, 2 * 7 % PAGES, 7, 0}};
  const size_t bytes = PAGES * KV_HEADS * TOKENS * row_bytes(s);
  char *q = pack_queries(s, starts), *o = test_allocate(SEQUENCES * HEADS * LONGEST * row_bytes(s));
  char *k = test_allocate(bytes), *v = test_allocate(bytes);
  attn_problem p = s->problem;
  p.uses = 0;
  p.seq_q = max64(max64(s->queries[0], s->queries[1]), s->queries[2]);
  attn_problem_set_varlen(&p, starts[SEQUENCES], 0);
  attn_problem_set_pages(&p, TOKENS, PAGES);
  fill_table(table);
  p.page_table_stride = PAGES / SEQUENCES;
  memset(k, 0xff, bytes); /* NaN */
  memset(v, 0xff, bytes);
  write_pages(s, table[0], k, v);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o, .cu_seqlens_q = starts, .kv_len = lengths,
                                     .page_table = table[0]);
  if (takes(s, &p)) {
    run(s, &p, &args);
    for (int64_t b = 0; b < SEQUENCES; b++)
      for (int64_t i = 0; i < s->queries[b]; i++)
        for (int64_t h = 0; h < HEADS; h++)
          expect_row(s, "packed over shared pages", b, h, lengths[b] - s->queries[b] + i,
                     o + (size_t)((starts[b] + i) * HEADS + h) * row_bytes(s));
  }
  void *const memory[] = {q, o, k, v};
  for (size_t i = 0; i < COUNT(memory); i++) free(memory[i]);
}

static void in_a_padded_batch(const serving *s) {
  char *q = test_allocate(SEQUENCES * HEADS * LONGEST * row_bytes(s)),
       *o = test_allocate(SEQUENCES * HEADS * LONGEST * row_bytes(s));
  int32_t q_len[SEQUENCES];
  attn_problem p = s->problem;
  p.uses = ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
  p.seq_q = max64(max64(s->queries[0], s->queries[1]), s->queries[2]);
  for (int64_t b = 0; b < SEQUENCES; b++) {
    q_len[b] = (int32_t)s->queries[b];
    for (int64_t h = 0; h < HEADS; h++)
      memcpy(row_of(s, q, b, HEADS, h, 0), row_of(s, s->data.args.q, b, HEADS, h, lengths[b] - q_len[b]),
             (size_t)q_len[b] * row_bytes(s));
  }
  attn_args args =
      ATTN_STRUCT(attn_args, .q = q, .k = s->data.args.k, .v = s->data.args.v, .o = o, .kv_len = lengths, .q_len = q_len);
  if (takes(s, &p)) {
    run(s, &p, &args);
    for (int64_t b = 0; b < SEQUENCES; b++)
      for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < q_len[b]; i++)
          expect_row(s, "in a padded batch", b, h, lengths[b] - q_len[b] + i, row_of(s, o, b, HEADS, h, i));
  }
  free(o);
  free(q);
}

/* ---- All of them ----------------------------------------------------------------------------------------------------- */

static void serve(serving *s) {
  for (int64_t b = 1; b < SEQUENCES; b++)
    for (int64_t h = 0; h < KV_HEADS; h++) {
      memcpy(row_of(s, s->data.args.k, b, KV_HEADS, h, 0), row_of(s, s->data.args.k, 0, KV_HEADS, h, 0),
             PREFIX * row_bytes(s));
      memcpy(row_of(s, s->data.args.v, b, KV_HEADS, h, 0), row_of(s, s->data.args.v, 0, KV_HEADS, h, 0),
             PREFIX * row_bytes(s));
    }
  for (int64_t b = 0; b < SEQUENCES; b++)
    if (!run_cold(s, b)) return;
  in_chunks(s);
  in_a_padded_batch(s);
  over_shared_pages(s);
}

static void rows_have_bits_of_a_cold_call(const char *kernel) {
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  if (!test_rows_stand_alone(kernel)) return;
  for (size_t type = 0; type < COUNT(dtypes); type++) {
    serving s = {.kernel = kernel};
    attn_problem_init(&s.problem, SEQUENCES, HEADS, KV_HEADS, LONGEST, LONGEST, DIM, DIM);
    s.problem.dtype_q = s.problem.dtype_kv = s.problem.dtype_o = dtypes[type];
    s.problem.scale *= 8; /* so that references move */
    attn_problem_set_causal(&s.problem, ATTN_ALIGN_BOTTOM_RIGHT);
    s.data = test_data_create(&s.problem, 21);
    serve(&s);
    test_data_destroy(&s.data);
  }
}
KERNEL_TEST(rows_have_bits_of_a_cold_call)
