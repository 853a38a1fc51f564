/* SPDX-License-Identifier: MIT */
/* Inputs that no call has seen, made between two timed calls, so they must cost little beside a call. Every row of q becomes
 * another one, and in every head halves of two rows of K and of two rows of V change places (two columns of precomputed
 * scores do). So no row of the output is what it was, and nothing that was kept of K, V or their product is right any more.
 * All of it can be undone: then the output is known to the bit. */
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "data/generate.h"
#include "data/tensors.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"
#include "machine/affinity.h"

enum {
  POOL = 4096,          /* numbers: each half of a row of q becomes those from a random one on */
  POOL_CHANGES = 8,     /* numbers of the pool that change each time, */
  TRIES = 4,            /* to find two rows of K or V that are no padding */
  ONE_THREAD = 1 << 14, /* elements: for fewer, waking a team costs more than it saves */
};

/* Two rows along the keys, some columns of which changed places: from the first one on, and from column 0 after the last. */
typedef struct swap {
  bench_tensor tensor;
  int64_t one, other; /* elements from the start of the span */
  int64_t first, count;
} swap;

/* The changes, so that they can be undone. */
struct bench_fresh {
  unsigned char *q, *pool; /* q as it was, and numbers like those of q; NULL if q is not read */
  bool shares_q;           /* both belong to other tensors */
  int64_t pool_count;      /* 0: nothing to draw from */
  swap *swaps;
  int swap_count;
  int64_t *marks; /* elements of the first output */
  int mark_count;
};

static int64_t draw(uint64_t *random, int64_t below) {
  const uint64_t now = (*random)++;
  return bench_value_below(now, BENCH_STREAM_ORDER, now, below);
}

static int64_t stored(const bench_buffer *t, int i) { return t->stride[i] == 0 && t->extent[i] > 0 ? 1 : t->extent[i]; }

/* The memory in which the call finds a tensor. Copies of a set may share it, and then it is not in their own buffer. */
static unsigned char *span_of(const bench_tensors *t, bench_tensor which) {
  const attn_operand operand = attn_operand_of(&t->problem, (attn_operand_id)which);
  const bench_buffer *b = &t->buffers[which];
  return (unsigned char *)attn_operand_at(&operand, &t->args) - (size_t)b->first * b->element_bytes;
}

static bench_tensor first_output(const bench_tensors *t) { return (bench_tensor)attn_first_output(&t->problem); }

static bool is_poison(const unsigned char *element, const bench_buffer *of) {
  for (size_t i = 0; i < of->element_bytes; i++)
    if (element[i] != bench_poison_of(of->dtype)) return false;
  return true;
}

/* ---- Room ------------------------------------------------------------------------------------------------------------ */

/* Another number of q, or the same with the other sign. In all floating-point types the sign is the highest bit. */
static void change_pool(const bench_tensors *t, int64_t at, uint64_t *random) {
  const struct bench_fresh *f = t->fresh;
  const bench_buffer *q = &t->buffers[BENCH_Q];
  const size_t size = q->element_bytes;
  const unsigned char *from = f->q + (size_t)draw(random, (int64_t)(q->bytes / size)) * size;
  unsigned char *to = f->pool + (size_t)at * size;
  if (is_poison(from, q)) return;
  memcpy(to, from, size);
  to[size - 1] ^= (unsigned char)(draw(random, 2) << 7);
}

static bool make_pool(bench_tensors *t, uint64_t *random) {
  struct bench_fresh *f = t->fresh;
  const bench_buffer *q = &t->buffers[BENCH_Q];
  const size_t size = q->element_bytes;
  const int64_t count = (int64_t)(q->bytes / size), width = POOL + stored(q, 3);
  f->q = malloc(q->bytes + 1);
  f->pool = malloc((size_t)width * size);
  if (!f->q || !f->pool) return false;
  memcpy(f->q, span_of(t, BENCH_Q), q->bytes);
  for (int64_t i = 0, at = 0; i < count && at < width; i++) {
    if (!is_poison(f->q + (size_t)i * size, q)) {
      memcpy(f->pool + (size_t)at * size, f->q + (size_t)i * size, size);
      f->pool_count = ++at;
    }
  }
  for (int64_t at = f->pool_count; f->pool_count && at < width; at++)
    memcpy(f->pool + (size_t)at * size, f->pool + (size_t)(at % f->pool_count) * size, size);
  if (f->pool_count) f->pool_count = POOL;
  for (int64_t at = 0; f->pool_count && at < width; at++) change_pool(t, at, random);
  return true;
}

