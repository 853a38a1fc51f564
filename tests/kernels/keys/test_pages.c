/* SPDX-License-Identifier: MIT */
/* Keys and values in pages: for every kernel the bits of dense tensors, whatever size and order the pages have. Tokens
 * beyond a sequence's length hold NaN, and table entries of pages that no query sees name no page. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"
#include "tests/support/support.h"

/* A paged copy of a dense problem's keys and values. */
typedef struct paged {
  attn_problem problem;
  attn_args args;
  char *k, *v;
  int32_t *table;
} paged;

static int64_t pages_of(const attn_problem *p, int64_t tokens) { return (p->seq_k + tokens - 1) / tokens; }

/* Page `n` of the pool in shuffled order: 7919 is prime, so that each comes up once unless the pool has a multiple. */
static int64_t place_of(int64_t n, int64_t pages, bool shuffled) { return shuffled ? n * 7919 % pages : n; }

static void copy_page(const attn_problem *dense, const paged *to, int64_t b, int64_t at) {
  const attn_problem *p = &to->problem;
  const size_t bytes = (size_t)attn_elements_bytes(p->dtype_kv, 1);
  const int64_t page = to->table[b * p->page_table_stride + at];
  for (int64_t h = 0; h < p->heads_kv; h++)
    for (int64_t i = 0; i < p->page_tokens && at * p->page_tokens + i < to->args.kv_len[b]; i++) {
      const int64_t j = at * p->page_tokens + i;
      const attn_strides *k = &dense->k_stride, *v = &dense->v_stride;
      memcpy(to->k + (size_t)(page * p->k_stride.b + h * p->k_stride.h + i * p->k_stride.s) * bytes,
             (const char *)to->args.k + (size_t)(b * k->b + h * k->h + j * k->s) * bytes, (size_t)p->dim_qk * bytes);
      memcpy(to->v + (size_t)(page * p->v_stride.b + h * p->v_stride.h + i * p->v_stride.s) * bytes,
             (const char *)to->args.v + (size_t)(b * v->b + h * v->h + j * v->s) * bytes, (size_t)p->dim_v * bytes);
    }
}

/* Heads of a token side by side, where heads_first is false. */
static void set_layout(attn_problem *p, bool heads_first) {
  if (heads_first) return;
  p->k_stride = (attn_strides){p->page_tokens * p->heads_kv * p->dim_qk, p->dim_qk, p->heads_kv * p->dim_qk, 1};
  p->v_stride = (attn_strides){p->page_tokens * p->heads_kv * p->dim_v, p->dim_v, p->heads_kv * p->dim_v, 1};
}

static paged paged_copy(const attn_problem *dense, const attn_args *args, int64_t tokens, bool shuffled) {
  paged to = {.problem = *dense, .args = *args};
  const int64_t of_each = pages_of(dense, tokens), pages = dense->batch * of_each + 1;
  attn_problem_set_pages(&to.problem, tokens, pages);
  assert_int_equal(to.problem.page_table_stride, of_each);
  set_layout(&to.problem, !shuffled);
  const size_t page_bytes = (size_t)attn_elements_bytes(dense->dtype_kv, tokens * dense->heads_kv);
  to.k = malloc((size_t)pages * page_bytes * (size_t)dense->dim_qk);
  to.v = malloc((size_t)pages * page_bytes * (size_t)dense->dim_v);
  to.table = malloc((size_t)(dense->batch * of_each) * sizeof *to.table);
  assert_true(to.k && to.v && to.table);
  memset(to.k, 0xff, (size_t)pages * page_bytes * (size_t)dense->dim_qk); /* NaN */
  memset(to.v, 0xff, (size_t)pages * page_bytes * (size_t)dense->dim_v);
  for (int64_t b = 0; b < dense->batch; b++) {
    const attn_sequence seq = attn_sequence_of(dense, args, b);
    const attn_key_range used = attn_keys_of_sequence(dense, args, &seq, b);
    for (int64_t at = 0; at < of_each; at++) {
      const bool needed = used.begin < (at + 1) * tokens && at * tokens < used.end;
      to.table[b * of_each + at] = needed ? (int32_t)place_of(b * of_each + at, pages, shuffled) : INT32_MIN;
      if (needed) copy_page(dense, &to, b, at);
    }
  }
  to.args.k = to.k;
  to.args.v = to.v;
  to.args.page_table = to.table;
  return to;
}

