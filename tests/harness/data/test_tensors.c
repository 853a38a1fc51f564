/* SPDX-License-Identifier: MIT */
/* Tensors of random cases, byte by byte: inputs hold what a second writing of the rules gives wherever some row reads, and
 * poison elsewhere; every element of an output counts, and no other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "data/generate.h"
#include "data/lengths.h"
#include "data/tensors.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/ref/oracle_f64.h"
#include "tests/support/layer_support.h"

enum { CASES = 150, SEED = 5, MOST_BATCH = 8 };

static bench_case bench;
static bench_tensors tensors;

/* ---- Walking a tensor ------------------------------------------------------------------------------------------------ */

typedef struct place {
  int64_t b, h, s, d; /* or batch, head, query and key */
  int64_t at;         /* in elements from the begin of the span */
  uint64_t index;     /* in order of b, h, s, d, where what is broadcast counts once */
} place;

typedef struct walk {
  int64_t extent[4], stride[4], first;
  size_t elements; /* elements of the span */
} walk;

static walk walk_of(const int64_t extent[4], const int64_t stride[4]) {
  walk w = {.elements = 1};
  for (int i = 0; i < 4; i++) {
    w.extent[i] = extent[i], w.stride[i] = stride[i];
    if (extent[i] == 0) w.elements = 0;
    if (stride[i] < 0) w.first -= (extent[i] - 1) * stride[i];
  }
  for (int i = 0; i < 4 && w.elements; i++) w.elements += (size_t)((extent[i] - 1) * llabs(stride[i]));
  if (!w.elements) w.first = 0;
  return w;
}

static void each(const walk *w, void (*visit)(void *context, const place *at), void *context) {
  const int64_t *n = w->extent, *s = w->stride;
  const int64_t all = n[0] * n[1] * n[2] * n[3];
  for (int64_t i = 0; i < all; i++) {
    const int64_t x[4] = {i / n[3] / n[2] / n[1], i / n[3] / n[2] % n[1], i / n[3] % n[2], i % n[3]};
    place p = {x[0], x[1], x[2], x[3], w->first, 0};
    for (int k = 0; k < 4; k++) p.at += x[k] * s[k], p.index = p.index * (uint64_t)n[k] + (uint64_t)(s[k] ? x[k] : 0);
    visit(context, &p);
  }
}

/* ---- Which tokens are read ------------------------------------------------------------------------------------------- */

/* The rows of a sequence and the keys that they read, in tokens of the sequence, and where it begins. */
typedef struct reach {
  int64_t rows, key_begin, key_end;
  int64_t first_q, first_k; /* 0 unless sequences are packed */
} reach;

static reach reaches[MOST_BATCH];

static bool is(bench_axis axis, const char *word) { return bench_spec_is(&bench.spec, axis, word); }

static uint64_t bits(bench_stream stream, uint64_t index) { return bench_value_bits(bench.seed, stream, index); }

static int64_t keys_left_by_padding(int64_t b) {
  return 1 +
         (int64_t)(bits(BENCH_STREAM_MASK, (uint64_t)(bench.problem.mask_stride.b ? b : 0)) % (uint64_t)bench.problem.seq_k);
}

static void find_reaches(void) {
  const attn_problem *p = &bench.problem;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, &tensors.args, b);
    int64_t begin = INT64_MAX, end = 0;
    for (int64_t i = 0; i < seq.len_q; i++) {
      const attn_key_range keys = attn_allowed_keys(p, &tensors.args, &seq, b, i);
      if (keys.begin < keys.end && keys.begin < begin) begin = keys.begin;
      if (keys.begin < keys.end && keys.end > end) end = keys.end;
    }
    if (is(AXIS_MASK, "padding") && end > 0 && keys_left_by_padding(b) < end) end = keys_left_by_padding(b);
    if (begin > end) begin = end;
    reaches[b] = (reach){seq.len_q, begin, end, seq.first_q, seq.first_k};
  }
}

static bool sees(const reach *r, bool queries, int64_t token) {
  return queries ? token >= 0 && token < r->rows : token >= r->key_begin && token < r->key_end;
}

/* A token of a tensor: of sequence b, or of any if they are packed. */
static bool is_read(bool queries, int64_t b, int64_t token) {
  bool read = false;
  for (int64_t n = 0; n < bench.problem.batch; n++) {
    const reach *r = &reaches[n];
    if (n == b || bench.problem.uses & ATTN_USE_VARLEN)
      read |= sees(r, queries, token - (queries ? r->first_q : r->first_k));
  }
  return read;
}

/* ---- What inputs hold ------------------------------------------------------------------------------------------------ */

typedef struct expected {
  bench_tensor which;
  bench_stream stream;
  attn_dtype dtype;
  double magnitude;
  unsigned char *bytes;
} expected;

static double normal(bench_stream stream, uint64_t index) { return bench_value_normal(bench.seed, stream, index); }

static void expect_row(void *context, const place *at) {
  const expected *e = context;
  if (!is_read(e->which == BENCH_Q, at->b, at->s)) return;
  const double x = e->which == BENCH_V && is(AXIS_VALUES, "positive") ? bench_value_uniform(bench.seed, e->stream, at->index)
                                                                      : normal(e->stream, at->index);
  const double factors = bench.problem.uses & ATTN_USE_KV_SCALES ? 32 : 1, scaled = e->magnitude * x;
  bench_store(e->bytes, e->dtype, at->at, e->dtype == ATTN_I8 ? fmax(factors * scaled, -127) : scaled);
}

