/* SPDX-License-Identifier: MIT */
/* Writing a KV cache (include/attn/kv.h): where each new token comes from and goes to, checks, and tasks. A task is a block
 * of tokens. It computes their sines and cosines once, and hands their rows of q, k and v to the tier's writer
 * (kernels/kv_rows.h).
 *
 * A dense cache is pages, too: one page of `capacity` tokens for each sequence. */
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/layouts.h"
#include "src/api/strides.h"
#include "src/choice/dispatch.h"
#include "src/choice/paying_threads.h"
#include "src/layers/rope.h"
#include "src/plan/nodes.h"
#include "src/plan/parallel.h"
#include "src/registry/tier_parts.h"

static const attn_struct_layout append_layout = ATTN_LAYOUT(attn_kv_append_args, q_out_dtype);
static const attn_struct_layout rotate_layout = ATTN_LAYOUT(attn_rope_args, x_stride);

enum {
  STAGED_FLOATS = 4096,               /* rows that are multiplied on their way, as floats on the stack; a power of two */
  STAGED_HEADS = 32,                  /* and how many rows at most */
  FEW_TOKENS = 32,                    /* a block where threads share few tokens or rows are rotated */
  BLOCK_TOKENS = KV_ROWS_MOST_TOKENS, /* a head's rows of a block are copied in one go, which prefetchers need */
  BLOCKS_OF_THREAD = 4,
  TABLE_FLOATS = 2048 /* sines of a block, and as many cosines: on the stack */
};

/* One of q, k and v: rows that go from one tensor to another. */
typedef struct route {
  const char *from_name, *to_name;
  attn_storage from;
  attn_strides from_stride;
  void *to;
  attn_dtype to_dtype;
  attn_strides to_stride;
  int64_t heads, dim;
  bool cached, rotated, mixed;
  const char *given_name, *made_name; /* factors: at most one of them is there */
  const float *given;
  float *made;
  attn_strides factor_stride;
} route;

enum { MOST_ROUTES = 3 };

typedef struct job {
  const char *name, *q_name, *q_out_name; /* names of the caller's struct and its fields */
  attn_kv_append_args a;
  const attn_kv_rows_kernel *kernel;
  route routes[MOST_ROUTES];
  int route_count;
  int64_t total;       /* rows of new tokens, padding included */
  int64_t page_tokens; /* a dense cache's capacity */
  int64_t pages;
  int64_t block_tokens;
} job;

/* ---- Where tokens are ---- */

typedef struct token {
  int64_t b, i; /* sequence, and which of its new tokens */
  bool real;    /* not padding */
} token;