bool bench_tensors_vary(bench_tensors *t, const bench_tensors *like, uint64_t *random) {
  const attn_problem *p = &t->problem;
  const bench_owned o = bench_owned_elements(t, first_output(t));
  struct bench_fresh *f = t->fresh = calloc(1, sizeof *f);
  if (!f) return false;
  const size_t heads = (size_t)(p->batch * (p->heads_q > p->heads_kv ? p->heads_q : p->heads_kv));
  f->swaps = malloc(3 * heads * sizeof *f->swaps + 1);
  f->marks = malloc((size_t)(o.extent[0] * o.extent[1]) * sizeof *f->marks + 1);
  bool fine = f->swaps && f->marks;
  if (fine && like) {
    f->q = like->fresh->q;
    f->pool = like->fresh->pool;
    f->pool_count = like->fresh->pool_count;
    f->shares_q = true;
  } else if (fine && p->score != ATTN_SCORE_PRECOMPUTED && t->buffers[BENCH_Q].bytes) {
    fine = make_pool(t, random);
  }
  if (!fine) bench_tensors_forget_fresh(t);
  return fine;
}

void bench_tensors_forget_fresh(bench_tensors *t) {
  struct bench_fresh *f = t->fresh;
  if (!f) return;
  if (!f->shares_q) free(f->q), free(f->pool);
  free(f->swaps);
  free(f->marks);
  free(f);
  t->fresh = NULL;
}

/* ---- Rows of q ------------------------------------------------------------------------------------------------------- */

/* Elements `first` .. `end` - 1 of a row, from places one behind the other or as far apart as in the row. */
static void copy_part(unsigned char *to, const unsigned char *from, const bench_buffer *b, int64_t first, int64_t end,
                      int64_t from_step) {
  const int64_t size = (int64_t)b->element_bytes, step = b->stride[3];
  to += first * step * size;
  from += first * from_step * size;
  if (step == 1 && from_step == 1)
    memcpy(to, from, (size_t)((end - first) * size));
  else
    for (int64_t d = first; d < end; d++, to += step * size, from += from_step * size) memcpy(to, from, (size_t)size);
}

/* Halves from two places of the pool: rows of a head that were alike could be computed once. */
static void draw_row(unsigned char *row, const struct bench_fresh *f, const bench_buffer *b, int64_t number) {
  const int64_t size = (int64_t)b->element_bytes, dim = stored(b, 3);
  copy_part(row, f->pool + number % f->pool_count * size, b, 0, dim / 2, 1);
  copy_part(row, f->pool + number / f->pool_count * size, b, dim / 2, dim, 1);
}

/* Rows as they were, or from the pool. Padding stays poisoned. */
static void write_q(bench_tensors *t, bool pristine, uint64_t seed, int threads) {
  const struct bench_fresh *f = t->fresh;
  const bench_buffer *b = &t->buffers[BENCH_Q];
  const int64_t size = (int64_t)b->element_bytes, numbers = f->pool_count * f->pool_count;
  unsigned char *q = span_of(t, BENCH_Q);
  const int64_t heads = stored(b, 1), tokens = stored(b, 2), rows = stored(b, 0) * heads * tokens;
  const int team = rows * stored(b, 3) < ONE_THREAD ? 1 : threads;
#pragma omp parallel num_threads(attn_parallel_available(team)) if (team > 1)
  {
    if (team > 1) bench_thread_settle();
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
      const int64_t place =
          b->first + n / (heads * tokens) * b->stride[0] + n / tokens % heads * b->stride[1] + n % tokens * b->stride[2];
      if (is_poison(f->q + place * size, b)) continue;
      if (pristine)
        copy_part(q + place * size, f->q + place * size, b, 0, stored(b, 3), b->stride[3]);
      else
        draw_row(q + place * size, f, b, bench_value_below(seed, BENCH_STREAM_Q, (uint64_t)n, numbers));
    }
  }
}