/* A bias that masks is -inf in an eighth of the rows, a quarter of tiles of 16 x 64 and a quarter of the rest. */
static bool is_masked_by_bias(const place *at, const walk *w) {
  const uint64_t keys = (uint64_t)w->extent[3], row = (at->index - (uint64_t)at->d) / keys;
  const uint64_t tile = row - (w->stride[2] ? (uint64_t)at->s % 16 : 0);
  return bits(BENCH_STREAM_BIAS_MASK, 3 * row * keys) % 8 == 0 ||
         bits(BENCH_STREAM_BIAS_MASK, 3 * (tile * keys + (uint64_t)at->d / 64) + 1) % 4 == 0 ||
         bits(BENCH_STREAM_BIAS_MASK, 3 * (row * keys + (uint64_t)at->d) + 2) % 4 == 0;
}

static walk pairs_of(attn_score_strides s, int64_t columns) {
  const attn_problem *p = &bench.problem;
  return walk_of((const int64_t[]){p->batch, p->heads_q, p->seq_q, columns}, (const int64_t[]){s.b, s.h, s.q, s.k});
}

static void expect_pair(void *context, const place *at) {
  const expected *e = context;
  const walk w =
      pairs_of(e->which == BENCH_BIAS ? bench.problem.bias_stride : bench.problem.scores_stride, bench.problem.seq_k);
  const bool inside =
      (!w.stride[2] || sees(&reaches[at->b], true, at->s)) && (!w.stride[3] || sees(&reaches[at->b], false, at->d));
  if (w.stride[0] && !inside) return;
  const bool masked = e->which == BENCH_BIAS && is(AXIS_BIAS, "masking") && is_masked_by_bias(at, &w);
  ((float *)(void *)e->bytes)[at->at] = masked ? -INFINITY : (float)(e->magnitude * normal(e->stream, at->index));
}

/* Token n > 0 of a tree has a parent among those before it. */
static bool is_ancestor(int64_t of, int64_t token) {
  if (of <= token) return of == token;
  return is_ancestor((int64_t)(bits(BENCH_STREAM_MASK, (uint64_t)of) % (uint64_t)of), token);
}

static void expect_mask(void *context, const place *at) {
  const expected *e = context;
  const uint64_t x = bits(e->stream, at->index);
  const bool allowed = is(AXIS_MASK, "tree")      ? is_ancestor(at->s, at->d)
                       : is(AXIS_MASK, "padding") ? at->d < keys_left_by_padding(at->b)
                                                  : x & 1;
  e->bytes[at->at] = allowed ? (unsigned char)(1 + (x >> 8) % 255) : 0;
}

/* Compares the span with what `visit` expects, and with poison elsewhere. */
static void compare(const walk *w, expected e, void (*visit)(void *context, const place *at)) {
  const bench_buffer *t = &tensors.buffers[e.which];
  if (!t->present) return;
  const size_t bytes = w->elements * t->element_bytes;
  assert_true(t->bytes == bytes && (uintptr_t)t->data % 64 == 0);
  e.bytes = test_allocate(bytes + 1);
  memset(e.bytes, e.dtype == ATTN_I8 ? 0x80 : 0xff, bytes);
  each(w, visit, &e);
  for (size_t i = 0; i < bytes; i++)
    if (t->data[i] != e.bytes[i]) fail_msg("%s: %s differs at byte %zu of %zu", bench.case_id, t->name, i, bytes);
  free(e.bytes);
}

static walk rows_of(attn_strides s, int64_t heads, int64_t seq, int64_t total, int64_t dim) {
  const bool packed = bench.problem.uses & ATTN_USE_VARLEN;
  return walk_of((const int64_t[]){packed ? 1 : bench.problem.batch, heads, packed ? total : seq, dim},
                 (const int64_t[]){packed ? 0 : s.b, s.h, s.s, s.d});
}

static void compare_tensors(void) {
  const attn_problem *p = &bench.problem;
  const double magnitude = bench_spec_real(&bench.spec, AXIS_MAGNITUDE);
  const double unread = p->score == ATTN_SCORE_PRECOMPUTED ? NAN : magnitude; /* Q and K are poison then */
  const walk q = rows_of(p->q_stride, p->heads_q, p->seq_q, p->total_q, p->dim_qk),
             k = rows_of(p->k_stride, p->heads_kv, p->seq_k, p->total_k, p->dim_qk),
             v = rows_of(p->v_stride, p->heads_kv, p->seq_k, p->total_k, p->dim_v);
  const walk bias = pairs_of(p->bias_stride, p->seq_k), scores = pairs_of(p->scores_stride, p->seq_k);
  const walk mask = pairs_of(p->mask_stride, is(AXIS_MASK, "tree") ? p->seq_q : p->seq_k);
  if (!isnan(unread)) compare(&q, (expected){BENCH_Q, BENCH_STREAM_Q, p->dtype_q, magnitude, NULL}, expect_row);
  if (!isnan(unread)) compare(&k, (expected){BENCH_K, BENCH_STREAM_K, p->dtype_kv, magnitude, NULL}, expect_row);
  compare(&v, (expected){BENCH_V, BENCH_STREAM_V, p->dtype_kv, magnitude, NULL}, expect_row);
  compare(&bias, (expected){BENCH_BIAS, BENCH_STREAM_BIAS, ATTN_F32, 1, NULL}, expect_pair);
  compare(&scores, (expected){BENCH_SCORES, BENCH_STREAM_SCORES, ATTN_F32, magnitude, NULL}, expect_pair);
  compare(&mask, (expected){BENCH_MASK, BENCH_STREAM_MASK, ATTN_F32, 1, NULL}, expect_mask);
}