static void free_paged(const paged *p) {
  free(p->k);
  free(p->v);
  free(p->table);
}

/* Pages of every size and order. */
static void same_bits_in_pages_of(const char *kernel, const attn_problem *p, const attn_args *extra) {
  static const int64_t sizes[] = {16, 48, 64, 256, 1024};
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data dense = test_data_create(p, 71);
  dense.args.kv_len = extra->kv_len;
  dense.args.offsets = extra->offsets;
  test_ok(test_run(p, &dense.args, &options));
  for (size_t i = 0; i < COUNT(sizes); i++)
    for (int shuffled = 0; shuffled < 2; shuffled++) {
      if (test_few() && (shuffled != (int)i % 2 || (i + p->dtype_kv) % 3 != 0)) continue;
      const paged other = paged_copy(p, &dense.args, sizes[i], shuffled);
      test_data result = test_data_share_inputs(&other.problem, &(test_data){.args = other.args});
      test_ok(test_run(&other.problem, &result.args, &options));
      if (memcmp(result.args.o, dense.args.o, dense.o_bytes) || memcmp(result.args.lse, dense.args.lse, dense.lse_bytes))
        fail_msg("%s: the bits differ in %s pages of %d tokens, %d queries, dims %d and %d", kernel,
                 shuffled ? "shuffled" : "ordered", (int)sizes[i], (int)p->seq_q, (int)p->dim_qk, (int)p->dim_v);
      test_data_destroy_outputs(&result);
      free_paged(&other);
    }
  test_data_destroy(&dense);
}

/* Libraries may refuse pages; kernels of this library take what they take at one stride. */
static bool takes_pages(const char *kernel, const attn_problem *p) {
  const attn_kernel_info *info = attn_kernel_find(kernel);
  attn_problem pages = *p;
  attn_problem_set_pages(&pages, 16, 1);
  if (attn_kernel_rejects(info, p)) return false;
  const char *reason = attn_kernel_rejects(info, &pages);
  if (reason && !info->library[0]) fail_msg("%s refuses pages: %s", kernel, reason);
  return !reason;
}

/* Prefill with tails everywhere, causal and in a narrow window; and decode of one and more rows, with head dimensions for
 * which it has loops of its own and with others. */
static void pages_change_no_bit(const char *kernel) {
  static const struct {
    int64_t heads_q, seq_q, seq_k, dim_qk, dim_v, left, right;
  } shapes[] = {
      {2, 70, 293, 37, 29, -1, 0},    {2, 131, 310, 64, 64, -1, -1},  {2, 40, 1093, 64, 32, 30, 0},
      {1, 1, 1093, 64, 64, -1, -1},   {4, 1, 1093, 128, 128, -1, -1}, {8, 1, 293, 64, 64, -1, 0},
      {2, 3, 1293, 40, 100, 700, -1}, {4, 2, 293, 32, 96, 20, -1},
  };
  static const attn_dtype dtypes[][2] = {
      {ATTN_F32, ATTN_F32}, {ATTN_BF16, ATTN_BF16}, {ATTN_F16, ATTN_F16}, {ATTN_F32, ATTN_I8}};
  int taken = 0;
  for (size_t i = 0; i < COUNT(shapes); i++)
    for (size_t type = 0; type < COUNT(dtypes); type++) {
      if (test_few() && (i + type) % COUNT(dtypes) != 0) continue;
      attn_problem p;
      attn_problem_init(&p, 3, 2 * shapes[i].heads_q, 2, shapes[i].seq_q, shapes[i].seq_k, shapes[i].dim_qk,
                        shapes[i].dim_v);
      p.dtype_q = p.dtype_o = dtypes[type][0];
      p.dtype_kv = dtypes[type][1];
      p.window_left = shapes[i].left;
      p.window_right = shapes[i].right;
      p.align = ATTN_ALIGN_BOTTOM_RIGHT;
      p.scale *= 8; /* so that references move */
      p.uses = ATTN_USE_LSE | ATTN_USE_KV_LEN;
      if (!takes_pages(kernel, &p)) continue;
      const int32_t kv_len[] = {(int32_t)p.seq_k, (int32_t)p.seq_k - 36, i % 2 ? 0 : 64};
      same_bits_in_pages_of(kernel, &p, &(attn_args){.kv_len = kv_len});
      taken++;
    }
  if (taken == 0 && !attn_kernel_find(kernel)->library[0]) fail_msg("%s takes none of the problems", kernel);
}
KERNEL_TEST(pages_change_no_bit)

