/* SPDX-License-Identifier: MIT */
/* Attention over ranks has the bits of one process. Every rank makes the same seeded problems, computes each whole, and
 * compares its own rows with those bits.
 *
 *   mpirun -n 4 test_mpi [cases N] [seed N] [mode NAME] [fault NAME] [unlike N] [die N]
 *
 * fault: an error that the comparison must see: `border` moves a shard's content by a key, `missing` leaves a key's value
 * out. unlike 1: ranks have classes of CPUs and tiers of their own, and would choose unlike kernels. die N: rank 1 of the
 * communicator ends by SIGKILL at a moment that N chooses; the others must come to an end. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attn/mpi.h"
#include "kernels/common/problem/convert.h"

enum { GRADIENT_MODE = ATTN_MPI_SPLIT + 1, MODES };
static int rank, ranks, mode_now;
static int failures[MODES], compared[MODES]; /* [mode]; 0 is for those without one */
static int grouped;                          /* comparisons of EXCHANGE in groups */
static const char *fault = "";
static bool gradients; /* cases are to have gradients */

/* Ranks that would choose unlike kernels: each has a class of CPUs, and rank 0 a cap that changes from case to case. */
static bool unlike;
static int unlike_choices; /* cases in which this rank alone would not choose as rank 0 */
static char *given_cap;    /* the tests' own */

/* ---- Numbers ---- */

static uint64_t random_state;