/* ---- Lengths and numbers of heads ------------------------------------------------------------------------------------ */

static int64_t length_of(bench_stream stream, int64_t b, int64_t longest) {
  if (longest == 0) return 0;
  return b ? (int64_t)(bits(stream, (uint64_t)b) % (uint64_t)(longest + 1))
           : 1 + (int64_t)(bits(stream, 0) % (uint64_t)longest);
}

static void compare_lengths(const int32_t *length, const int32_t *cu, bench_stream stream, int64_t longest, int64_t total) {
  int64_t sum = 0;
  for (int64_t b = 0; b < bench.problem.batch; b++) {
    if (length) assert_int_equal(length[b], length_of(stream, b, longest));
    if (cu) assert_int_equal(cu[b], sum);
    sum += length_of(stream, b, longest);
    if (sum > total) sum = total;
    if (cu) assert_int_equal(cu[b + 1], sum);
  }
}

/* Whether some row of the KV head sees the key. */
static bool is_needed(const attn_sequence *seq, int64_t g, int64_t j) {
  const attn_problem *p = &bench.problem;
  const int64_t group = p->heads_q / p->heads_kv;
  for (int64_t i = 0; i < seq->len_q; i++) {
    const attn_key_range keys = attn_allowed_keys(p, &tensors.args, seq, seq->b, i);
    for (int64_t h = g * group; h < (g + 1) * group && j >= keys.begin && j < keys.end; h++)
      if (attn_key_selected(p, &tensors.args, seq->b, h, i, j)) return true;
  }
  return false;
}

static double size_of(attn_dtype dtype) {
  return dtype == ATTN_F32 ? 4 : dtype == ATTN_F8_E4M3 || dtype == ATTN_F8_E5M2 || dtype == ATTN_I8 ? 1 : 2;
}

static double bytes_of_row(attn_dtype dtype, int64_t dim) {
  const double blocks = (double)((dim + 31) / 32);
  return dtype == ATTN_Q8_0 ? 34 * blocks : dtype == ATTN_Q4_0 ? 18 * blocks : (double)dim * size_of(dtype);
}

/* Keys that no row sees are not read, nor are queries beyond the lengths. Outputs beyond them are written as zeros, except
 * in packed sequences. */
static double bytes_of_work(void) {
  const attn_problem *p = &bench.problem;
  double queries = 0, keys = 0, outputs = 0;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, &tensors.args, b);
    queries += (double)seq.len_q, outputs += (double)seq.rows;
    for (int64_t g = 0; g < p->heads_kv; g++)
      for (int64_t j = 0; j < seq.len_k; j++) keys += is_needed(&seq, g, j);
  }
  const double q = queries * (double)(p->heads_q * p->dim_qk) * size_of(p->dtype_q);
  const double out =
      outputs * (double)(p->heads_q * p->dim_v) * size_of(p->dtype_o) + keys * bytes_of_row(p->dtype_kv, p->dim_v);
  if (p->score == ATTN_SCORE_PRECOMPUTED) return out + 4 * bench_work_pairs(p, &tensors.args);
  return out + q + keys * bytes_of_row(p->dtype_kv, p->dim_qk);
}

static void compare_tables(void) {
  const attn_problem *p = &bench.problem;
  const attn_args *a = &tensors.args;
  assert_true(bench_work_bytes(p, a) == bytes_of_work());
  compare_lengths(a->q_len, a->cu_seqlens_q, BENCH_STREAM_Q_LEN, p->seq_q, p->total_q);
  compare_lengths(a->kv_len, a->cu_seqlens_k, BENCH_STREAM_KV_LEN, p->seq_k, p->total_k);
  for (int64_t i = 0; a->row_len && i < p->batch * p->seq_q; i++)
    assert_int_equal(a->row_len[i], bits(BENCH_STREAM_ROW_LEN, (uint64_t)i) % (uint64_t)(p->seq_k + 1));
  for (int64_t b = 0; a->offsets && b < p->batch; b++)
    assert_int_equal(a->offsets[b], bench_spec_int(&bench.spec, AXIS_OFFSET));
  for (int64_t h = 0; h < p->heads_q; h++) {
    if (a->alibi_slopes) assert_true(a->alibi_slopes[h] == (float)exp2(-8.0 * (double)(h + 1) / (double)p->heads_q));
    if (a->sinks) assert_true(a->sinks[h] == (float)normal(BENCH_STREAM_SINKS, (uint64_t)h));
    const int64_t row = p->score_weight_stride_h ? h * p->dim_qk : 0;
    for (int64_t d = 0; a->score_weight && d < p->dim_qk; d++)
      assert_true(a->score_weight[h * p->score_weight_stride_h + d] ==
                  (float)(pow((double)p->dim_qk, -0.25) * normal(BENCH_STREAM_SCORE_WEIGHT, (uint64_t)(row + d))));
  }
}