/* NaN and infinity in keys that some rows may see: such rows are computed again, from pages as well. */
static void pages_change_no_bit_beside_nan(const char *kernel) {
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
    for (int64_t seq_q = 1; seq_q <= 65; seq_q += 64) {
      attn_problem p;
      attn_problem_init(&p, 1, 4, 2, seq_q, 100, 64, 64);
      p.dtype_q = p.dtype_kv = p.dtype_o = (attn_dtype)dtype;
      attn_problem_set_causal(&p, ATTN_ALIGN_OFFSET);
      p.uses = ATTN_USE_KV_LEN;
      if (!takes_pages(kernel, &p)) continue;
      const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
      test_data dense = test_data_create(&p, 5);
      const int32_t kv_len[] = {100}, offsets[] = {30};
      dense.args.kv_len = kv_len;
      dense.args.offsets = offsets;
      attn_store_f32((void *)(uintptr_t)dense.args.v, p.dtype_kv, 40 * 64 + 3, NAN);
      attn_store_f32((void *)(uintptr_t)dense.args.v, p.dtype_kv, 20 * 64 + 5, INFINITY);
      test_ok(test_run(&p, &dense.args, &options));
      const paged other = paged_copy(&p, &dense.args, 48, true);
      test_data result = test_data_share_inputs(&other.problem, &(test_data){.args = other.args});
      test_ok(test_run(&other.problem, &result.args, &options));
      if (memcmp(result.args.o, dense.args.o, dense.o_bytes)) fail_msg("%s: bits differ beside NaN", kernel);
      test_data_destroy_outputs(&result);
      free_paged(&other);
      test_data_destroy(&dense);
    }
}
KERNEL_TEST(pages_change_no_bit_beside_nan)

/* Prompts, a chunk with a past, a single token and a sequence without new tokens in one call of packed queries: each row has
 * the bits of its sequence alone. */
static void packed_queries_over_pages(const char *kernel) {
  enum { SEQUENCES = 5, TOKENS = 32, DIM = 64, HEADS = 4, KV_HEADS = 2 };
  static const int32_t queries[SEQUENCES] = {7, 3, 1, 0, 5}, keys[SEQUENCES] = {7, 200, 130, 90, 33};
  int32_t cu[SEQUENCES + 1] = {0};
  for (int b = 0; b < SEQUENCES; b++) cu[b + 1] = cu[b] + queries[b];
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
    attn_problem rows; /* dense keys, padded queries: only to make pages from */
    attn_problem_init(&rows, SEQUENCES, HEADS, KV_HEADS, 7, 200, DIM, DIM);
    rows.dtype_q = rows.dtype_kv = rows.dtype_o = (attn_dtype)dtype;
    attn_problem_set_causal(&rows, ATTN_ALIGN_BOTTOM_RIGHT);
    rows.uses = ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
    test_data data = test_data_create(&rows, 3);
    data.args.kv_len = keys;
    data.args.q_len = queries;
    const paged pages = paged_copy(&rows, &data.args, TOKENS, true);
    attn_problem packed = rows;
    packed.uses = 0;
    attn_problem_set_varlen(&packed, cu[SEQUENCES], 0);
    packed.k_stride = pages.problem.k_stride;
    packed.v_stride = pages.problem.v_stride;
    packed.uses |= ATTN_USE_PAGES | ATTN_USE_KV_LEN;
    packed.page_tokens = TOKENS;
    packed.pages = pages.problem.pages;
    packed.page_table_stride = pages.problem.page_table_stride;
    if (takes_pages(kernel, &rows) && !attn_kernel_rejects(attn_kernel_find(kernel), &packed)) {
      const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
      test_data all = {.args = pages.args};
      all.args.q_len = NULL;
      all.args.cu_seqlens_q = cu;
      packed.seq_q = 7;
      const size_t bytes = (size_t)attn_elements_bytes(packed.dtype_o, cu[SEQUENCES] * HEADS * DIM);
      all.args.o = malloc(bytes);
      assert_non_null(all.args.o);
      test_ok(test_run(&packed, &all.args, &options));
      for (int b = 0; b < SEQUENCES; b++) {
        if (queries[b] == 0) continue;
        attn_problem one = packed;
        one.batch = 1;
        one.total_q = one.seq_q = queries[b];
        const int32_t own[] = {0, queries[b]};
        const int64_t first = attn_elements_bytes(packed.dtype_o, cu[b] * HEADS * DIM);
        attn_args args = all.args;
        args.cu_seqlens_q = own;
        args.kv_len = &keys[b];
        args.page_table = pages.table + b * packed.page_table_stride;
        args.q = (const char *)args.q + first;
        const size_t own_bytes = (size_t)attn_elements_bytes(packed.dtype_o, queries[b] * HEADS * DIM);
        args.o = malloc(own_bytes);
        assert_non_null(args.o);
        test_ok(test_run(&one, &args, &options));
        if (memcmp(args.o, (const char *)all.args.o + first, own_bytes))
          fail_msg("%s: the bits of packed sequence %d depend on the others", kernel, b);
        free(args.o);
      }
      free(all.args.o);
    }
    free_paged(&pages);
    test_data_destroy(&data);
  }
}
KERNEL_TEST(packed_queries_over_pages)