static uint64_t next_random(void) {
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* In 0..n-1. */
static int64_t pick(int64_t n) { return (int64_t)(next_random() % (uint64_t)n); }
static bool one_in(int64_t n) { return pick(n) == 0; }
static float next_float(void) { return (float)(next_random() >> 40) * 0x1p-23f - 1; }

static void *allocate(int64_t bytes) {
  void *memory = aligned_alloc(64, (size_t)(bytes > 0 ? (bytes + 63) / 64 * 64 : 64));
  if (!memory) abort();
  memset(memory, 0xff, (size_t)(bytes > 0 ? bytes : 64));
  return memory;
}

/* ---- Ranks whose CPUs are unlike ---- */

static void cap_tier(const char *isa) {
  if (!isa) isa = given_cap;
  if (isa)
    setenv("ATTN_MAX_ISA", isa, 1);
  else
    unsetenv("ATTN_MAX_ISA");
}

static void name_class(void) {
  static const char *const classes[] = {"amd-zen4", "generic", "intel-icelake", "amd-zen5", "amd-zen3"};
  if (getenv("ATTN_MAX_ISA")) given_cap = strdup(getenv("ATTN_MAX_ISA"));
  setenv("ATTN_MACHINE", classes[rank % 5], 1);
}

static void make_ranks_unlike(long i) {
  static const char *const caps[] = {NULL, "portable", "c"};
  if (unlike) cap_tier(rank == 0 ? caps[i % 3] : NULL);
}

/* Counts the cases in which this rank alone would not choose as rank 0. */
static void compare_choices(const attn_problem *p) {
  char name[64] = "", first[64];
  attn_plan *plan;
  if (!unlike) return;
  if (attn_plan_create(p, NULL, &plan) == ATTN_OK) snprintf(name, sizeof name, "%s", attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  memcpy(first, name, sizeof name);
  MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
  unlike_choices += strcmp(first, name) != 0;
}

/* ---- A problem with all its data ---- */

enum { MOST_BATCH = 3, MOST_HEADS = 8, MOST_RANGES = 40 };

typedef struct whole_case {
  attn_problem p;
  attn_args args;
  int64_t rows, keys, keys_held; /* tokens of q and k; with pages keys_held is a multiple of pages */
  char *q, *k, *v, *o;           /* [batch][heads][tokens][dim], with VARLEN [heads][tokens][dim] */
  float *lse, *bias, *k_scale, *v_scale;
  uint8_t *mask;
  int32_t kv_len[MOST_BATCH], q_len[MOST_BATCH], cu_q[MOST_BATCH + 1], cu_k[MOST_BATCH + 1], offsets[MOST_BATCH];
  int32_t *row_len, *table;
  float slopes[MOST_HEADS], sinks[MOST_HEADS];
} whole_case;

static int64_t batch_of(const attn_problem *p) { return p->uses & ATTN_USE_VARLEN ? 1 : p->batch; }

static int64_t row_bytes(attn_dtype dtype, int64_t dim) { return attn_elements_bytes(dtype, attn_row_elements(dtype, dim)); }

static char *random_tensor(attn_dtype dtype, int64_t rows, int64_t dim) {
  const int64_t bytes = rows * row_bytes(dtype, dim);
  char *tensor = allocate(bytes);
  if (dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16) {
    for (int64_t i = 0; i < rows * dim; i++) attn_store_f32(tensor, dtype, i, next_float());
  } else if (dtype == ATTN_Q8_0) {
    for (int64_t i = 0; i < bytes; i += 34) {
      attn_store_f32(tensor + i, ATTN_F16, 0, 0.01f + 0.005f * next_float());
      for (int j = 2; j < 34; j++) tensor[i + j] = (char)(pick(255) - 127);
    }
  } else {
    for (int64_t i = 0; i < bytes; i++) tensor[i] = (char)(pick(17) - 8);
  }
  return tensor;
}

static void choose_lengths(whole_case *w) {
  attn_problem *p = &w->p;
  for (int b = 0; b < p->batch; b++) {
    w->kv_len[b] = (int32_t)(p->seq_k - (one_in(2) ? 0 : pick(p->seq_k + 1)));
    w->q_len[b] = (int32_t)(p->seq_q - (one_in(2) ? 0 : pick(p->seq_q + 1)));
    w->offsets[b] = (int32_t)(p->seq_k - p->seq_q - pick(40));
  }
}

static void choose_options(whole_case *w, bool few) {
  attn_problem *p = &w->p;
  static const attn_align aligns[] = {ATTN_ALIGN_TOP_LEFT, ATTN_ALIGN_BOTTOM_RIGHT, ATTN_ALIGN_OFFSET};
  p->align = aligns[pick(3)];
  if (few && p->align == ATTN_ALIGN_TOP_LEFT) p->align = ATTN_ALIGN_BOTTOM_RIGHT;
  if (!one_in(4)) p->window_right = one_in(4) ? pick(50) : 0;
  if (one_in(4)) p->window_left = 20 + pick(p->seq_k);
  if (one_in(4)) p->softcap = 2;
  if (one_in(5)) p->uses |= ATTN_USE_ALIBI;
  if (!(p->uses & ATTN_USE_ALIBI) && one_in(4)) p->uses |= ATTN_USE_SINKS; /* sinks far above all scores: docs/scale.md */
  if (one_in(2)) p->uses |= ATTN_USE_LSE;
}

/* Packed sequences of random lengths in seq_q and seq_k tokens, with gaps at both ends. */
static void choose_packed(whole_case *w, bool paged) {
  attn_problem *p = &w->p;
  const int64_t keys = p->seq_k;
  attn_problem_set_varlen(p, p->batch * p->seq_q, p->batch * keys);
  if (paged) p->total_k = 0;
  int32_t q = (int32_t)pick(3), k = (int32_t)pick(3);
  for (int b = 0; b <= p->batch; b++) {
    w->cu_q[b] = q < p->total_q ? q : (int32_t)p->total_q;
    w->cu_k[b] = k < p->batch * keys ? k : (int32_t)(p->batch * keys);
    q += (int32_t)pick(p->seq_q + 1);
    k += (int32_t)pick(keys + 1);
  }
  p->uses |= ATTN_USE_VARLEN;
}

static void choose_pages(whole_case *w, bool packed) {
  attn_problem *p = &w->p;
  static const int64_t tokens[] = {16, 32, 64};
  const uint32_t uses = p->uses;
  const attn_strides q = p->q_stride, o = p->o_stride, lse = p->lse_stride;
  const int64_t page = tokens[pick(3)];
  w->keys_held = (p->seq_k + page - 1) / page * page;
  attn_problem_set_pages(p, page, p->batch * w->keys_held / page);
  p->uses |= uses;
  if (packed) p->q_stride = q, p->o_stride = o, p->lse_stride = lse;
  const int64_t pages = w->keys_held / page;
  w->table = allocate(p->batch * pages * 4);
  p->page_table_stride = pages;
  for (int64_t i = 0; i < p->pages; i++) w->table[i] = (int32_t)((i * 7 + 3) % p->pages);
  while (p->pages % 7 == 0) { /* then 7 i is no permutation */
    for (int64_t i = 0; i < p->pages; i++) w->table[i] = (int32_t)(p->pages - 1 - i);
    break;
  }
}

static void fill_case(whole_case *w) {
  attn_problem *p = &w->p;
  const int64_t batch = batch_of(p), key_batch = p->uses & ATTN_USE_PAGES ? p->batch : batch;
  w->q = random_tensor(p->dtype_q, batch * p->heads_q * w->rows, p->dim_qk);
  w->k = random_tensor(p->dtype_kv, key_batch * p->heads_kv * w->keys_held, p->dim_qk);
  w->v = random_tensor(p->dtype_kv, key_batch * p->heads_kv * w->keys_held, p->dim_v);
  w->o = allocate(batch * p->heads_q * w->rows * row_bytes(p->dtype_o, p->dim_v));
  w->lse = allocate(batch * p->heads_q * w->rows * 4);
  for (int h = 0; h < MOST_HEADS; h++) w->slopes[h] = 0.5f / (float)(h + 1), w->sinks[h] = next_float();
  const int64_t pairs = p->batch * p->heads_q * p->seq_q * p->seq_k;
  if (p->uses & ATTN_USE_BIAS || p->score == ATTN_SCORE_PRECOMPUTED) {
    w->bias = allocate(pairs * 4);
    for (int64_t i = 0; i < pairs; i++) w->bias[i] = i % 11 == 0 && p->uses & ATTN_USE_BIAS ? -INFINITY : next_float();
  }
  if (p->uses & ATTN_USE_MASK) {
    w->mask = allocate(pairs);
    for (int64_t i = 0; i < pairs; i++) w->mask[i] = pick(4) != 0;
  }
  if (p->uses & ATTN_USE_ROW_LEN) {
    w->row_len = allocate(p->batch * p->seq_q * 4);
    for (int64_t i = 0; i < p->batch * p->seq_q; i++) w->row_len[i] = (int32_t)pick(p->seq_k + 1);
  }
  if (p->uses & ATTN_USE_KV_SCALES) {
    const int64_t tokens = key_batch * p->heads_kv * w->keys_held;
    w->k_scale = allocate(tokens * 4);
    w->v_scale = allocate(tokens * 4);
    for (int64_t i = 0; i < tokens; i++) w->k_scale[i] = 0.02f + 0.01f * next_float(), w->v_scale[i] = 0.02f;
  }
}

static void point_args(whole_case *w) {
  const uint32_t uses = w->p.uses;
  const bool given = w->p.score == ATTN_SCORE_PRECOMPUTED;
  w->args = ATTN_STRUCT(attn_args, .q = given ? NULL : w->q, .k = given ? NULL : w->k, .v = w->v, .o = w->o);
  if (uses & ATTN_USE_LSE) w->args.lse = w->lse;
  if (uses & ATTN_USE_BIAS) w->args.bias = w->bias;
  if (given) w->args.scores = w->bias;
  if (uses & ATTN_USE_MASK) w->args.mask = w->mask;
  if (uses & ATTN_USE_KV_LEN) w->args.kv_len = w->kv_len;
  if (uses & ATTN_USE_Q_LEN) w->args.q_len = w->q_len;
  if (uses & ATTN_USE_ROW_LEN) w->args.row_len = w->row_len;
  if (uses & ATTN_USE_VARLEN) w->args.cu_seqlens_q = w->cu_q;
  if (uses & ATTN_USE_VARLEN && !(uses & ATTN_USE_PAGES)) w->args.cu_seqlens_k = w->cu_k;
  if (uses & ATTN_USE_ALIBI) w->args.alibi_slopes = w->slopes;
  if (uses & ATTN_USE_SINKS) w->args.sinks = w->sinks;
  if (uses & ATTN_USE_PAGES) w->args.page_table = w->table;
  if (uses & ATTN_USE_KV_SCALES && !given) w->args.k_scale = w->k_scale;
  if (uses & ATTN_USE_KV_SCALES) w->args.v_scale = w->v_scale;
  if (w->p.align == ATTN_ALIGN_OFFSET) w->args.offsets = w->offsets;
}

/* few: decoding. travels: rows may travel, so nothing is bound to them. */
static void make_case(whole_case *w, bool few, bool travels) {
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BF16, ATTN_I8, ATTN_Q8_0};
  static const int64_t groups[] = {1, 1, 2, 4};
  *w = (whole_case){0};
  attn_problem *p = &w->p;
  const int64_t kv = 1 + pick(2), batch = 1 + pick(MOST_BATCH);
  const int64_t queries = few ? 1 + pick(4) : 1 + pick(400), keys = few ? 900 + pick(5000) : 1 + pick(900);
  attn_problem_init(p, batch, kv * groups[pick(4)], kv, queries, keys, 8 + pick(60), 8 + pick(60));
  p->scale *= 4; /* so that references move */
  const attn_dtype dtype = dtypes[pick(gradients ? 4 : 6)];
  p->dtype_kv = dtype;
  p->dtype_q = p->dtype_o = dtype == ATTN_I8 || dtype == ATTN_Q8_0 || one_in(3) ? ATTN_F32 : dtype;
  choose_options(w, few);
  choose_lengths(w);
  const bool packed = one_in(4), paged = !gradients && one_in(4);
  w->rows = p->seq_q, w->keys = w->keys_held = p->seq_k;
  if (dtype == ATTN_I8) p->uses |= ATTN_USE_KV_SCALES;
  if (packed) choose_packed(w, paged);
  if (packed) w->rows = p->total_q;
  if (packed && !paged) w->keys = w->keys_held = p->total_k;
  if (paged) choose_pages(w, packed);
  if (!packed && !paged && dtype == ATTN_Q8_0) {
    attn_problem_set_bshd(p); /* rounds rows up */
    const int64_t k = attn_row_elements(dtype, p->dim_qk), v = attn_row_elements(dtype, p->dim_v);
    attn_problem dense;
    attn_problem_init(&dense, batch, p->heads_q, kv, queries, keys, p->dim_qk, p->dim_v);
    p->q_stride = dense.q_stride, p->o_stride = dense.o_stride;
    p->k_stride = (attn_strides){kv * keys * k, keys * k, k, 1}, p->v_stride = (attn_strides){kv * keys * v, keys * v, v, 1};
  }
  if (packed) { /* heads outside, as here in all tensors */
    const int64_t k = attn_row_elements(dtype, p->dim_qk), v = attn_row_elements(dtype, p->dim_v);
    p->q_stride = (attn_strides){0, w->rows * p->dim_qk, p->dim_qk, 1};
    p->o_stride = (attn_strides){0, w->rows * p->dim_v, p->dim_v, 1};
    if (!paged) p->k_stride = (attn_strides){0, w->keys * k, k, 1}, p->v_stride = (attn_strides){0, w->keys * v, v, 1};
  }
  if (p->uses & ATTN_USE_KV_SCALES) {
    const int64_t page = p->page_tokens;
    p->k_scale_stride = p->v_scale_stride =
        paged ? (attn_strides){kv * page, page, 1, 0} : (attn_strides){packed ? 0 : kv * w->keys, w->keys, 1, 0};
  }
  if (!packed && !paged && one_in(3)) p->uses |= ATTN_USE_KV_LEN;
  if (!packed && one_in(4)) p->uses |= ATTN_USE_Q_LEN;
  if (!packed && !travels && one_in(4)) p->uses |= ATTN_USE_BIAS;
  if (!packed && !travels && one_in(4)) p->uses |= ATTN_USE_MASK;
  if (!packed && !travels && !few && one_in(8)) p->score = ATTN_SCORE_PRECOMPUTED, p->softcap = 0;
  if (!packed && !travels && p->align != ATTN_ALIGN_BOTTOM_RIGHT && one_in(4)) p->uses |= ATTN_USE_ROW_LEN;
  fill_case(w);
  point_args(w);
}

static void free_case(whole_case *w) {
  void *const all[] = {w->q, w->k, w->v, w->o, w->lse, w->bias, w->k_scale, w->v_scale, w->mask, w->row_len, w->table};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- Shards ---- */

typedef struct shards {
  attn_mpi_range q[MOST_RANGES], k[MOST_RANGES];
  int64_t q_count, k_count, rows, keys;
} shards;

/* Cuts [0, tokens) at random borders and gives each part to a random rank; the same on all ranks. */
static int64_t deal(int64_t tokens, const int64_t *borders, int64_t count, attn_mpi_range *own, int64_t *held) {
  int64_t ranges = 0, begin = 0;
  for (int64_t i = 0; i <= count; i++) {
    const int64_t end = i < count ? borders[i] : tokens;
    const int owner = (int)pick(ranks);
    if (end <= begin) continue;
    if (owner == rank) {
      if (ranges > 0 && own[ranges - 1].end == begin)
        own[ranges - 1].end = end;
      else
        own[ranges++] = (attn_mpi_range){begin, end};
      *held += end - begin;
    }
    begin = end;
  }
  return ranges;
}

static int by_value(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static int64_t key_borders(const whole_case *w, int64_t unit, int64_t *borders) {
  int64_t count = 0;
  for (int64_t i = 1 + pick(MOST_RANGES / 2); i > 0; i--) {
    if (!(w->p.uses & ATTN_USE_VARLEN) || w->p.uses & ATTN_USE_PAGES) {
      borders[count++] = pick(w->keys / unit + 1) * unit;
      continue;
    }
    const int64_t b = pick(w->p.batch), first = w->cu_k[b], length = w->cu_k[b + 1] - first;
    borders[count++] = first + pick(length / unit + 1) * unit;
  }
  qsort(borders, (size_t)count, sizeof *borders, by_value);
  return count;
}

static void deal_shards(const whole_case *w, int64_t unit, bool replicated, shards *s) {
  int64_t borders[MOST_RANGES];
  *s = (shards){0};
  const bool zigzag = !(w->p.uses & ATTN_USE_VARLEN) && w->rows == w->keys && one_in(2);
  if (zigzag || one_in(6)) {
    s->q_count = attn_mpi_zigzag(w->rows, zigzag ? unit : 1, rank, ranks, s->q);
    for (int64_t i = 0; i < s->q_count; i++) s->rows += s->q[i].end - s->q[i].begin;
  } else {
    int64_t count = 1 + pick(2 * ranks);
    for (int64_t i = 0; i < count; i++) borders[i] = pick(w->rows + 1);
    qsort(borders, (size_t)count, sizeof *borders, by_value);
    s->q_count = deal(w->rows, borders, count, s->q, &s->rows);
  }
  if (replicated) {
    s->q[0] = (attn_mpi_range){0, w->rows};
    s->q_count = 1, s->rows = w->rows;
  }
  const int64_t count = key_borders(w, unit, borders);
  s->k_count = deal(w->keys, borders, count, s->k, &s->keys);
}

/* ---- This rank's tensors ---- */

/* Copies the tokens of the ranges from [outer][tokens][bytes] to [outer][own tokens][bytes], or back. */
static void take(char *whole, int64_t outer, int64_t tokens, int64_t bytes, const attn_mpi_range *ranges, int64_t count,
                 int64_t own_tokens, char *own) {
  for (int64_t i = 0; i < outer; i++) {
    int64_t at = 0;
    for (int64_t r = 0; r < count; r++) {
      const int64_t length = ranges[r].end - ranges[r].begin;
      memcpy(own + (i * own_tokens + at) * bytes, whole + (i * tokens + ranges[r].begin) * bytes, (size_t)(length * bytes));
      at += length;
    }
  }
}

static char *own_tensor(char *whole, int64_t outer, int64_t tokens, int64_t bytes, const attn_mpi_range *ranges,
                        int64_t count, int64_t own_tokens) {
  char *own = allocate(outer * own_tokens * bytes);
  if (whole) take(whole, outer, tokens, bytes, ranges, count, own_tokens, own);
  return own;
}

typedef struct local_case {
  attn_args args;
  attn_problem layout;
  char *q, *k, *v, *o, *lse, *bias, *mask, *row_len, *k_scale, *v_scale;
  int32_t *table;
} local_case;

static void make_local(const whole_case *w, const shards *s, local_case *l) {
  const attn_problem *p = &w->p;
  const int64_t batch = batch_of(p), rows = s->rows, keys = s->keys, outer = batch * p->heads_q;
  const bool paged = p->uses & ATTN_USE_PAGES, packed = p->uses & ATTN_USE_VARLEN;
  const int64_t q_bytes = row_bytes(p->dtype_q, p->dim_qk), k_bytes = row_bytes(p->dtype_kv, p->dim_qk),
                v_bytes = row_bytes(p->dtype_kv, p->dim_v);
  *l = (local_case){.args = w->args, .layout = *p};
  attn_problem *y = &l->layout;
  l->q = own_tensor(w->q, outer, w->rows, q_bytes, s->q, s->q_count, rows);
  l->o = allocate(outer * rows * row_bytes(p->dtype_o, p->dim_v));
  l->lse = allocate(outer * rows * 4);
  y->q_stride = (attn_strides){outer / batch * rows * p->dim_qk, rows * p->dim_qk, p->dim_qk, 1};
  y->o_stride = (attn_strides){outer / batch * rows * p->dim_v, rows * p->dim_v, p->dim_v, 1};
  y->lse_stride = (attn_strides){outer / batch * rows, rows, 1, 1};
  if (packed) y->q_stride.b = y->o_stride.b = y->lse_stride.b = 0;
  if (w->bias) l->bias = own_tensor((char *)w->bias, p->batch * p->heads_q, w->rows, p->seq_k * 4, s->q, s->q_count, rows);
  if (w->mask) l->mask = own_tensor((char *)w->mask, p->batch * p->heads_q, w->rows, p->seq_k, s->q, s->q_count, rows);
  if (w->row_len) l->row_len = own_tensor((char *)w->row_len, p->batch, w->rows, 4, s->q, s->q_count, rows);
  y->bias_stride = (attn_score_strides){p->heads_q * rows * p->seq_k, rows * p->seq_k, p->seq_k, 1};
  y->mask_stride = y->scores_stride = y->bias_stride;
  if (paged) { /* all pages are here, but those of other ranks hold nothing */
    const int64_t page = p->page_tokens, pages = (keys + page - 1) / page;
    const int64_t k_page = p->heads_kv * page * k_bytes, v_page = p->heads_kv * page * v_bytes;
    l->k = allocate(p->pages * k_page);
    l->v = allocate(p->pages * v_page);
    l->k_scale = allocate(p->pages * p->heads_kv * page * 4);
    l->v_scale = allocate(p->pages * p->heads_kv * page * 4);
    l->table = allocate((p->batch * pages + 1) * 4);
    y->page_table_stride = pages;
    for (int64_t b = 0; b < p->batch; b++) {
      int64_t n = 0;
      for (int64_t r = 0; r < s->k_count; r++)
        for (int64_t key = s->k[r].begin; key < s->k[r].end; key += page, n++) {
          const int64_t entry = w->table[b * p->page_table_stride + key / page];
          l->table[b * pages + n] = (int32_t)entry;
          memcpy(l->k + entry * k_page, w->k + entry * k_page, (size_t)k_page);
          memcpy(l->v + entry * v_page, w->v + entry * v_page, (size_t)v_page);
          if (!w->k_scale) continue;
          const int64_t at = entry * p->heads_kv * page * 4;
          memcpy(l->k_scale + at, (char *)w->k_scale + at, (size_t)(p->heads_kv * page * 4));
          memcpy(l->v_scale + at, (char *)w->v_scale + at, (size_t)(p->heads_kv * page * 4));
        }
    }
  } else {
    const int64_t all = batch * p->heads_kv, k_row = attn_row_elements(p->dtype_kv, p->dim_qk),
                  v_row = attn_row_elements(p->dtype_kv, p->dim_v);
    l->k = own_tensor(w->k, all, w->keys, k_bytes, s->k, s->k_count, keys);
    l->v = own_tensor(w->v, all, w->keys, v_bytes, s->k, s->k_count, keys);
    if (w->k_scale) l->k_scale = own_tensor((char *)w->k_scale, all, w->keys, 4, s->k, s->k_count, keys);
    if (w->v_scale) l->v_scale = own_tensor((char *)w->v_scale, all, w->keys, 4, s->k, s->k_count, keys);
    y->k_stride = (attn_strides){packed ? 0 : p->heads_kv * keys * k_row, keys * k_row, k_row, 1};
    y->v_stride = (attn_strides){packed ? 0 : p->heads_kv * keys * v_row, keys * v_row, v_row, 1};
    if (w->k_scale) y->k_scale_stride = y->v_scale_stride = (attn_strides){packed ? 0 : p->heads_kv * keys, keys, 1, 0};
  }
  attn_args *a = &l->args;
  a->q = a->q ? l->q : NULL, a->k = a->k ? l->k : NULL, a->v = l->v, a->o = l->o;
  if (a->lse) a->lse = (float *)(void *)l->lse;
  if (a->bias) a->bias = (float *)(void *)l->bias;
  if (a->scores) a->scores = (float *)(void *)l->bias;
  if (a->mask) a->mask = (uint8_t *)l->mask;
  if (a->row_len) a->row_len = (int32_t *)(void *)l->row_len;
  if (a->page_table) a->page_table = l->table;
  if (a->k_scale) a->k_scale = (float *)(void *)l->k_scale;
  if (a->v_scale) a->v_scale = (float *)(void *)l->v_scale;
}

static void free_local(local_case *l) {
  void *const all[] = {l->q, l->k, l->v, l->o, l->lse, l->bias, l->mask, l->row_len, l->k_scale, l->v_scale, l->table};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- One case ---- */

static void complain(const char *what, const whole_case *w, const char *text) {
  failures[mode_now]++;
  printf(
      "rank %d of %d: %s: %lld queries, %lld keys, batch %lld, heads %lld and %lld, dims %lld and %lld, dtypes %d %d, "
      "align %d, window %lld %lld, uses 0x%x, score %d: %s\n",
      rank, ranks, what, (long long)w->p.seq_q, (long long)w->p.seq_k, (long long)w->p.batch, (long long)w->p.heads_q,
      (long long)w->p.heads_kv, (long long)w->p.dim_qk, (long long)w->p.dim_v, (int)w->p.dtype_q, (int)w->p.dtype_kv,
      (int)w->p.align, (long long)w->p.window_left, (long long)w->p.window_right, w->p.uses, (int)w->p.score, text);
  fflush(stdout);
}

static bool run_whole(const whole_case *w, const char *kernel) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  attn_plan *plan;
  attn_status status = attn_plan_create(&w->p, &options, &plan);
  if (status == ATTN_OK) {
    void *workspace = allocate((int64_t)attn_plan_workspace(plan));
    status = attn_plan_run(plan, &w->args, workspace, attn_plan_workspace(plan));
    free(workspace);
  }
  attn_plan_destroy(plan);
  if (status != ATTN_OK) complain("one process", w, attn_last_error());
  return status == ATTN_OK;
}

/* An error that the comparison must see. */
static void plant_fault(const whole_case *w, const shards *s, local_case *l) {
  const int64_t bytes = row_bytes(w->p.dtype_kv, w->p.dim_v);
  if (!strcmp(fault, "border") && s->keys > 1 && rank == ranks - 1)
    memmove(l->v, l->v + bytes, (size_t)((s->keys - 1) * bytes));
  if (!strcmp(fault, "missing") && s->keys > 0 && rank == 0) memset(l->v, 0, (size_t)(s->keys * bytes));
}

static void compare(const whole_case *w, const shards *s, const local_case *l) {
  const attn_problem *p = &w->p;
  const int64_t outer = batch_of(p) * p->heads_q, bytes = row_bytes(p->dtype_o, p->dim_v);
  char *o = own_tensor(w->o, outer, w->rows, bytes, s->q, s->q_count, s->rows);
  char *lse = own_tensor((char *)w->lse, outer, w->rows, 4, s->q, s->q_count, s->rows);
  if (memcmp(o, l->o, (size_t)(outer * s->rows * bytes))) complain("bits of o differ", w, "");
  if (w->args.lse && memcmp(lse, l->lse, (size_t)(outer * s->rows * 4))) complain("bits of lse differ", w, "");
  compared[mode_now]++;
  free(o);
  free(lse);
}

/* A size of groups that suits ranks and heads; 0, the model's choice, one time in four. */
static int group_for(const attn_problem *p) {
  int sizes[1 + MOST_HEADS] = {0}, count = 1;
  for (int n = 2; n < ranks && n <= p->heads_q; n++)
    if (ranks % n == 0 && p->heads_q % n == 0 && (p->heads_kv % n == 0 || n % p->heads_kv == 0)) sizes[count++] = n;
  return one_in(4) ? 0 : count > 1 ? sizes[1 + pick(count - 1)] : ranks;
}

/* False if the mode refuses the problem. */
static bool check_case(attn_mpi_mode mode, bool few) {
  const bool travels = mode == ATTN_MPI_PASS_Q || mode == ATTN_MPI_EXCHANGE;
  whole_case w;
  local_case l;
  shards s;
  int64_t unit = 1;
  make_case(&w, few, travels);
  const attn_options compute = ATTN_STRUCT(attn_options, .threads = 1);
  compare_choices(&w.p);
  if (attn_mpi_border(&w.p, &compute, MPI_COMM_WORLD, &unit) != ATTN_OK) complain("border", &w, attn_last_error());
  deal_shards(&w, unit, mode == ATTN_MPI_SPLIT && one_in(2), &s);
  make_local(&w, &s, &l);
  const attn_mpi_options options =
      ATTN_STRUCT(attn_mpi_options, .mode = mode, .compute = &compute, .piece_keys = 1 + pick(1500),
                  .block_rows = 1 + pick(300), .timeout_s = 60, .group_ranks = group_for(&w.p));
  const attn_mpi_shard shard =
      ATTN_STRUCT(attn_mpi_shard, .q = s.q, .q_count = s.q_count, .k = s.k, .k_count = s.k_count, .layout = &l.layout);
  attn_mpi_plan *plan;
  const attn_status status = attn_mpi_plan_create(&w.p, &shard, &options, MPI_COMM_WORLD, &plan);
  if (status == ATTN_UNSUPPORTED && mode != ATTN_MPI_PASS_KV) {
    if (!strstr(attn_last_error(), "ATTN_MPI_") && !strstr(attn_last_error(), "rank "))
      complain("refusal", &w, attn_last_error());
  } else if (status != ATTN_OK) {
    complain("plan", &w, attn_last_error());
  } else if (run_whole(&w, attn_mpi_plan_kernel(plan))) {
    const size_t bytes = attn_mpi_plan_workspace(plan);
    void *workspace = allocate((int64_t)bytes);
    plant_fault(&w, &s, &l);
    if (attn_mpi_plan_run(plan, &l.args, workspace, bytes) != ATTN_OK)
      complain("run", &w, attn_last_error());
    else
      compare(&w, &s, &l);
    grouped += mode == ATTN_MPI_EXCHANGE && strstr(attn_mpi_plan_describe(plan), "in groups of");
    free(workspace);
  }
  attn_mpi_plan_destroy(plan);
  free_local(&l);
  free_case(&w);
  return status != ATTN_UNSUPPORTED;
}

/* ---- Gradients: several ranks give the bits of one, which are near those of one call of libattn ---- */

enum { D_Q, D_K, D_V, GRADIENTS };

static double largest(const char *tensor, attn_dtype dtype, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; i++) {
    const double x = fabs((double)attn_load_f32((attn_storage){tensor, dtype}, i));
    if (x > most && isfinite(x)) most = x;
  }
  return most;
}

static bool are_near(const char *a, const char *b, attn_dtype dtype, int64_t count) {
  const double limit = (dtype == ATTN_F32 ? 1e-4 : 4e-2) * (largest(a, dtype, count) + 1e-3);
  for (int64_t i = 0; i < count; i++) {
    const double x = (double)attn_load_f32((attn_storage){a, dtype}, i),
                 y = (double)attn_load_f32((attn_storage){b, dtype}, i);
    if (!(fabs(x - y) <= limit) && !(isnan(x) && isnan(y))) return false;
  }
  return true;
}

/* kernel: the name of the one that ran. */
static bool run_ranks(const attn_problem *p, const attn_mpi_shard *shard, const attn_mpi_options *options, MPI_Comm comm,
                      const attn_args *args, char kernel[64]) {
  attn_mpi_plan *plan;
  attn_status status = attn_mpi_plan_create(p, shard, options, comm, &plan);
  if (status == ATTN_OK) {
    const size_t bytes = attn_mpi_plan_workspace(plan);
    void *workspace = allocate((int64_t)bytes);
    snprintf(kernel, 64, "%s", attn_mpi_plan_kernel(plan));
    status = attn_mpi_plan_run(plan, args, workspace, bytes);
    free(workspace);
  }
  attn_mpi_plan_destroy(plan);
  return status == ATTN_OK;
}

static void check_gradients(void) {
  whole_case w;
  local_case l;
  shards s = {.q_count = 0};
  gradients = true;
  make_case(&w, false, true);
  w.p.uses |= ATTN_USE_LSE;
  point_args(&w);
  const int64_t unit = 16 * (1 + pick(8)), batch = batch_of(&w.p);
  int64_t borders[MOST_RANGES], count = pick(MOST_RANGES / 2);
  for (int64_t i = 0; i < count; i++) borders[i] = pick(w.rows / unit + 1) * unit;
  qsort(borders, (size_t)count, sizeof *borders, by_value);
  s.q_count = deal(w.rows, borders, count, s.q, &s.rows);
  for (int64_t i = 0; i < count; i++) borders[i] = pick(w.keys / unit + 1) * unit;
  qsort(borders, (size_t)count, sizeof *borders, by_value);
  s.k_count = deal(w.keys, borders, count, s.k, &s.keys);
  char *d_o = random_tensor(w.p.dtype_o, batch * w.p.heads_q * w.rows, w.p.dim_v);
  attn_args a = w.args;
  run_whole(&w, "flash_c"); /* a kernel that all ranks have */
  const int64_t o_bytes = row_bytes(w.p.dtype_o, w.p.dim_v);
  attn_problem_set_backward(&w.p);
  make_local(&w, &s, &l);
  const struct {
    attn_dtype dtype;
    int64_t outer, tokens, own, bytes, ranges;
    const attn_mpi_range *range;
  } t[GRADIENTS] = {
      {w.p.dtype_q, batch * w.p.heads_q, w.rows, s.rows, row_bytes(w.p.dtype_q, w.p.dim_qk), s.q_count, s.q},
      {w.p.dtype_kv, batch * w.p.heads_kv, w.keys, s.keys, row_bytes(w.p.dtype_kv, w.p.dim_qk), s.k_count, s.k},
      {w.p.dtype_kv, batch * w.p.heads_kv, w.keys, s.keys, row_bytes(w.p.dtype_kv, w.p.dim_v), s.k_count, s.k}};
  char *call[GRADIENTS], *one[GRADIENTS], *own[GRADIENTS];
  for (int i = 0; i < GRADIENTS; i++) {
    call[i] = allocate(t[i].outer * t[i].tokens * t[i].bytes);
    one[i] = allocate(t[i].outer * t[i].tokens * t[i].bytes);
    own[i] = allocate(t[i].outer * t[i].own * t[i].bytes);
  }
  char *own_d_o = own_tensor(d_o, batch * w.p.heads_q, w.rows, o_bytes, s.q, s.q_count, s.rows);
  take(w.o, batch * w.p.heads_q, w.rows, o_bytes, s.q, s.q_count, s.rows, l.o);
  take((char *)w.lse, batch * w.p.heads_q, w.rows, 4, s.q, s.q_count, s.rows, l.lse);
  attn_problem *y = &l.layout;
  y->d_q_stride = y->q_stride, y->d_k_stride = y->k_stride, y->d_v_stride = y->v_stride, y->d_o_stride = y->o_stride;
  a.d_o = d_o;
  a.d_q = call[D_Q], a.d_k = call[D_K], a.d_v = call[D_V];
  if (attn_sdpa(&w.p, &a) != ATTN_OK) complain("gradients of one call", &w, attn_last_error());
  char kernel[64] = "";
  attn_options compute = ATTN_STRUCT(attn_options, .threads = 1);
  const attn_mpi_options options = ATTN_STRUCT(attn_mpi_options, .compute = &compute, .piece_keys = unit, .timeout_s = 60);
  const attn_mpi_range rows = {0, w.rows}, keys = {0, w.keys};
  const attn_mpi_shard alone =
      ATTN_STRUCT(attn_mpi_shard, .q = &rows, .q_count = 1, .k = &keys, .k_count = 1, .layout = &w.p);
  const attn_mpi_shard shard =
      ATTN_STRUCT(attn_mpi_shard, .q = s.q, .q_count = s.q_count, .k = s.k, .k_count = s.k_count, .layout = &l.layout);
  a.d_q = one[D_Q], a.d_k = one[D_K], a.d_v = one[D_V];
  l.args.d_o = own_d_o;
  l.args.d_q = own[D_Q], l.args.d_k = own[D_K], l.args.d_v = own[D_V];
  plant_fault(&w, &s, &l);
  compare_choices(&w.p);
  if (!run_ranks(&w.p, &shard, &options, MPI_COMM_WORLD, &l.args, kernel)) complain("gradients", &w, attn_last_error());
  compute.kernel = kernel;
  if (!run_ranks(&w.p, &alone, &options, MPI_COMM_SELF, &a, kernel))
    complain("gradients of one rank", &w, attn_last_error());
  static const char *const names[] = {"d_q", "d_k", "d_v"};
  for (int i = 0; i < GRADIENTS; i++) {
    char *mine = own_tensor(one[i], t[i].outer, t[i].tokens, t[i].bytes, t[i].range, t[i].ranges, t[i].own);
    const int64_t elements = t[i].outer * t[i].tokens * t[i].bytes / row_bytes(t[i].dtype, 1);
    if (memcmp(mine, own[i], (size_t)(t[i].outer * t[i].own * t[i].bytes)))
      complain("bits of gradients differ", &w, names[i]);
    if (!are_near(call[i], one[i], t[i].dtype, elements)) complain("gradients are not near those of one call", &w, names[i]);
    free(mine);
    free(call[i]);
    free(one[i]);
    free(own[i]);
  }
  compared[mode_now]++;
  gradients = false;
  free(d_o);
  free(own_d_o);
  free_local(&l);
  free_case(&w);
}

/* ---- A rank that fails ---- */

/* The last rank's call fails, or it does not come: then all other calls fail, with a sentence, and soon. */
static void check_failure(attn_mpi_mode mode, bool absent) {
  enum { TOKENS = 2048, DIM = 16 };
  whole_case w = {.rows = TOKENS};
  attn_problem_init(&w.p, 1, 2, 2, TOKENS, TOKENS, DIM, DIM);
  const int64_t bytes = 2 * TOKENS * DIM * 4;
  char *data = allocate(4 * bytes);
  memset(data, 0, (size_t)(4 * bytes));
  int64_t unit = 1;
  attn_mpi_border(&w.p, NULL, MPI_COMM_WORLD, &unit);
  const int64_t units = (TOKENS + unit - 1) / unit, end = units * (rank + 1) / ranks * unit;
  const attn_mpi_range own = {units * rank / ranks * unit, end < TOKENS ? end : TOKENS};
  const attn_mpi_shard shard = ATTN_STRUCT(attn_mpi_shard, .q = &own, .q_count = 1, .k = &own, .k_count = 1);
  const attn_mpi_options options =
      ATTN_STRUCT(attn_mpi_options, .mode = mode, .timeout_s = absent ? 2 : 60, .group_ranks = 2);
  attn_args args = ATTN_STRUCT(attn_args, .q = data, .k = data + bytes, .v = data + 2 * bytes, .o = data + 3 * bytes);
  attn_mpi_plan *plan;
  const bool fails = rank == ranks - 1;
  const attn_status created = attn_mpi_plan_create(&w.p, &shard, &options, MPI_COMM_WORLD, &plan);
  if (created != ATTN_OK) complain("plan of a failure", &w, attn_last_error());
  MPI_Barrier(MPI_COMM_WORLD); /* a rank that fails before others have their plan would leave them without one */
  void *workspace = NULL;
  if (created == ATTN_OK) {
    workspace = allocate((int64_t)attn_mpi_plan_workspace(plan));
    const time_t begin = time(NULL);
    if (fails) args.o = NULL;
    if (!fails || !absent) {
      const attn_status status = attn_mpi_plan_run(plan, &args, workspace, attn_mpi_plan_workspace(plan));
      const char *part = fails ? "attn_args.o is NULL" : absent ? "rank " : "has failed with ATTN_INVALID_ARGUMENT";
      if (status == ATTN_OK || !strstr(attn_last_error(), part)) complain("a failure", &w, attn_last_error());
      if (attn_mpi_plan_run(plan, &args, workspace, attn_mpi_plan_workspace(plan)) == ATTN_OK)
        complain("a second run", &w, "is no error");
    }
    if (time(NULL) - begin > 15) complain("a failure", &w, "takes more than seconds");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  free(workspace);
  compared[mode_now]++;
  attn_mpi_plan_destroy(plan);
  free(data);
}

/* The last rank lacks rank 0's tier: all calls fail, with one sentence. */
static void check_lack(void) {
  whole_case w;
  int64_t unit;
  char kernel[64];
  if (ranks == 1) return;
  make_case(&w, false, true);
  const attn_mpi_range own = {0, 0};
  const attn_mpi_shard shard = ATTN_STRUCT(attn_mpi_shard, .q = &own, .q_count = 1, .k = &own, .k_count = 1);
  attn_mpi_plan *plan;
  cap_tier(rank == 0 ? "portable" : rank == ranks - 1 ? "c" : NULL);
  for (int i = 0; i < 2; i++) {
    const attn_status status = i == 0 ? attn_mpi_border(&w.p, NULL, MPI_COMM_WORLD, &unit)
                                      : attn_mpi_plan_create(&w.p, &shard, NULL, MPI_COMM_WORLD, &plan);
    snprintf(kernel, sizeof kernel, "rank %d: it cannot run flash_portable, ", ranks - 1);
    if (status != ATTN_UNSUPPORTED || !strstr(attn_last_error(), kernel) ||
        !strstr(attn_last_error(), "attn_options.kernel must be one that every rank can run"))
      complain("a rank without rank 0's tier", &w, attn_last_error());
  }
  cap_tier(NULL);
  compared[mode_now]++;
  free_case(&w);
}

/* ---- The program ---- */

static long argument(int count, char **arguments, const char *name, long otherwise) {
  for (int i = 1; i + 1 < count; i++)
    if (!strcmp(arguments[i], name)) return atol(arguments[i + 1]);
  return otherwise;
}

static const char *word(int count, char **arguments, const char *name) {
  for (int i = 1; i + 1 < count; i++)
    if (!strcmp(arguments[i], name)) return arguments[i + 1];
  return "";
}

static void end_here(int signal) {
  (void)signal;
  kill(getpid(), SIGKILL);
}

static void die_after(long microseconds) {
  const struct timespec moment = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  timer_t timer;
  signal(SIGALRM, end_here);
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  timer_settime(timer, 0, &(struct itimerspec){.it_value = moment}, NULL);
}

/* So many cases of one mode, beside those that it refuses. */
static void check_mode(int mode, long cases) {
  for (long i = 0, done = 0; i < 12 * cases && done < cases; i++) {
    make_ranks_unlike(i);
    if (mode == GRADIENT_MODE)
      check_gradients(), done++;
    else
      done += check_case((attn_mpi_mode)mode, mode == ATTN_MPI_SPLIT || (mode != ATTN_MPI_EXCHANGE && i % 3 == 2));
  }
}

/* Whether every mode that was to run compared something, and found a fault if there is one; else nothing. */
static bool report(const bool *ran, long cases) {
  int own[2 * MODES + 1], all[2 * MODES + 1], found = 0, made = 0;
  memcpy(own, failures, sizeof failures);
  memcpy(own + MODES, compared, sizeof compared);
  own[2 * MODES] = unlike_choices;
  MPI_Allreduce(own, all, 2 * MODES + 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  bool good = !unlike || all[2 * MODES] > 0;
  if (ran[ATTN_MPI_EXCHANGE] && ranks > 2 && ranks % 2 == 0 && cases > 2) good &= grouped > 0;
  for (int mode = 0; mode < MODES; mode++) {
    found += all[mode], made += all[MODES + mode];
    if (ran[mode]) good &= all[MODES + mode] > 0 && (all[mode] > 0) == (*fault != 0);
  }
  if (rank == 0)
    printf("%d ranks: %d comparisons, %d failures%s%s", ranks, made, found, *fault ? " by the fault " : "", fault);
  if (rank == 0 && unlike) printf(", %d unlike choices", all[2 * MODES]);
  if (rank == 0) printf("\n");
  return good;
}

int main(int count, char **arguments) {
  static const char *const names[MODES] = {"failure", "pass_kv", "pass_q", "exchange", "split", "gradients"};
  bool ran[MODES] = {false};
  int provided;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long cases = argument(count, arguments, "cases", 20), die = argument(count, arguments, "die", -1);
  const char *only = word(count, arguments, "mode");
  fault = word(count, arguments, "fault");
  unlike = argument(count, arguments, "unlike", 0) != 0;
  if (unlike) name_class();
  if (die >= 0 && rank == 1 % ranks) die_after(die);
  for (mode_now = ATTN_MPI_PASS_KV; mode_now < MODES; mode_now++) {
    random_state = (uint64_t)argument(count, arguments, "seed", 1) * 1000 + (uint64_t)mode_now;
    ran[mode_now] = !*only || !strcmp(only, names[mode_now]);
    if (ran[mode_now]) check_mode(mode_now, cases);
  }
  mode_now = 0;
  ran[0] = unlike || !strcmp(only, names[0]);
  if (unlike) check_lack();
  if (!strcmp(only, names[0]))
    for (int i = 0; i < 6 && ranks > 1; i++) check_failure((attn_mpi_mode)(ATTN_MPI_PASS_KV + i / 2), i % 2);
  const bool good = report(ran, cases);
  MPI_Finalize();
  free(given_cap);
  return !good;
}