/* ---- Outputs --------------------------------------------------------------------------------------------------------- */

static void mark(void *owned, const place *at) {
  const int32_t *cu = tensors.args.cu_seqlens_q;
  ((bool *)owned)[at->at] = !cu || (at->s >= cu[0] && at->s < cu[bench.problem.batch]);
}

/* Another value in a hundred elements of the span changes the hash if they are owned, and else is damage. */
static void compare_output(bench_tensor which, attn_dtype dtype, const walk *w) {
  const bench_buffer *t = &tensors.buffers[which];
  if (!t->present) return;
  assert_true(t->bytes == w->elements * t->element_bytes);
  bool *owned = test_allocate(w->elements + 1);
  each(w, mark, owned);
  for (size_t n = 0; n < w->elements; n++)
    if (owned[n]) bench_store(t->data, dtype, (int64_t)n, 1 + (double)(n % 2));
  const uint64_t hash = bench_tensors_output_hash(&tensors);
  for (size_t n = 0; n < w->elements; n += 1 + w->elements / 100) {
    unsigned char *element = t->data + n * t->element_bytes, before[4];
    memcpy(before, element, t->element_bytes);
    bench_store(t->data, dtype, (int64_t)n, 3);
    if ((bench_tensors_output_hash(&tensors) != hash) != owned[n] || !bench_tensors_damage(&tensors) != owned[n])
      fail_msg("%s: %s, element %zu", bench.case_id, t->name, n);
    bench_store(t->data, dtype, (int64_t)n, 0);
    const uint64_t zero = bench_tensors_output_hash(&tensors);
    bench_store(t->data, dtype, (int64_t)n, -0.0);
    assert_true(bench_tensors_output_hash(&tensors) == zero); /* it has no sign */
    memcpy(element, before, t->element_bytes);
  }
  assert_true(bench_tensors_output_hash(&tensors) == hash);
  for (size_t n = 1; n < w->elements; n += w->elements / 2 + 1)
    if (owned[n] && owned[n - 1]) { /* in another order */
      bench_store(t->data, dtype, (int64_t)n, 1 + (double)((n + 1) % 2));
      bench_store(t->data, dtype, (int64_t)n - 1, 1 + (double)(n % 2));
      assert_true(bench_tensors_output_hash(&tensors) != hash);
    }
  free(owned);
}

static void compare_outputs(void) {
  const attn_problem *p = &bench.problem;
  const walk o = rows_of(p->o_stride, p->heads_q, p->seq_q, p->total_q, p->dim_v);
  const attn_strides l = {p->lse_stride.b, p->lse_stride.h, p->lse_stride.s, 1};
  const walk lse = rows_of(l, p->heads_q, p->seq_q, p->total_q, 1);
  int32_t *cu = (int32_t *)(uintptr_t)tensors.args.cu_seqlens_q;
  if (cu && cu[1] > 0) cu[0] = 1; /* the first token is of no sequence, as it may be in files */
  bench_tensors_poison_output(&tensors, 0x7d, 1);
  compare_output(BENCH_O, p->dtype_o, &o);
  compare_output(BENCH_LSE, ATTN_F32, &lse);
}

static void compare_grid(int grid, int64_t pick) {
  bench_case_list list = conformance_cases(grid, pick, 1e5, SEED);
  for (int i = 0; i < list.count; i++) {
    bench = list.item[i];
    assert_true(bench_tensors_create(&bench, &tensors));
    assert_true(bench_tensors_size(&bench) == tensors.bytes);
    find_reaches();
    compare_tensors();
    compare_tables();
    compare_outputs();
    bench_tensors_destroy(&tensors);
  }
  bench_cases_clear(&list);
}

/* ---- Pages ----------------------------------------------------------------------------------------------------------- */

static const void *element_of(const void *tensor, int64_t at, size_t bytes) {
  return (const char *)tensor + at * (int64_t)bytes;
}

/* One row of K or V in its page has the values of the same key in dense tensors. Returns how many bytes it has. */
static size_t compare_key(const bench_buffer *paged, const void *there, const bench_buffer *dense, const void *here,
                          const int64_t key[3], const int64_t token[3]) {
  const int64_t *s = paged->stride, *d = dense->stride;
  const size_t bytes = paged->element_bytes;
  for (int64_t x = 0; x < paged->extent[3]; x++)
    assert_memory_equal(element_of(there, token[0] * s[0] + token[1] * s[1] + token[2] * s[2] + x * s[3], bytes),
                        element_of(here, key[0] * d[0] + key[1] * d[1] + key[2] * d[2] + x * d[3], bytes), bytes);
  return (size_t)paged->extent[3] * bytes;
}

static size_t bytes_without_poison(const bench_buffer *t) {
  size_t count = 0;
  for (size_t i = 0; i < t->bytes; i += t->element_bytes) {
    bool poison = true;
    for (size_t n = 0; n < t->element_bytes; n++) poison &= t->data[i + n] == (t->dtype == ATTN_I8 ? 0x80 : 0xff);
    count += poison ? 0 : t->element_bytes;
  }
  return count;
}

/* Pages of needed keys are each named once, other entries name none; outside of needed keys all is poison. Returns whether
 * some page stands where the order would not have it. */