/* ---- Rings ---- */

/* Keys and values of the last `pages` blocks of each sequence. Block i stands in page i mod `pages` of the sequence's own
 * buffer, [heads_kv][pages * page_tokens][dim]. */
typedef struct ring {
  attn_problem problem;
  char *k, *v;
  int32_t *table;
  int64_t pages; /* pages of a sequence */
} ring;

static ring ring_create(const attn_problem *dense, int64_t tokens, int64_t pages) {
  ring r = {.problem = *dense, .pages = pages};
  attn_problem *p = &r.problem;
  attn_problem_set_pages(p, tokens, dense->batch * dense->heads_kv * pages);
  p->k_stride = (attn_strides){tokens * p->dim_qk, pages * tokens * p->dim_qk, p->dim_qk, 1};
  p->v_stride = (attn_strides){tokens * p->dim_v, pages * tokens * p->dim_v, p->dim_v, 1};
  const size_t keys = (size_t)(p->pages * tokens) * (size_t)attn_elements_bytes(p->dtype_kv, 1);
  r.k = test_allocate(keys * (size_t)p->dim_qk);
  r.v = test_allocate(keys * (size_t)p->dim_v);
  r.table = test_allocate((size_t)(p->batch * p->page_table_stride) * sizeof *r.table);
  memset(r.k, 0xff, keys * (size_t)p->dim_qk); /* NaN */
  memset(r.v, 0xff, keys * (size_t)p->dim_v);
  return r;
}

static void ring_destroy(const ring *r) {
  free(r->k);
  free(r->v);
  free(r->table);
}

static int32_t ring_page(const ring *r, int64_t b, int64_t block) {
  return (int32_t)(b * r->problem.heads_kv * r->pages + block % r->pages);
}

/* Copies key and value j of sequence b from the dense cache. */
static void ring_write(const ring *r, const attn_problem *dense, const attn_args *args, int64_t b, int64_t j) {
  const attn_problem *p = &r->problem;
  const size_t bytes = (size_t)attn_elements_bytes(p->dtype_kv, 1);
  const int64_t page = ring_page(r, b, j / p->page_tokens), i = j % p->page_tokens;
  for (int64_t h = 0; h < p->heads_kv; h++) {
    const int64_t from = (b * p->heads_kv + h) * dense->seq_k + j;
    memcpy(r->k + (size_t)(page * p->k_stride.b + h * p->k_stride.h + i * p->k_stride.s) * bytes,
           (const char *)args->k + (size_t)(from * p->dim_qk) * bytes, (size_t)p->dim_qk * bytes);
    memcpy(r->v + (size_t)(page * p->v_stride.b + h * p->v_stride.h + i * p->v_stride.s) * bytes,
           (const char *)args->v + (size_t)(from * p->dim_v) * bytes, (size_t)p->dim_v * bytes);
  }
}