/* ---- Rows that change places ----------------------------------------------------------------------------------------- */

static void exchange(unsigned char *one, unsigned char *other, size_t bytes) {
  unsigned char kept[256];
  for (size_t part; bytes; bytes -= part, one += part, other += part) {
    part = bytes < sizeof kept ? bytes : sizeof kept;
    memcpy(kept, one, part);
    memcpy(one, other, part);
    memcpy(other, kept, part);
  }
}

static int along_of(bench_tensor which) { return which == BENCH_SCORES ? 2 : 3; }

/* Along the columns of K and V, along the queries of scores. Padding stays where it is. */
static void exchange_rows(const bench_tensors *t, swap s) {
  const bench_buffer *b = &t->buffers[s.tensor];
  const int along = along_of(s.tensor);
  const size_t size = b->element_bytes;
  unsigned char *span = span_of(t, s.tensor), *one = span + (size_t)s.one * size, *other = span + (size_t)s.other * size;
  if (b->stride[along] == 1 && along == 3) {
    const int64_t last = s.first + s.count, columns = stored(b, along), end = last < columns ? last : columns;
    exchange(one + (size_t)s.first * size, other + (size_t)s.first * size, (size_t)(end - s.first) * size);
    exchange(one, other, (size_t)(last - end) * size);
    return;
  }
  for (int64_t i = 0; i < s.count; i++) {
    const int64_t step = (s.first + i) % stored(b, along) * b->stride[along] * (int64_t)size;
    if (!is_poison(one + step, b) && !is_poison(other + step, b)) exchange(one + step, other + step, size);
  }
}

/* One head of a tensor, and the sequence that has the keys. */
typedef struct head_keys {
  bench_tensor tensor;
  int64_t start; /* where the head begins; in pages, where it begins in page 0 */
  int64_t b;
  attn_key_range keys;
} head_keys;

/* Where key j of the head stands: at one stride, or in pages. */
static int64_t place_of_key(const bench_tensors *t, const head_keys *h, int64_t j) {
  const attn_problem *p = &t->problem;
  const int64_t *stride = t->buffers[h->tensor].stride;
  if (h->tensor == BENCH_SCORES) return h->start + j * stride[3];
  if (!attn_uses(p, ATTN_USE_PAGES)) return h->start + j * stride[2];
  const int64_t page = t->args.page_table[h->b * p->page_table_stride + j / p->page_tokens];
  return h->start + page * stride[0] + j % p->page_tokens * stride[2];
}

/* Finds two keys of the range and lets half of their columns change places, so that no column alone shows which rows did.
 * All rows of scores do. */
static void swap_keys(bench_tensors *t, const head_keys *h, uint64_t *random) {
  const bench_tensor which = h->tensor;
  const attn_key_range keys = h->keys;
  const bench_buffer *b = &t->buffers[which];
  const bool scores = which == BENCH_SCORES;
  const int64_t count = keys.end - keys.begin, columns = stored(b, along_of(which));
  if (count < 2 || b->stride[scores ? 3 : 2] == 0) return;
  for (int i = 0; i < TRIES; i++) {
    const int64_t one = draw(random, count), other = (one + 1 + draw(random, count - 1)) % count;
    const swap s = {which, place_of_key(t, h, keys.begin + one), place_of_key(t, h, keys.begin + other),
                    scores || columns < 1 ? 0 : draw(random, columns), scores ? columns : (columns + 1) / 2};
    const unsigned char *span = span_of(t, which);
    const int64_t size = (int64_t)b->element_bytes;
    const bool padding = is_poison(span + s.one * size, b) || is_poison(span + s.other * size, b);
    if (padding && !scores) continue;
    exchange_rows(t, s);
    t->fresh->swaps[t->fresh->swap_count++] = s;
    return;
  }
}