static bool compare_pages(const char *id) {
  char error[256];
  bench_spec spec;
  assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &bench);
  assert_string_equal(bench.invalid, "");
  bench_case dense_case;
  bench_spec_set(&spec, AXIS_PAGE_TOKENS, "");
  bench_case_build(&spec, SEED, &dense_case);
  dense_case.seed = bench.seed;
  bench_tensors dense;
  assert_true(bench_tensors_create(&bench, &tensors) && bench_tensors_create(&dense_case, &dense));
  const attn_problem *p = &bench.problem;
  bool named[64] = {false}, moved = false;
  size_t used = 0;
  if (is(AXIS_PAGE_ORDER, "ring"))
    assert_true(p->pages < p->batch * p->page_table_stride);
  else
    assert_true(p->pages == p->batch * p->page_table_stride && p->pages <= 64);
  find_reaches();
  for (int64_t b = 0; b < p->batch; b++) {
    const reach *r = &reaches[b];
    assert_true(tensors.args.kv_len[b] ==
                (is(AXIS_LENGTHS, "full") ? p->seq_k : length_of(BENCH_STREAM_KV_LEN, b, p->seq_k)));
    for (int64_t at = 0; at < p->page_table_stride; at++) {
      const int32_t page = tensors.args.page_table[b * p->page_table_stride + at];
      if (r->key_end <= at * p->page_tokens || (at + 1) * p->page_tokens <= r->key_begin) {
        assert_int_equal(page, -1);
        continue;
      }
      assert_true(page >= 0 && page < p->pages && !named[page]);
      named[page] = true;
      moved |= page != b * p->page_table_stride + at;
      for (int64_t j = at * p->page_tokens; j < (at + 1) * p->page_tokens; j++)
        for (int64_t h = 0; h < p->heads_kv && j >= r->key_begin && j < r->key_end; h++) {
          const int64_t key[] = {b, h, j}, token[] = {page, h, j % p->page_tokens};
          const bench_buffer *t = tensors.buffers, *d = dense.buffers;
          used += compare_key(&t[BENCH_K], tensors.args.k, &d[BENCH_K], dense.args.k, key, token);
          used += compare_key(&t[BENCH_V], tensors.args.v, &d[BENCH_V], dense.args.v, key, token);
        }
    }
  }
  assert_true(used > 0 &&
              used == bytes_without_poison(&tensors.buffers[BENCH_K]) + bytes_without_poison(&tensors.buffers[BENCH_V]));
  assert_true(bench_work_bytes(p, &tensors.args) == bytes_of_work());
  assert_true(bench_work_bytes(p, &tensors.args) == bench_work_bytes(&dense_case.problem, &dense.args));
  bench_tensors_destroy(&tensors);
  bench_tensors_destroy(&dense);
  return moved;
}

TEST(pages_hold_the_keys_of_dense_tensors) {
#define PAGED "B:3/Hq:4/Hkv:2/Sq:5/Sk:150/D:8/Dv:6/causal:bottom-right"
  assert_false(compare_pages(PAGED "/page_tokens:16/lengths:kv_len"));
  assert_false(compare_pages(PAGED "/page_tokens:64/layout:bshd"));
  assert_true(compare_pages(PAGED "/page_tokens:16/page_order:shuffled/lengths:kv_len"));
  assert_true(compare_pages(PAGED "/page_tokens:16/page_order:shuffled/window:20..0/layout:strided/lengths:both"));
  assert_true(compare_pages("dtype:bf16/" PAGED "/page_tokens:48/page_order:shuffled/layout:reversed"));
  assert_true(compare_pages("dtype:f32+q8_0/" PAGED "/page_tokens:16/page_order:shuffled/layout:strided"));
  assert_true(compare_pages("dtype:f32+q4_0/" PAGED "/page_tokens:16/page_order:shuffled/layout:reversed"));
  assert_true(compare_pages(PAGED "/page_tokens:16/page_order:ring/window:20..0/lengths:both"));
  assert_true(compare_pages(PAGED "/page_tokens:32/page_order:ring/window:9..0/layout:bshd"));
#undef PAGED
}

/* A case of packed queries in pages: its lengths and borders agree, and no sequence has more queries than keys. */
static void create_packed(const char *id) {
  char error[256];
  bench_spec spec;
  assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &bench);
  assert_string_equal(bench.invalid, "");
  assert_true(bench_tensors_create(&bench, &tensors));
  const attn_problem *p = &bench.problem;
  const int32_t *cu = tensors.args.cu_seqlens_q;
  assert_true(cu[0] == 0 && cu[p->batch] <= p->total_q);
  for (int64_t b = 0; b < p->batch; b++) {
    const int32_t queries = bench_query_count(&bench, b), keys = bench_key_count(&bench, b);
    assert_true(queries == cu[b + 1] - cu[b] && keys == tensors.args.kv_len[b]);
    assert_true(0 <= queries && queries <= keys && keys <= p->seq_k);
  }
}