/* The sequence that packed token t belongs to: the last that begins at t or before, and is not empty. */
static int64_t sequence_of(const attn_kv_append_args *a, int64_t t) {
  int64_t low = 0, high = a->batch; /* cu[low] <= t < cu[high] */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (a->cu_seqlens[middle] <= t)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static token token_at(const job *j, int64_t t) {
  const attn_kv_append_args *a = &j->a;
  if (a->cu_seqlens) {
    if (a->batch == 0 || t < a->cu_seqlens[0] || t >= a->cu_seqlens[a->batch]) return (token){0, 0, false};
    const int64_t b = sequence_of(a, t);
    return (token){b, t - a->cu_seqlens[b], !a->slots || a->slots[t] != -1};
  }
  const token at = {t / a->tokens, t % a->tokens, true};
  if (a->counts && at.i >= a->counts[at.b]) return (token){at.b, at.i, false};
  return (token){at.b, at.i, !a->slots || a->slots[t] != -1};
}

static int64_t past_of(const attn_kv_append_args *a, int64_t b) { return a->past ? a->past[b] : 0; }

static int64_t new_tokens(const attn_kv_append_args *a, int64_t b) {
  if (a->cu_seqlens) return a->cu_seqlens[b + 1] - a->cu_seqlens[b];
  return a->counts ? a->counts[b] : a->tokens;
}

/* Where a new token begins in a route's tensor, in elements. */
static int64_t offset_of_new(const job *j, const attn_strides *stride, int64_t t, const token *at) {
  return j->a.cu_seqlens ? t * stride->s : at->b * stride->b + at->i * stride->s;
}

static int64_t offset_in_cache(const job *j, const attn_strides *stride, int64_t t, const token *at) {
  const attn_kv_append_args *a = &j->a;
  const int64_t place = a->slots ? a->slots[t] : past_of(a, at->b) + at->i;
  int64_t page = place / j->page_tokens;
  if (!a->slots) page = a->page_tokens ? a->page_table[at->b * a->page_table_stride + page] : at->b;
  return page * stride->b + place % j->page_tokens * stride->s;
}

/* ---- Tasks ---- */

/* A block of tokens that are written. */
typedef struct block {
  int64_t count, index[BLOCK_TOKENS];
  token at[BLOCK_TOKENS];
  const float *cosine, *sine; /* NULL without rope */
} block;

/* Blocks are equal, so that threads end together. */
static int64_t tokens_per_block(const job *j, int threads) {
  int64_t most = threads == 1 ? BLOCK_TOKENS : ceil_div(j->total, BLOCKS_OF_THREAD * threads);
  most = min64(max64(most, FEW_TOKENS), BLOCK_TOKENS);
  if (j->a.rope) most = min64(FEW_TOKENS, TABLE_FLOATS / j->a.rope->turns.dim);
  return ceil_div(j->total, ceil_div(j->total, most));
}

static void find_tokens(const job *j, int64_t first, block *b) {
  const int64_t end = min64(first + j->block_tokens, j->total);
  b->count = 0;
  for (int64_t t = first; t < end; t++) {
    const token at = token_at(j, t);
    if (!at.real) continue;
    b->index[b->count] = t;
    b->at[b->count++] = at;
  }
}

static void find_angles(const job *j, const block *b, float *cosine, float *sine) {
  const attn_rope_turns *turns = &j->a.rope->turns;
  for (int64_t n = 0; n < b->count; n++) {
    const int64_t position = j->a.positions ? j->a.positions[b->index[n]] : past_of(&j->a, b->at[n].b) + b->at[n].i;
    j->kernel->angles(turns, position, cosine + n * turns->dim, sine + n * turns->dim);
  }
}

/* ---- Rows with factors ---- */

/* The largest number of the type. */
static float largest_of(attn_dtype dtype) {
  _Alignas(float) char number[sizeof(attn_q8_0)] = {0}; /* has room for any type */
  attn_store_f32(number, dtype, 0, INFINITY);
  return attn_load_f32((attn_storage){number, dtype}, 0);
}

/* `heads` rows of one token, of which the elements from `first` on, `count` of them, are floats[][count]. */
typedef struct staged {
  const attn_kv_rows *rows;
  int64_t token, head, heads, first, count;
  int64_t mixed; /* neighbours that a Hadamard matrix mixes, a power of two; 1: none */
  float *floats;
} staged;

/* The rows of a Hadamard matrix: blocks of the largest power of two that divides the row, and that a stage holds. */
static int64_t mixed_elements(int64_t dim) { return min64(dim & -dim, STAGED_FLOATS); }

/* x = H x / sqrt(n) for each n neighbours, in the order of steps that docs/semantics.md gives. */
static void mix(float *x, int64_t count, int64_t n) {
  const float scale = (float)(1 / sqrt((double)n));
  for (int64_t half = 1; half < n; half *= 2)
    for (float *from = x; from < x + count; from += 2 * half)
      for (int64_t i = 0; i < half; i++) {
        const float low = from[i], high = from[half + i];
        from[i] = low + high;
        from[half + i] = low - high;
      }
  for (int64_t i = 0; i < count; i++) x[i] *= scale;
}

static void stage(const attn_kv_rows_kernel *kernel, const staged *s) {
  const attn_kv_rows *r = s->rows;
  const int64_t from = r->from_at[s->token] + s->head * r->from_head + s->first * r->from_element, to = 0;
  const bool turns = r->turns && s->first == 0;
  kernel->write(&(attn_kv_rows){.tokens = 1,
                                .heads = s->heads,
                                .dim = s->count,
                                .from = r->from,
                                .from_at = &from,
                                .from_head = r->from_head,
                                .from_element = r->from_element,
                                .to = s->floats,
                                .to_at = &to,
                                .to_head = s->count,
                                .to_element = 1,
                                .turns = turns ? r->turns : NULL,
                                .cosine = turns ? r->cosine + s->token * r->turns->dim : NULL,
                                .sine = turns ? r->sine + s->token * r->turns->dim : NULL});
  if (s->mixed > 1) mix(s->floats, s->heads * s->count, s->mixed);
}

static void store_staged(const attn_kv_rows_kernel *kernel, const staged *s) {
  const attn_kv_rows *r = s->rows;
  const int64_t from = 0, to = r->to_at[s->token] + s->head * r->to_head + s->first * r->to_element;
  kernel->write(&(attn_kv_rows){.tokens = 1,
                                .heads = s->heads,
                                .dim = s->count,
                                .from = {s->floats, ATTN_F32},
                                .from_at = &from,
                                .from_head = s->count,
                                .from_element = 1,
                                .to = r->to,
                                .to_dtype = r->to_dtype,
                                .to_at = &to,
                                .to_head = r->to_head,
                                .to_element = r->to_element});
}

/* The bits of the largest absolute value; NaN is beyond infinity. */
static uint32_t largest_bits(const float *row, int64_t count, uint32_t largest) {
  for (int64_t d = 0; d < count; d++) {
    const uint32_t bits = attn_bits_of_f32(row[d]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/* A row's factor by its largest absolute value. Its reciprocal is finite. */
static float factor_of(float largest, float largest_of_type) {
  const float factor = largest / largest_of_type;
  return factor < FLT_MIN ? 0 : factor;
}

/* The number that multiplies a row with the factor. */
static float inverse_of(float factor) { return factor != 0 && factor < INFINITY && factor > -INFINITY ? 1 / factor : 0; }

static void multiply(float *row, int64_t count, float by) {
  for (int64_t d = 0; d < count; d++) row[d] *= by;
}

/* Makes the factors of the rows, which are staged then if one stage holds them. */
static void make_factors(const job *j, const route *r, staged s, float *factor) {
  uint32_t largest[STAGED_HEADS] = {0};
  for (; s.first < r->dim; s.first += s.count) {
    s.count = min64(s.count, r->dim - s.first);
    stage(j->kernel, &s);
    for (int64_t h = 0; h < s.heads; h++) largest[h] = largest_bits(s.floats + h * s.count, s.count, largest[h]);
  }
  const float largest_of_type = largest_of(r->to_dtype);
  for (int64_t h = 0; h < s.heads; h++)
    factor[h * r->factor_stride.h] = factor_of(attn_f32_of_bits(largest[h]), largest_of_type);
}

/* factor: NULL = 1. */
static void write_staged(const job *j, const route *r, staged s, const float *factor) {
  const bool whole = s.count == r->dim;
  for (; s.first < r->dim; s.first += s.count) {
    s.count = min64(s.count, r->dim - s.first);
    if (!whole || !r->made) stage(j->kernel, &s);
    for (int64_t h = 0; factor && h < s.heads; h++)
      multiply(s.floats + h * s.count, s.count, inverse_of(factor[h * r->factor_stride.h]));
    store_staged(j->kernel, &s);
  }
}

/* The block's rows, mixed if asked, each multiplied by 1 / its factor. */
static NO_INLINE void write_as_floats(const job *j, const route *r, const block *b, const attn_kv_rows *rows) {
  float floats[STAGED_FLOATS];
  const float *factors = r->made ? r->made : r->given;
  staged s = {.rows = rows, .mixed = r->mixed ? mixed_elements(r->dim) : 1, .floats = floats};
  for (s.token = 0; s.token < b->count; s.token++) {
    const int64_t at = factors ? offset_in_cache(j, &r->factor_stride, b->index[s.token], &b->at[s.token]) : 0;
    for (s.head = 0; s.head < r->heads; s.head += s.heads) {
      s.count = min64(r->dim, STAGED_FLOATS);
      s.heads = min64(min64(r->heads - s.head, STAGED_FLOATS / s.count), STAGED_HEADS);
      const int64_t first = at + s.head * r->factor_stride.h;
      if (r->made) make_factors(j, r, s, r->made + first);
      write_staged(j, r, s, factors ? factors + first : NULL);
    }
  }
}

static void write_route(const job *j, const route *r, const block *b) {
  int64_t from_at[BLOCK_TOKENS], to_at[BLOCK_TOKENS];
  for (int64_t n = 0; n < b->count; n++) {
    const int64_t t = b->index[n];
    from_at[n] = offset_of_new(j, &r->from_stride, t, &b->at[n]);
    to_at[n] = (r->cached ? offset_in_cache : offset_of_new)(j, &r->to_stride, t, &b->at[n]);
  }
  const attn_kv_rows rows = {.tokens = b->count,
                             .heads = r->heads,
                             .dim = r->dim,
                             .from = r->from,
                             .from_at = from_at,
                             .from_head = r->from_stride.h,
                             .from_element = r->from_stride.d,
                             .to = r->to,
                             .to_dtype = r->to_dtype,
                             .to_at = to_at,
                             .to_head = r->to_stride.h,
                             .to_element = r->to_stride.d,
                             .turns = r->rotated ? &j->a.rope->turns : NULL,
                             .cosine = b->cosine,
                             .sine = b->sine};
  if (r->given || r->made || r->mixed)
    write_as_floats(j, r, b, &rows);
  else
    j->kernel->write(&rows);
}

static NO_INLINE void write_routes(const job *j, const block *b) {
  for (int i = 0; i < j->route_count; i++) write_route(j, &j->routes[i], b);
}

/* Its own function, because tables fill a stack frame. */
static NO_INLINE void turn_and_write(const job *j, block *b) {
  _Alignas(64) float cosine[TABLE_FLOATS];
  _Alignas(64) float sine[TABLE_FLOATS];
  find_angles(j, b, cosine, sine);
  b->cosine = cosine;
  b->sine = sine;
  write_routes(j, b);
}

static void run_block(void *context, int64_t task, int worker) {
  const job *j = context;
  block b;
  (void)worker;
  const uint64_t mode = attn_float_mode_enter();
  b.cosine = b.sine = NULL;
  find_tokens(j, task * j->block_tokens, &b);
  if (b.count > 0) (j->a.rope ? turn_and_write(j, &b) : write_routes(j, &b));
  attn_float_mode_leave(mode);
}

static void run_job(job *j, const attn_options *options, bool open_threads) {
  attn_options now = *options;
  int64_t elements = 0;
  for (int i = 0; i < j->route_count; i++) elements += j->routes[i].heads * j->routes[i].dim * j->total;
  if (open_threads && !attn_parallel_pays(elements, 2 * attn_element_ns())) now.threads = 1; /* each is read and written */
  j->block_tokens = tokens_per_block(j, now.threads);
  /* The pages of a cache lie in the order of its sequences, which is that of the blocks. */
  const bool near = attn_nodes_count(attn_parallel_nodes(now.threads)) > 1;
  (near ? attn_parallel_run_near : attn_parallel_run)(&now, ceil_div(j->total, j->block_tokens), run_block, j);
}

/* ---- Checks ---- */

typedef struct size_field {
  const char *field;
  int64_t value, least;
} size_field;

static attn_status check_fields(const size_field *sizes, size_t count) {
  for (const size_field *s = sizes; s < sizes + count; s++)
    REQUIRE(s->value >= s->least && s->value <= ATTN_SIZE_LIMIT, "%s is %" PRId64 "; it must be in %" PRId64 "..2^31",
            s->field, s->value, s->least);
  return ATTN_OK;
}

static attn_status check_float(const char *field, attn_dtype dtype) {
  REQUIRE(attn_dtype_is_float(dtype), "%s is %d; it must be " ATTN_FLOAT_CONSTANTS, field, (int)dtype);
  return ATTN_OK;
}

static attn_status check_dtypes(const attn_kv_append_args *a) {
  attn_status status = check_float("attn_kv_append_args.dtype", a->dtype);
  if (status == ATTN_OK) status = check_float("attn_kv_append_args.q_out_dtype", a->q_out_dtype);
  if (status != ATTN_OK) return status;
  REQUIRE(attn_dtype_exists(a->cache_dtype), "attn_kv_append_args.cache_dtype is %d; it must be " ATTN_DTYPE_CONSTANTS,
          (int)a->cache_dtype);
  return ATTN_OK;
}

static attn_status check_sizes(const attn_kv_append_args *a) {
  const size_field sizes[] = {{"attn_kv_append_args.batch", a->batch, 0},
                              {"attn_kv_append_args.tokens", a->tokens, 0},
                              {"attn_kv_append_args.heads_q", a->q ? a->heads_q : 1, 1},
                              {"attn_kv_append_args.heads_kv", a->k || a->v ? a->heads_kv : 1, 1},
                              {"attn_kv_append_args.dim_qk", a->q || a->k ? a->dim_qk : 1, 1},
                              {"attn_kv_append_args.dim_v", a->v ? a->dim_v : 1, 1},
                              {"attn_kv_append_args.capacity", a->capacity, 0},
                              {"attn_kv_append_args.page_tokens", a->page_tokens, 0},
                              {"attn_kv_append_args.pages", a->pages, 0}};
  const attn_status status = check_fields(sizes, sizeof sizes / sizeof *sizes);
  return status == ATTN_OK ? check_dtypes(a) : status;
}

static attn_status check_pair(const char *from, const void *given, const char *to, const void *place) {
  REQUIRE(!given == !place, "attn_kv_append_args.%s is %p with %s %p; both must be given, or none", from, given, to, place);
  return ATTN_OK;
}

/* Factors of k or v, of which `rows` are there. */
static attn_status check_factors(const attn_kv_append_args *a, const char *name, const void *rows, const void *given,
                                 const void *made) {
  REQUIRE(rows || (!given && !made), "attn_kv_append_args.%c_scale%s is given without %c; it must be NULL", *name,
          given ? "" : "_cache", *name);
  REQUIRE(!given || !made, "attn_kv_append_args.%c_scale and %c_scale_cache are both given; one of them must be NULL", *name,
          *name);
  REQUIRE(!made || attn_makes_factors(a->cache_dtype),
          "attn_kv_append_args.%c_scale_cache is given with cache_dtype %d; factors are made for types of 8 bits", *name,
          (int)a->cache_dtype);
  return ATTN_OK;
}

static attn_status check_kind(const attn_kv_append_args *a) {
  attn_status status = check_pair("q", a->q, "q_out", a->q_out);
  if (status == ATTN_OK) status = check_pair("k", a->k, "k_cache", a->k_cache);
  if (status == ATTN_OK) status = check_pair("v", a->v, "v_cache", a->v_cache);
  if (status == ATTN_OK) status = check_factors(a, "k", a->k, a->k_scale, a->k_scale_cache);
  if (status == ATTN_OK) status = check_factors(a, "v", a->v, a->v_scale, a->v_scale_cache);
  if (status != ATTN_OK) return status;
  REQUIRE(!a->cu_seqlens || !a->counts, "attn_kv_append_args.counts is given with cu_seqlens; one of them must be NULL");
  REQUIRE(!a->positions || a->rope, "attn_kv_append_args.positions is given without rope; it must be NULL");
  REQUIRE(!a->hadamard || a->dim_qk % 2 == 0, "attn_kv_append_args.dim_qk is %" PRId64 " with hadamard; it must be even",
          a->dim_qk);
  if (!a->k && !a->v) return ATTN_OK;
  REQUIRE(!a->page_tokens || !a->capacity,
          "attn_kv_append_args.capacity is %" PRId64 " with page_tokens %" PRId64
          "; caches are dense or in pages, so one of "
          "them must be 0",
          a->capacity, a->page_tokens);
  REQUIRE(a->page_tokens || a->capacity,
          "attn_kv_append_args.capacity is 0; it must be the tokens that a sequence of the cache has room for, unless "
          "page_tokens is given");
  REQUIRE(!(a->page_tokens && !a->slots) || a->page_table,
          "attn_kv_append_args.page_table is NULL; with page_tokens it must be given, or slots");
  REQUIRE(!a->page_table || (a->page_tokens && !a->slots), "attn_kv_append_args.page_table is given %s; it must be NULL",
          a->slots ? "with slots" : "without page_tokens");
  return ATTN_OK;
}

static attn_status check_counts(const job *j) {
  const attn_kv_append_args *a = &j->a;
  for (int64_t b = 0; a->past && b < a->batch; b++)
    REQUIRE(a->past[b] >= 0, "%s.past[%" PRId64 "] is %" PRId32 "; it must be at least 0", j->name, b, a->past[b]);
  for (int64_t b = 0; a->counts && b < a->batch; b++)
    REQUIRE(a->counts[b] >= 0 && a->counts[b] <= a->tokens,
            "attn_kv_append_args.counts[%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64, b, a->counts[b], a->tokens);
  if (!a->cu_seqlens) return ATTN_OK;
  REQUIRE(a->cu_seqlens[0] >= 0, "attn_kv_append_args.cu_seqlens[0] is %" PRId32 "; it must be at least 0",
          a->cu_seqlens[0]);
  for (int64_t b = 0; b < a->batch; b++)
    REQUIRE(a->cu_seqlens[b + 1] >= a->cu_seqlens[b],
            "attn_kv_append_args.cu_seqlens[%" PRId64 "] is %" PRId32 " after %" PRId32 "; it must not decrease", b + 1,
            a->cu_seqlens[b + 1], a->cu_seqlens[b]);
  REQUIRE(a->cu_seqlens[a->batch] <= a->tokens,
          "attn_kv_append_args.cu_seqlens[%" PRId64 "] is %" PRId32 "; the tensors hold %" PRId64 " tokens", a->batch,
          a->cu_seqlens[a->batch], a->tokens);
  return ATTN_OK;
}

/* A ring's table repeats its pages: the page that the new tokens begin in may come again as their last one, and only in
 * front of them. */
static attn_status check_ring(const job *j, int64_t b, const int32_t *table, int64_t first, int64_t end) {
  const int64_t from = first / j->page_tokens;
  for (int64_t at = from + 1; at * j->page_tokens < end; at++) {
    const int64_t room = (at - from) * j->page_tokens;
    REQUIRE(table[at] != table[from] || end - first <= room,
            "attn_kv_append_args.page_table[%" PRId64 "] comes back to page %" PRId32 " after %" PRId64
            " tokens; a ring must have room for the %" PRId64 " new ones of the sequence",
            b, table[at], room, end - first);
  }
  return ATTN_OK;
}

static attn_status check_table(const job *j, int64_t b, int64_t first, int64_t end) {
  const attn_kv_append_args *a = &j->a;
  const int32_t *table = a->page_table + b * a->page_table_stride;
  REQUIRE((end - 1) / j->page_tokens < a->page_table_stride,
          "attn_kv_append_args.page_table_stride is %" PRId64 "; with the new tokens sequence %" PRId64 " has %" PRId64
          ", for which it must be at least %" PRId64,
          a->page_table_stride, b, end, (end - 1) / j->page_tokens + 1);
  for (int64_t at = first / j->page_tokens; at <= (end - 1) / j->page_tokens; at++)
    REQUIRE(table[at] >= 0 && table[at] < a->pages,
            "attn_kv_append_args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64
            ", because new tokens go there",
            b, at, table[at], a->pages - 1);
  return check_ring(j, b, table, first, end);
}

static attn_status check_places(const job *j) {
  const attn_kv_append_args *a = &j->a;
  for (int64_t b = 0; b < a->batch; b++) {
    const int64_t first = past_of(a, b), end = first + new_tokens(a, b);
    if (end == first) continue;
    REQUIRE(end <= INT32_MAX, "sequence %" PRId64 " would have %" PRId64 " tokens; it must be below 2^31", b, end);
    if ((!a->k && !a->v) || a->slots) continue;
    REQUIRE(a->page_tokens || end <= a->capacity,
            "sequence %" PRId64 " holds %" PRId64 " of %" PRId64 " tokens; %" PRId64 " more do not fit", b, first,
            a->capacity, end - first);
    const attn_status status = a->page_tokens ? check_table(j, b, first, end) : ATTN_OK;
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Those of the places that new tokens go to. */
static attn_status check_given_factors(const job *j, const route *r) {
  const attn_strides *stride = &r->factor_stride;
  const bool one = stride->b == 0 && stride->h == 0 && stride->s == 0;
  for (int64_t t = 0; r->given && t < (one ? min64(j->total, 1) : j->total); t++) {
    const token at = token_at(j, t);
    if (!at.real && !one) continue;
    const int64_t first = one ? 0 : offset_in_cache(j, stride, t, &at);
    for (int64_t h = 0; h < (one ? 1 : r->heads); h++)
      REQUIRE(isnormal(r->given[first + h * stride->h]),
              "%s is %g where new token %" PRId64 " goes in head %" PRId64
              "; it must be neither 0 nor denormal, infinite or NaN",
              r->given_name, (double)r->given[first + h * stride->h], t, h);
  }
  return ATTN_OK;
}

static attn_status check_tokens(const job *j) {
  const attn_kv_append_args *a = &j->a;
  const int64_t slots = j->pages * j->page_tokens;
  for (int64_t t = 0; (a->slots || a->positions) && t < j->total; t++) {
    if (!token_at(j, t).real) continue;
    REQUIRE(!a->slots || (a->slots[t] >= 0 && a->slots[t] < slots),
            "attn_kv_append_args.slots[%" PRId64 "] is %" PRId64 "; it must be in 0..%" PRId64 ", or -1 for nowhere", t,
            a->slots[t], slots - 1);
    REQUIRE(!a->positions || a->positions[t] >= 0, "%s.positions[%" PRId64 "] is %" PRId32 "; it must be at least 0",
            j->name, t, a->positions[t]);
  }
  return ATTN_OK;
}

/* ---- Routes ---- */

static bool is_unset(const attn_strides *s) { return s->b == 0 && s->h == 0 && s->s == 0 && s->d == 0; }

/* [outer][heads][tokens][dim]; packed tokens are [tokens][heads][dim]. */
static attn_strides dense(int64_t heads, int64_t tokens, int64_t dim, bool packed) {
  return packed ? (attn_strides){.h = dim, .s = heads * dim, .d = 1}
                : (attn_strides){.b = heads * tokens * dim, .h = tokens * dim, .s = dim, .d = 1};
}

static attn_status check_tensor(const char *field, const void *data, attn_dtype dtype, const attn_strides *stride,
                                const int64_t sizes[4], bool output) {
  REQUIRE((uintptr_t)data % attn_dtype_alignment(dtype) == 0, "%s is %p; it must be aligned to its element, %zu bytes",
          field, data, attn_dtype_alignment(dtype));
  const attn_tensor tensor = {.field = field,
                              .axes = {{'b', sizes[0], stride->b},
                                       {'h', sizes[1], stride->h},
                                       {'s', sizes[2], stride->s},
                                       {'d', sizes[3], stride->d}},
                              .values = attn_dtype_of(dtype).values,
                              .output = output};
  return attn_check_strides(&tensor);
}

static void sizes_of_new(const job *j, const route *r, int64_t sizes[4]) {
  sizes[0] = j->a.cu_seqlens ? 1 : j->a.batch, sizes[1] = r->heads, sizes[2] = j->a.tokens, sizes[3] = r->dim;
}

/* The rows of a cache are of whole blocks where those are stored. */
static void sizes_of_written(const job *j, const route *r, int64_t sizes[4]) {
  sizes_of_new(j, r, sizes);
  if (!r->cached) return;
  sizes[0] = j->pages, sizes[2] = j->page_tokens, sizes[3] = attn_row_elements(r->to_dtype, r->dim);
}

/* Bytes that a tensor spans. */
typedef struct span {
  uintptr_t begin, end;
} span;

static span span_of(const void *data, attn_dtype dtype, const attn_strides *stride, const int64_t sizes[4]) {
  const int64_t strides[4] = {stride->b, stride->h, stride->s, stride->d};
  int64_t low = 0, high = 0;
  for (int i = 0; i < 4; i++) {
    const int64_t reach = (max64(sizes[i], 1) - 1) * strides[i];
    if (reach < 0)
      low += reach;
    else
      high += reach;
  }
  return (span){(uintptr_t)attn_element_at(data, dtype, low), (uintptr_t)attn_element_at(data, dtype, high + 1)};
}

static bool same_rows(const route *r) {
  const attn_strides *a = &r->from_stride, *b = &r->to_stride;
  return !r->cached && r->from.data == r->to && r->from.dtype == r->to_dtype && a->b == b->b && a->h == b->h &&
         a->s == b->s && a->d == b->d;
}

static span span_of_new(const job *j, const route *r) {
  int64_t sizes[4];
  sizes_of_new(j, r, sizes);
  return span_of(r->from.data, r->from.dtype, &r->from_stride, sizes);
}

static span span_of_written(const job *j, const route *r) {
  int64_t sizes[4];
  sizes_of_written(j, r, sizes);
  return span_of(r->to, r->to_dtype, &r->to_stride, sizes);
}

static attn_status check_apart(span written, const char *name, span read, const char *other) {
  REQUIRE(written.end <= read.begin || read.end <= written.begin, "%s overlaps %s; it must be memory of its own", name,
          other);
  return ATTN_OK;
}

/* Caches against all that is read; q_out against q alone, because q, k and v may be parts of one tensor's rows. */
static attn_status check_overlap(const job *j) {
  attn_status status = ATTN_OK;
  for (int i = 0; i < j->route_count; i++)
    for (int n = 0; n < j->route_count && status == ATTN_OK; n++) {
      const route *out = &j->routes[i], *in = &j->routes[n];
      const span read = span_of_new(j, in);
      if (out->cached || (i == n && !same_rows(out)))
        status = check_apart(span_of_written(j, out), out->to_name, read, in->from_name);
      const int64_t of_made[4] = {j->pages, out->heads, j->page_tokens, 1};
      if (status == ATTN_OK && out->made)
        status =
            check_apart(span_of(out->made, ATTN_F32, &out->factor_stride, of_made), out->made_name, read, in->from_name);
    }
  return status;
}

static attn_status check_route(const job *j, route *r) {
  const attn_kv_append_args *a = &j->a;
  const bool packed = a->cu_seqlens;
  int64_t from[4], to[4];
  sizes_of_new(j, r, from);
  sizes_of_written(j, r, to);
  REQUIRE(!r->rotated || a->rope->turns.dim <= r->dim,
          "%s has rows of %" PRId64 " elements; rope rotates %" PRId64 ", so it must have as many", r->from_name, r->dim,
          a->rope->turns.dim);
  if (is_unset(&r->from_stride)) r->from_stride = dense(r->heads, a->tokens, r->dim, packed);
  if (is_unset(&r->to_stride)) r->to_stride = dense(r->heads, to[2], to[3], packed && !r->cached);
  attn_status status = check_tensor(r->from_name, r->from.data, r->from.dtype, &r->from_stride, from, false);
  if (status == ATTN_OK) status = check_tensor(r->to_name, r->to, r->to_dtype, &r->to_stride, to, true);
  if (status != ATTN_OK) return status;
  if (!r->given && !r->made) return ATTN_OK;
  const int64_t factors[4] = {j->pages, r->heads, j->page_tokens, 1};
  r->factor_stride.d = 0;
  if (r->made && is_unset(&r->factor_stride)) r->factor_stride = dense(r->heads, j->page_tokens, 1, false);
  return check_tensor(r->made ? r->made_name : r->given_name, r->made ? r->made : r->given, ATTN_F32, &r->factor_stride,
                      factors, r->made);
}

static attn_status find_routes(job *j) {
  const attn_kv_append_args *a = &j->a;
  const bool rope = a->rope;
  const route all[MOST_ROUTES] = {{j->q_name,
                                   j->q_out_name,
                                   {a->q, a->dtype},
                                   a->q_stride,
                                   a->q_out,
                                   a->q_out_dtype,
                                   a->q_out_stride,
                                   a->heads_q,
                                   a->dim_qk,
                                   false,
                                   rope,
                                   a->hadamard,
                                   NULL,
                                   NULL,
                                   NULL,
                                   NULL,
                                   {0}},
                                  {"attn_kv_append_args.k",
                                   "attn_kv_append_args.k_cache",
                                   {a->k, a->dtype},
                                   a->k_stride,
                                   a->k_cache,
                                   a->cache_dtype,
                                   a->k_cache_stride,
                                   a->heads_kv,
                                   a->dim_qk,
                                   true,
                                   rope,
                                   a->hadamard,
                                   "attn_kv_append_args.k_scale",
                                   "attn_kv_append_args.k_scale_cache",
                                   a->k_scale,
                                   a->k_scale_cache,
                                   a->k_scale_stride},
                                  {"attn_kv_append_args.v",
                                   "attn_kv_append_args.v_cache",
                                   {a->v, a->dtype},
                                   a->v_stride,
                                   a->v_cache,
                                   a->cache_dtype,
                                   a->v_cache_stride,
                                   a->heads_kv,
                                   a->dim_v,
                                   true,
                                   false,
                                   false,
                                   "attn_kv_append_args.v_scale",
                                   "attn_kv_append_args.v_scale_cache",
                                   a->v_scale,
                                   a->v_scale_cache,
                                   a->v_scale_stride}};
  attn_status status = ATTN_OK;
  for (int i = 0; i < MOST_ROUTES && status == ATTN_OK; i++) {
    if (!all[i].to) continue;
    j->routes[j->route_count] = all[i];
    status = check_route(j, &j->routes[j->route_count++]);
  }
  return status == ATTN_OK ? check_overlap(j) : status;
}

/* ---- Calls ---- */

/* Everything is checked before anything is written. */
static attn_status prepare(job *j) {
  const attn_kv_append_args *a = &j->a;
  attn_status status = check_sizes(a);
  if (status == ATTN_OK) status = check_kind(a);
  if (status != ATTN_OK) return status;
  REQUIRE(a->cu_seqlens || a->batch == 0 || a->tokens <= ATTN_ELEMENT_LIMIT / a->batch,
          "%s.tokens is %" PRId64 " with batch %" PRId64 "; all together must be below 2^60", j->name, a->tokens, a->batch);
  j->total = a->cu_seqlens ? a->tokens : a->batch * a->tokens;
  j->page_tokens = a->page_tokens ? a->page_tokens : max64(a->capacity, 1);
  j->pages = a->page_tokens ? a->pages : a->batch;
  status = check_counts(j);
  if (status == ATTN_OK) status = find_routes(j);
  if (status == ATTN_OK) status = check_places(j);
  if (status == ATTN_OK) status = check_tokens(j);
  for (int i = 0; i < j->route_count && status == ATTN_OK; i++) status = check_given_factors(j, &j->routes[i]);
  return status;
}

static attn_status append(job *j, const attn_options *options) {
  attn_options wanted, resolved;
  const char *cap;
  attn_status status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, &resolved);
  if (status == ATTN_OK) status = attn_dispatch_cap(&wanted, &cap);
  if (status == ATTN_OK) status = prepare(j);
  if (status != ATTN_OK) return status;
  j->kernel = attn_tier_parts_below(cap).kv_rows;
  if (j->total > 0 && j->route_count > 0) run_job(j, &resolved, wanted.threads == 0);
  return ATTN_OK;
}

attn_status attn_kv_append(const attn_kv_append_args *args, const attn_options *options) {
  job j = {.name = "attn_kv_append_args", .q_name = "attn_kv_append_args.q", .q_out_name = "attn_kv_append_args.q_out"};
  REQUIRE(args, "args is NULL; it must point to an attn_kv_append_args");
  const attn_status status = attn_struct_read(&append_layout, args, &j.a);
  return status == ATTN_OK ? append(&j, options) : status;
}

static attn_status check_rows(const attn_rope_args *a) {
  const size_field sizes[] = {{"attn_rope_args.batch", a->batch, 0},
                              {"attn_rope_args.tokens", a->tokens, 0},
                              {"attn_rope_args.heads", a->heads, 1},
                              {"attn_rope_args.dim", a->dim, 1}};
  attn_status status = check_fields(sizes, sizeof sizes / sizeof *sizes);
  if (status == ATTN_OK) status = check_float("attn_rope_args.dtype", a->dtype);
  if (status == ATTN_OK) status = check_float("attn_rope_args.out_dtype", a->out_dtype);
  if (status != ATTN_OK || a->batch * a->tokens == 0) return status;
  REQUIRE(a->x && a->out, "attn_rope_args.%s is NULL; it must point to rows", a->x ? "out" : "x");
  return ATTN_OK;
}

attn_status attn_rope_run(const attn_rope *rope, const attn_rope_args *args, const attn_options *options) {
  attn_rope_args a;
  REQUIRE(rope, "rope is NULL; it must come from attn_rope_create");
  REQUIRE(args, "args is NULL; it must point to an attn_rope_args");
  attn_status status = attn_struct_read(&rotate_layout, args, &a);
  if (status != ATTN_OK) return status;
  status = check_rows(&a);
  if (status != ATTN_OK) return status;
  job j = {.name = "attn_rope_args",
           .q_name = "attn_rope_args.x",
           .q_out_name = "attn_rope_args.out",
           .a = {.batch = a.batch,
                 .tokens = a.tokens,
                 .heads_q = a.heads,
                 .dim_qk = a.dim,
                 .dtype = a.dtype,
                 .q_out_dtype = a.out_dtype,
                 .q = a.x,
                 .q_out = a.out,
                 .q_stride = a.x_stride,
                 .q_out_stride = a.out_stride,
                 .past = a.past,
                 .rope = rope,
                 .positions = a.positions}};
  return append(&j, options);
}