static void swap_in_heads(bench_tensors *t, bench_tensor which, uint64_t *random) {
  const attn_problem *p = &t->problem;
  const bench_buffer *b = &t->buffers[which];
  const bool rows = which != BENCH_SCORES, paged = rows && attn_uses(p, ATTN_USE_PAGES);
  const bool packed = rows && !paged && attn_uses(p, ATTN_USE_VARLEN);
  const bool each = paged || attn_uses(p, ATTN_USE_VARLEN);
  for (int64_t batch = 0; batch < (each ? p->batch : stored(b, 0)); batch++) {
    const attn_sequence seq = attn_sequence_of(p, &t->args, batch);
    head_keys head = {which, 0, batch, attn_keys_needed(p, &t->args, &seq, batch).of[LATER_KEYS]};
    if (head.keys.begin < p->shared_prefix) head.keys.begin = p->shared_prefix; /* the same for all sequences */
    if (packed) head.keys.begin += seq.first_k, head.keys.end += seq.first_k;
    for (int64_t h = 0; h < stored(b, 1); h++) {
      head.start = b->first + (packed || paged ? 0 : batch * b->stride[0]) + h * b->stride[1];
      swap_keys(t, &head, random);
    }
  }
}

static void undo_swaps(bench_tensors *t) {
  struct bench_fresh *f = t->fresh;
  while (f->swap_count > 0) exchange_rows(t, f->swaps[--f->swap_count]);
}

/* ---- Marks ----------------------------------------------------------------------------------------------------------- */

/* A NaN that no calculation gives. */
static void mark_output(bench_tensors *t, uint64_t *random) {
  const bench_buffer *b = &t->buffers[first_output(t)];
  const bench_owned o = bench_owned_elements(t, first_output(t));
  struct bench_fresh *f = t->fresh;
  f->mark_count = 0;
  for (int64_t n = 0; n < o.extent[0] * o.extent[1] && o.count; n++) {
    const int64_t place = o.start + n / o.extent[1] * o.stride[0] + n % o.extent[1] * o.stride[1] +
                          draw(random, o.extent[2]) * o.stride[2] + draw(random, o.extent[3]) * o.stride[3];
    memset(b->data + (size_t)place * b->element_bytes, BENCH_INPUT_POISON, b->element_bytes);
    f->marks[f->mark_count++] = place;
  }
}

bool bench_tensors_marks_are_overwritten(const bench_tensors *t) {
  const bench_buffer *b = &t->buffers[first_output(t)];
  for (int i = 0; t->fresh && i < t->fresh->mark_count; i++)
    if (is_poison(b->data + (size_t)t->fresh->marks[i] * b->element_bytes, b)) return false;
  return true;
}

/* ---- All of it ------------------------------------------------------------------------------------------------------- */

void bench_tensors_freshen(bench_tensors *t, uint64_t *random, int threads) {
  struct bench_fresh *f = t->fresh;
  if (!f) return;
  undo_swaps(t);
  if (f->pool_count) {
    for (int i = 0; i < POOL_CHANGES; i++) change_pool(t, draw(random, POOL), random);
    write_q(t, false, (uint64_t)draw(random, INT64_MAX), threads);
  }
  if (!t->kv_of) {
    if (f->q) swap_in_heads(t, BENCH_K, random);
    if (t->args.v) swap_in_heads(t, BENCH_V, random);
    if (t->args.scores) swap_in_heads(t, BENCH_SCORES, random);
  }
  mark_output(t, random);
}

void bench_tensors_restore(bench_tensors *t, int threads) {
  if (!t->fresh) return;
  if (t->fresh->pool_count) write_q(t, true, 0, threads);
  t->fresh->mark_count = 0;
  undo_swaps(t->kv_of ? t->kv_of : t);
}