TEST(chunks_are_the_last_tokens) {
#define PAGED "B:40/Hq:1/Hkv:1/Sq:9/Sk:100/D:4/Dv:4/causal:bottom-right/page_tokens:16"
  create_packed(PAGED "/chunk:33");
  assert_true(bench.problem.seq_q == 33 && tensors.args.kv_len[39] == 100);
  for (int b = 0; b < 40; b++) assert_true(tensors.args.cu_seqlens_q[b] == 33 * b);
  bench_tensors_destroy(&tensors);
  create_packed(PAGED "/chunk:33/lengths:kv_len");
  int shorter = 0;
  for (int b = 0; b < 40; b++) {
    const int32_t keys = tensors.args.kv_len[b], queries = tensors.args.cu_seqlens_q[b + 1] - tensors.args.cu_seqlens_q[b];
    assert_true(keys == length_of(BENCH_STREAM_KV_LEN, b, 100) && queries == (keys < 33 ? keys : 33));
    shorter += queries < 33;
  }
  assert_true(shorter > 0);
  bench_tensors_destroy(&tensors);
}

/* Every eighth sequence brings a chunk, the others one token; lengths reach over all four octaves, and no further. */
TEST(mixed_requests) {
  static const int64_t longest[] = {1, 3, 16, 100, 4096};
  for (size_t n = 0; n < sizeof longest / sizeof *longest; n++) {
    char id[200];
    snprintf(id, sizeof id, "B:200/Hq:1/Hkv:1/Sq:12/Sk:%d/D:1/Dv:1/lengths:mixed/page_tokens:64", (int)longest[n]);
    create_packed(id);
    int octaves[4] = {0};
    for (int b = 0; b < 200; b++) {
      const int32_t keys = tensors.args.kv_len[b], queries = tensors.args.cu_seqlens_q[b + 1] - tensors.args.cu_seqlens_q[b];
      const int32_t most = b % 8 ? 1 : 12;
      assert_true(keys > longest[n] >> 5 && queries == (keys < most ? keys : most));
      for (int o = 0; o < 4; o++) octaves[o] += keys > longest[n] >> (o + 1) && keys <= longest[n] >> o;
    }
    for (int o = 0; o < 4; o++) assert_true(longest[n] < 64 || octaves[o] > 25);
    bench_tensors_destroy(&tensors);
  }
#undef PAGED
}

/* Two rows of K and V change places in pages of the same sequence, and back again. */
TEST(keys_in_pages_change_places) {
  char error[256];
  bench_spec spec;
  const char *id = "B:3/Hq:2/Hkv:2/Sq:2/Sk:150/D:4/Dv:4/page_tokens:16/page_order:shuffled/lengths:kv_len";
  assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &bench);
  bench_tensors before;
  uint64_t random = 9;
  assert_true(bench_tensors_create(&bench, &tensors) && bench_tensors_create(&bench, &before));
  assert_true(bench_tensors_vary(&tensors, NULL, &random));
  bench_tensors_freshen(&tensors, &random, 1);
  for (int which = BENCH_K; which <= BENCH_V; which++) {
    const bench_buffer *now = &tensors.buffers[which], *then = &before.buffers[which];
    int changed = 0;
    for (size_t row = 0; row < now->bytes; row += 16) changed += memcmp(now->data + row, then->data + row, 16) != 0;
    int sequences = 0;
    for (int64_t b = 0; b < 3; b++) sequences += tensors.args.kv_len[b] > 1;
    assert_true(sequences > 1);
    assert_int_equal(changed, 2 * 2 * sequences); /* two rows in two heads */
  }
  bench_tensors_restore(&tensors, 1);
  assert_true(bench_tensors_input_hash(&tensors) == bench_tensors_input_hash(&before));
  bench_tensors_destroy(&tensors);
  bench_tensors_destroy(&before);
}