/* Entries of blocks in which no query sees a key name no page. */
static void ring_point(const ring *r, const attn_args *args) {
  const attn_problem *p = &r->problem;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, args, b);
    const attn_key_range used = attn_keys_of_sequence(p, args, &seq, b);
    for (int64_t at = 0; at < p->page_table_stride; at++) {
      const bool needed = used.begin < (at + 1) * p->page_tokens && at * p->page_tokens < used.end;
      r->table[b * p->page_table_stride + at] = needed ? ring_page(r, b, at) : INT32_MIN;
    }
  }
}

enum { RING_SEQUENCES = 2, RING_TOKENS = 700, RING_LAG = 5 };

/* New tokens come in chunks, `queries` of each sequence; the second sequence is RING_LAG tokens behind. */
static void chunk_has_bits_of_dense_cache(const char *kernel, const ring *r, const attn_problem *dense, const attn_args *all,
                                          int64_t past, int64_t queries) {
  int32_t kv_len[RING_SEQUENCES];
  for (int b = 0; b < RING_SEQUENCES; b++) {
    kv_len[b] = (int32_t)(past + queries - b * RING_LAG);
    for (int64_t j = kv_len[b] - queries; j < kv_len[b]; j++)
      if (j >= 0) ring_write(r, dense, all, b, j);
  }
  attn_problem whole = *dense, last = r->problem;
  whole.seq_q = last.seq_q = queries;
  whole.o_stride = last.o_stride =
      (attn_strides){queries * dense->heads_q * dense->dim_v, queries * dense->dim_v, dense->dim_v, 1};
  whole.lse_stride = last.lse_stride = (attn_strides){queries * dense->heads_q, queries, 1, 1};
  if (past < RING_LAG || !takes_pages(kernel, &whole)) return;
  if (test_few() && past / 20 % 2) return; /* half of the chunks of each length, which come again after 60 tokens */
  attn_args args = *all;
  args.kv_len = kv_len;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data expected = test_data_share_inputs(&whole, &(test_data){.args = args});
  test_ok(test_run(&whole, &expected.args, &options));
  args.k = r->k;
  args.v = r->v;
  args.page_table = r->table;
  ring_point(r, &args);
  test_data got = test_data_share_inputs(&last, &(test_data){.args = args});
  test_ok(test_run(&last, &got.args, &options));
  if (memcmp(got.args.o, expected.args.o, got.o_bytes) || memcmp(got.args.lse, expected.args.lse, got.lse_bytes))
    fail_msg("%s: the bits of %d queries after %d keys differ in a ring of %d pages", kernel, (int)queries, (int)past,
             (int)r->pages);
  test_data_destroy_outputs(&got);
  test_data_destroy_outputs(&expected);
}

/* A ring of a window and the longest chunk, and no token more, has the bits of a cache that keeps all keys. */
static void rings_have_bits_of_dense_cache(const char *kernel) {
  static const struct {
    int64_t tokens, pages, left, heads_q, dim;
  } rings[] = {{16, 6, 63, 4, 64}, {48, 3, 111, 2, 40}, {256, 2, 479, 2, 128}};
  static const int64_t chunks[] = {33, 1, 7, 1, 16, 2};
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  for (size_t i = 0; i < COUNT(rings); i++)
    for (size_t type = 0; type < COUNT(dtypes); type++) {
      if (test_few() && (i + type) % COUNT(rings) != 1) continue;
      attn_problem p;
      attn_problem_init(&p, RING_SEQUENCES, rings[i].heads_q, 2, 33, RING_TOKENS, rings[i].dim, rings[i].dim);
      p.dtype_q = p.dtype_kv = p.dtype_o = dtypes[type];
      p.window_left = rings[i].left;
      p.window_right = 0;
      p.align = ATTN_ALIGN_BOTTOM_RIGHT;
      p.uses = ATTN_USE_LSE | ATTN_USE_KV_LEN;
      test_data data = test_data_create(&p, 9);
      const ring r = ring_create(&p, rings[i].tokens, rings[i].pages);
      assert_int_equal(r.problem.page_tokens * r.pages, p.window_left + chunks[0]);
      size_t n = 0;
      for (int64_t past = 0; past + chunks[n % COUNT(chunks)] <= RING_TOKENS; past += chunks[n++ % COUNT(chunks)])
        chunk_has_bits_of_dense_cache(kernel, &r, &p, &data.args, past, chunks[n % COUNT(chunks)]);
      ring_destroy(&r);
      test_data_destroy(&data);
    }
}
KERNEL_TEST(rings_have_bits_of_dense_cache)