/* V in rows of K: the same memory in copies, too; both change when rows change places, and come back. */
TEST(latent_values_lie_in_keys) {
  char error[256];
  bench_spec spec;
  uint64_t random = 9;
  assert_true(bench_spec_from_id("B:2/Hq:4/Hkv:1/Sq:2/Sk:50/D:9/Dv:4/latent:on", &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &bench);
  bench_tensors copy, apart;
  bench_case own = bench;
  assert_true(bench_spec_from_id("B:2/Hq:4/Hkv:1/Sq:2/Sk:50/D:9/Dv:4", &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &own);
  assert_true(bench_tensors_create(&bench, &tensors) && bench_tensors_clone(&tensors, &copy));
  assert_true(bench_tensors_create(&own, &apart));
  assert_true(tensors.args.v == tensors.args.k && copy.args.v == copy.args.k && copy.args.k != tensors.args.k);
  assert_true(bench.problem.v_stride.s == 9 && tensors.bytes < apart.bytes);
  assert_true(bench_tensors_size(&bench) == tensors.bytes);
  bench_tensors_renew_v(&tensors, 1);
  assert_true(bench_v_factor(&tensors) == 1);
  const uint64_t before = bench_tensors_input_hash(&copy);
  assert_true(bench_tensors_input_hash(&tensors) == before && bench_tensors_vary(&tensors, NULL, &random));
  bench_tensors_freshen(&tensors, &random, 1);
  assert_true(memcmp(tensors.args.v, copy.args.v, 2 * 50 * 9 * sizeof(float)) != 0);
  assert_true(bench_tensors_damage(&tensors) == NULL);
  bench_tensors_restore(&tensors, 1);
  assert_true(bench_tensors_input_hash(&tensors) == before);
  bench_tensors_destroy(&tensors);
  bench_tensors_destroy(&copy);
  bench_tensors_destroy(&apart);
}

TEST(latent_values_need_keys_that_hold_them) {
  static const char *const wrong[][2] = {{"D:4/Dv:9/latent:on", "dim_v must be at most dim_qk"},
                                         {"D:9/Dv:4/latent:on/kv_scales:token", "kv_scales must be none"},
                                         {"D:9/Dv:4/latent:on/score:precomputed", "score=precomputed"},
                                         {"D:9/Dv:4/latent:on/layout:spread", "layout"}};
  for (int i = 0; i < 4; i++) {
    char error[256], id[128];
    bench_spec spec;
    snprintf(id, sizeof id, "B:2/Hq:4/Hkv:1/Sq:2/Sk:50/%s", wrong[i][0]);
    assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
    bench_case_build(&spec, SEED, &bench);
    test_contains(bench.invalid, wrong[i][1]);
  }
}

static int by_bytes(const void *a, const void *b) { return memcmp(a, b, 16); }

/* A kernel could compute rows that are alike once, and find changed keys by one column. */
TEST(fresh_rows_differ_and_hide_the_changed_keys) {
  enum { ROWS = 8192, TIMES = 64 };
  char error[256];
  bench_spec spec;
  uint64_t random = 9;
  static float rows[ROWS][4];
  assert_true(bench_spec_from_id("B:1/Hq:1/Hkv:1/Sq:8192/Sk:7/D:4/Dv:4", &spec, error, sizeof error));
  bench_case_build(&spec, SEED, &bench);
  bench_tensors before;
  assert_true(bench_tensors_create(&bench, &tensors) && bench_tensors_create(&bench, &before));
  assert_true(bench_tensors_vary(&tensors, NULL, &random));
  int shown[4] = {0};
  for (int i = 0; i < TIMES; i++) {
    bench_tensors_freshen(&tensors, &random, 1);
    for (int column = 0; column < 4; column++) {
      bool shows = false;
      for (int64_t at = column; at < 28; at += 4) shows |= ((float *)tensors.args.k)[at] != ((float *)before.args.k)[at];
      shown[column] += shows;
    }
  }
  for (int column = 0; column < 4; column++) assert_in_range(shown[column], TIMES / 4, TIMES * 3 / 4);
  memcpy(rows, tensors.args.q, sizeof rows);
  qsort(rows, ROWS, sizeof *rows, by_bytes);
  int alike = 0;
  for (int i = 1; i < ROWS; i++) alike += !by_bytes(rows[i - 1], rows[i]);
  assert_true(alike < ROWS / 100);
  bench_tensors_destroy(&tensors);
  bench_tensors_destroy(&before);
}

TEST(tensors_are_those_of_their_case) {
  compare_grid(0, CASES);
  compare_grid(1, CASES / 3);
}

/* ---- Rounding -------------------------------------------------------------------------------------------------------- */

static uint16_t stored(attn_dtype dtype, double value) {
  uint16_t bits16;
  bench_store(&bits16, dtype, 0, value);
  return bits16;
}

/* Every number of a type, and the middle between two: to even; and beside the middle to the nearer one. */
TEST(values_round_to_the_nearest_of_their_type) {
  for (int type = 0; type < 2; type++) {
    const attn_dtype dtype = type ? ATTN_BF16 : ATTN_F16;
    const uint16_t infinite = type ? 0x7f80 : 0x7c00;
    for (uint16_t low = 0; low + 1 < infinite; low++) {
      const uint16_t pair[] = {low, (uint16_t)(low + 1)};
      const double a = attn_oracle_load(pair, dtype, 0), middle = (a + attn_oracle_load(pair, dtype, 1)) / 2;
      assert_int_equal(stored(dtype, a), low);
      assert_int_equal(stored(dtype, -middle), 0x8000 | pair[low % 2]);
      assert_int_equal(stored(dtype, (double)nextafterf((float)middle, 0)), low);
      assert_int_equal(stored(dtype, (double)nextafterf((float)middle, INFINITY)), low + 1);
    }
    assert_int_equal(stored(dtype, -INFINITY), 0x8000 | infinite);
    assert_int_equal(stored(dtype, 3.4e38), type ? 0x7f80 : 0x7c00);
    assert_true((stored(dtype, NAN) & 0x7fff) > infinite);
  }
}

/* The same for types of 8 bits; values beyond the largest one become that. */
TEST(values_round_to_the_nearest_of_8_bits) {
  for (int type = 0; type < 2; type++) {
    const attn_dtype dtype = type ? ATTN_F8_E5M2 : ATTN_F8_E4M3;
    const uint8_t largest = type ? 0x7b : 0x7e;
    uint8_t byte[2];
    for (byte[0] = 0; byte[0] < largest; byte[0]++) {
      byte[1] = (uint8_t)(byte[0] + 1);
      const double a = attn_oracle_load(byte, dtype, 0), middle = (a + attn_oracle_load(byte, dtype, 1)) / 2;
      const double values[] = {a, -middle, (double)nextafterf((float)middle, 0),
                               (double)nextafterf((float)middle, INFINITY)};
      const int right[] = {byte[0], 0x80 | byte[byte[0] % 2], byte[0], byte[1]};
      for (int i = 0; i < 4; i++) {
        uint8_t ours, theirs;
        bench_store(&ours, dtype, 0, values[i]);
        attn_store_f32(&theirs, dtype, 0, (float)values[i]);
        assert_int_equal(ours, right[i]);
        assert_int_equal(theirs, right[i]);
      }
    }
    static const double ends[] = {-INFINITY, 3e38, -61440, 464, NAN};
    for (size_t i = 0; i < COUNT(ends); i++) {
      uint8_t ours, theirs;
      bench_store(&ours, dtype, 0, ends[i]);
      attn_store_f32(&theirs, dtype, 0, (float)ends[i]);
      assert_int_equal(ours, theirs);
      if (i < 3) assert_int_equal(ours, (ends[i] < 0 ? 0x80 : 0) | largest);
      if (isnan(ends[i])) assert_true(isnan(attn_oracle_load(&ours, dtype, 0)));
    }
  }
}

/* And for integers of 8 bits, whose ends are both kept. */
TEST(values_round_to_the_nearest_integer) {
  for (int i = -128; i <= 127; i++) {
    const double middle = i + 0.5;
    const struct {
      double x;
      int right;
    } values[] = {{i, i},
                  {middle, i == 127 ? i : i + (i & 1)},
                  {(double)nextafterf((float)middle, -INFINITY), i},
                  {(double)nextafterf((float)middle, INFINITY), i == 127 ? i : i + 1}};
    for (size_t n = 0; n < COUNT(values); n++) {
      int8_t ours, theirs;
      bench_store(&ours, ATTN_I8, 0, values[n].x);
      attn_store_f32(&theirs, ATTN_I8, 0, (float)values[n].x);
      assert_int_equal(ours, values[n].right);
      assert_int_equal(theirs, values[n].right);
    }
  }
  static const double ends[] = {-INFINITY, -3e38, -128.5, -129, INFINITY, 3e38, 128, NAN, 1e-40, -0.0, -0.5};
  static const int right[] = {-128, -128, -128, -128, 127, 127, 127, 0, 0, 0, 0};
  for (size_t i = 0; i < COUNT(ends); i++) {
    int8_t ours, theirs;
    bench_store(&ours, ATTN_I8, 0, ends[i]);
    attn_store_f32(&theirs, ATTN_I8, 0, (float)ends[i]);
    assert_int_equal(ours, right[i]);
    assert_int_equal(theirs, right[i]);
  }
}

/* Values of a block are the nearest that its scale allows; the farthest from 0 is the lowest integer. What a row leaves of
 * the block is not zero. A block of one value that is a power of two holds it exactly. */
TEST(values_round_to_the_nearest_of_their_block) {
  enum { COUNT_OF_ROW = 45, BLOCKS = 2, VALUES = 32 };
  for (int type = 0; type < 2; type++) {
    const attn_dtype dtype = type ? ATTN_Q4_0 : ATTN_Q8_0;
    const double levels = type ? 8 : 128;
    uint8_t row[BLOCKS * 34];
    double x[COUNT_OF_ROW];
    for (int i = 0; i < COUNT_OF_ROW; i++) x[i] = bench_value_normal(SEED, BENCH_STREAM_K, (uint64_t)i);
    bench_store_row(row, dtype, 0, x, COUNT_OF_ROW);
    for (int i = 0; i < COUNT_OF_ROW; i++) {
      double largest = 0;
      for (int k = i / VALUES * VALUES; k < COUNT_OF_ROW && k < (i / VALUES + 1) * VALUES; k++)
        largest = fmax(largest, fabs(x[k]));
      const double error = fabs(attn_oracle_load(row, dtype, i) - x[i]), half = largest / levels / 2 * (1 + 0x1p-10);
      const bool clipped = fabs(x[i]) > (levels - 1) * largest / levels; /* the largest integer is one less */
      assert_true(error <= (clipped ? 2 * half : half) + 0x1p-11 * fabs(x[i]));
    }
    for (int i = COUNT_OF_ROW; i < BLOCKS * VALUES; i++) assert_true(attn_oracle_load(row, dtype, i) != 0);
    bench_store_row(row, dtype, 32, (const double[]){0, -4}, 2);
    assert_true(attn_oracle_load(row, dtype, 32) == 0 && attn_oracle_load(row, dtype, 33) == -4);
    assert_true(fabs(attn_oracle_load(row, dtype, 0) - x[0]) < 1); /* the first block is another one */
  }
}

/* Box and Muller's transform of 24 and 24 bits, once more; and what a generator must not do: repeat itself. */
TEST(normal_values_are_those_of_their_bits) {
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < 20000; i++) {
    const uint64_t x = bench_value_bits(SEED, BENCH_STREAM_K, i);
    const double radius = sqrt(-2 * log(ldexp((double)(x >> 40) + 0.5, -24)));
    const double got = bench_value_normal(SEED, BENCH_STREAM_K, i);
    assert_true(fabs(got - radius * cos(2 * acos(-1.0) * ldexp((double)(x & 0xffffff), -24))) < 1e-5);
    assert_true(x != bench_value_bits(SEED, BENCH_STREAM_V, i) && x != bench_value_bits(SEED + 1, BENCH_STREAM_K, i));
    sum += got, squares += got * got;
  }
  assert_true(fabs(sum / 20000) < 0.03 && fabs(squares / 20000 - 1) < 0.04);
}
