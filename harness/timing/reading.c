/* SPDX-License-Identifier: MIT */
#include "timing/reading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "base/cli.h"
#include "base/clock.h"
#include "check/check.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"
#include "machine/affinity.h"
#include "timing/rates.h"
#include "timing/stats.h"

enum { LINE = ATTN_READ_LINE };

/* ---- What a case reads --------------------------------------------------------------------------------------------- */

/* Bytes that lie one behind the other: `count` times `bytes`, `stride` bytes apart. */
typedef struct runs {
  const char *data;
  int64_t bytes, count, stride;
} runs;

/* Tensors of one sequence that are read side by side: K and V, or Q and O. The second one may be missing. */
typedef struct couple {
  runs side[2];
} couple;

enum { ONE_BY_ONE, SIDE_BY_SIDE, PREFETCHED, COPIED }; /* orders; the last one is no order of tensors */

static const size_t AHEAD = 4096; /* bytes: a page of one tensor while the other is read; tested: 1 to 16 KiB */

static size_t ahead_of(int order) { return order == PREFETCHED ? AHEAD : 0; }

/* Runs of heads x rows x columns elements. False if there are gaps within the rows of a head. */
static bool join(const char *first, attn_strides stride, attn_dtype dtype, int64_t heads, int64_t rows, int64_t columns,
                 runs *r) {
  columns = attn_row_elements(dtype, columns);
  const int64_t bytes = attn_elements_bytes(dtype, rows * columns);
  *r = (runs){.data = first, .bytes = bytes, .count = heads, .stride = attn_elements_bytes(dtype, stride.h)};
  if (r->bytes == 0 || heads == 0) return *r = (runs){.data = first}, true;
  if (stride.d != 1) return false;
  if (stride.h == columns && stride.s == heads * columns) /* heads of a token, then tokens */
    return *r = (runs){.data = first, .bytes = heads * bytes, .count = 1}, true;
  if (rows > 1 && stride.s != columns) return false;
  if (stride.h == rows * columns) r->bytes *= heads, r->count = 1;
  return true;
}

/* A couple in the making: handed on when it has both sides. */
typedef struct coupling {
  couple couple;
  int sides;
  void (*add)(void *context, const couple *c);
  void *context;
} coupling;

static void hand_on(coupling *to) {
  if (to->sides > 0) to->add(to->context, &to->couple);
  to->couple = (couple){0};
  to->sides = 0;
}

/* Rows of all heads of a tensor, from an offset on. False if there are gaps within a head. */
static bool add_side(coupling *to, const attn_operand *o, const attn_args *args, int64_t offset, int64_t rows) {
  const attn_strides stride = {.h = o->stride[1], .s = o->stride[2], .d = o->stride[3]};
  const char *first = attn_element_at(attn_operand_at(o, args), o->dtype, offset);
  if (!join(first, stride, o->dtype, o->extent[1], rows, o->extent[3], &to->couple.side[to->sides])) return false;
  if (++to->sides == 2) hand_on(to);
  return true;
}

/* For places in the first head and column. */
static attn_strides strides_of(const attn_operand *o) { return (attn_strides){.b = o->stride[0], .s = o->stride[2]}; }

/* K and V of a key run, from key `first` on: the tensors with rows of keys, but for those of one number a row, and V that
 * lies in rows of K. */
static bool add_keys(const bench_tensors *t, const attn_sequence *seq, int64_t first, int64_t keys, coupling *to) {
  const bench_expected_row row = {.b = seq->b};
  for (int i = 0; i < ATTN_ROW_OPERANDS; i++) {
    const attn_operand o = attn_operand_of(&t->problem, (attn_operand_id)i);
    const attn_strides stride = strides_of(&o);
    if (!o.of_keys || !o.present || o.ignored || o.single || t->buffers[i].within_k) continue;
    if (!add_side(to, &o, &t->args, bench_key_place(&t->problem, &t->args, &stride, &row, first), keys)) return false;
  }
  return hand_on(to), true;
}

/* Precomputed scores of a sequence, in the place of Q. */
static bool add_scores(const bench_tensors *t, const attn_sequence *seq, attn_key_range used, coupling *to) {
  attn_operand o = attn_operand_of(&t->problem, ATTN_OPERAND_SCORES);
  if (!o.present) return true;
  o.extent[3] = used.end - used.begin;
  return add_side(to, &o, &t->args, attn_score_offset(&t->problem.scores_stride, seq->b, 0, 0, used.begin), seq->len_q);
}

/* Q (or S) and O of a sequence: the tensors with rows of queries, but for those of one number a row. */
static bool add_queries(const bench_tensors *t, const attn_sequence *seq, attn_key_range used, coupling *to) {
  const attn_problem *p = &t->problem;
  if (!add_scores(t, seq, used, to)) return false;
  for (int i = 0; i < ATTN_ROW_OPERANDS; i++) {
    const attn_operand o = attn_operand_of(p, (attn_operand_id)i);
    const attn_strides stride = strides_of(&o);
    const int64_t rows = attn_is_output(p, (attn_operand_id)i) ? attn_rows(p, seq) : seq->len_q;
    if (o.of_keys || !o.present || o.ignored || o.single) continue;
    if (!add_side(to, &o, &t->args, attn_row_offset(p, &stride, seq->b, 0, seq->first_q), rows)) return false;
  }
  return hand_on(to), true;
}

/* Calls add(context, couple) for each part that a sequence reads: its key runs in order, then its rows. False if something
 * cannot be read. */
static bool each_couple(const bench_tensors *t, int64_t b, void (*add)(void *context, const couple *c), void *context) {
  const attn_sequence seq = attn_sequence_of(&t->problem, &t->args, b);
  const attn_needed_keys needed = attn_keys_needed(&t->problem, &t->args, &seq, b);
  coupling to = {.add = add, .context = context};
  for (int i = 0; i < KEY_PIECES; i++)
    for (int64_t j = needed.of[i].begin, keys; j < needed.of[i].end; j += keys) {
      keys = min64(needed.of[i].end - j, attn_run_keys(&t->problem, &seq, j));
      if (!add_keys(t, &seq, j, keys, &to)) return false;
    }
  return add_queries(t, &seq, needed.of[LATER_KEYS], &to);
}

static void add_nothing(void *context, const couple *c) { (void)context, (void)c; }

bool bench_can_read(const bench_tensors *t) {
  for (int64_t b = 0; b < t->problem.batch; b++)
    if (!each_couple(t, b, add_nothing, NULL)) return false;
  return true;
}

/* ---- The pieces of a thread ----------------------------------------------------------------------------------------- */

typedef struct piece {
  const char *data, *beside;
  size_t bytes;
} piece;

typedef struct pieces {
  piece *item;
  int count;
  double bytes; /* these bytes alone, not the rest of their lines */
  bool failed;
} pieces;

static void add(pieces *p, const char *data, const char *beside, int64_t bytes) {
  const size_t before = (uintptr_t)data % LINE;
  if (bytes <= 0 || p->failed) return;
  piece *grown = bench_grown(p->item, p->count, sizeof *grown);
  p->failed = !grown;
  if (p->failed) return;
  p->item = grown;
  p->item[p->count++] = (piece){data - before, beside ? beside - (uintptr_t)beside % LINE : NULL,
                                ((size_t)bytes + before + LINE - 1) / LINE * LINE};
}

/* The bytes of a run that belong to part `part` of `parts`: whole lines but for the last one. */
static int64_t border(int64_t bytes, int part, int parts) {
  return part == parts ? bytes : bytes / parts * part / LINE * LINE;
}

/* Part `part` of `parts` of run n of both sides. */
static void add_run(pieces *p, const couple *c, int order, int64_t n, int part, int parts) {
  const char *data[2] = {NULL, NULL};
  int64_t bytes[2] = {0, 0};
  for (int s = 0; s < 2; s++) {
    const runs *r = &c->side[s];
    if (n >= r->count) continue;
    const int64_t from = border(r->bytes, part, parts);
    data[s] = r->data + n * r->stride + from;
    bytes[s] = border(r->bytes, part + 1, parts) - from;
    p->bytes += (double)bytes[s];
  }
  const int64_t both = order == ONE_BY_ONE ? 0 : min64(bytes[0], bytes[1]) / LINE * LINE;
  if (both && order == SIDE_BY_SIDE) add(p, data[0], data[1], both);
  for (int64_t at = 0; at < both && order == PREFETCHED; at += (int64_t)AHEAD)
    for (int s = 0; s < 2; s++) add(p, data[s] + at, NULL, min64(both - at, (int64_t)AHEAD));
  for (int s = 0; s < 2; s++)
    if (data[s]) add(p, data[s] + both, NULL, bytes[s] - both);
}

/* Each thread takes its part of the heads, or of every run where there are fewer runs than threads. */
static void add_couple(pieces *p, const couple *c, int order, int part, int parts) {
  const int64_t count = max64(c->side[0].count, c->side[1].count);
  const bool split = count < parts;
  for (int64_t n = split ? 0 : count * part / parts; n < (split ? count : count * (part + 1) / parts); n++)
    add_run(p, c, order, n, split ? part : 0, split ? parts : 1);
}

/* One thread's share of a call. */
typedef struct share {
  pieces *pieces;
  int order, part, parts;
} share;

static void add_share(void *context, const couple *c) {
  const share *s = context;
  add_couple(s->pieces, c, s->order, s->part, s->parts);
}

static void add_tensors(pieces *p, const bench_tensors *t, int order, int part, int parts) {
  share s = {p, order, part, parts};
  for (int64_t b = 0; b < t->problem.batch; b++) (void)each_couple(t, b, add_share, &s);
}

/* ---- The roof of a case ---------------------------------------------------------------------------------------------- */

/* lists[set][part] of the sets that the span visits. */
static double time_order(bench_read_loop loop, size_t ahead, bench_read_span span, int threads, const pieces *lists,
                         int sets) {
  uint64_t seen = 0;
  bench_team_settle(threads);
  const double start = bench_now_ns();
#pragma omp parallel for num_threads(attn_parallel_available(threads)) reduction(^ : seen) schedule(static, 1)
  for (int part = 0; part < threads; part++)
    for (int64_t pass = 0; pass < span.passes; pass++) {
      const pieces *p = &lists[pass % sets * threads + part];
      for (int i = 0; i < p->count; i++) seen ^= loop(p->item[i].data, p->item[i].beside, p->item[i].bytes, ahead);
    }
  const double time_ns = bench_now_ns() - start;
  __asm__ volatile("" : : "r"(seen)); /* the loads have a use */
  double bytes = 0;
  for (int64_t pass = 0; pass < span.passes; pass++)
    for (int part = 0; part < threads; part++) bytes += lists[pass % sets * threads + part].bytes;
  return bytes / time_ns * 1e9;
}

/* The same, and frees the lists; 0 if memory was short for them. */
static double time_and_free(bench_read_loop loop, int order, bench_read_span span, int threads, pieces *lists, int sets) {
  bool complete = lists;
  for (int i = 0; lists && i < sets * threads; i++) complete &= !lists[i].failed;
  const double rate = complete ? time_order(loop, ahead_of(order), span, threads, lists, sets) : 0;
  for (int i = 0; lists && i < sets * threads; i++) free(lists[i].item);
  free(lists);
  return rate;
}

static double rate_of_order(bench_read_loop loop, bench_read_span span, int threads, int order) {
  const int sets = (int)min64(span.passes, span.count);
  pieces *lists = calloc((size_t)sets * (size_t)threads, sizeof *lists);
  for (int i = 0; lists && i < sets * threads; i++)
    add_tensors(&lists[i], &span.tensors[(span.first + i / threads) % span.count], order, i % threads, threads);
  return time_and_free(loop, order, span, threads, lists, sets);
}

double bench_read_rate(bench_read_loop loop, bench_read_span span, int threads) {
  double best = 0;
  for (int order = ONE_BY_ONE; order < BENCH_READ_ORDERS; order++, span.first += span.passes)
    best = fmax(best, rate_of_order(loop, span, threads, order));
  return best;
}

double bench_read_arrays(bench_read_loop loop, const void *const data[2], const size_t bytes[2], int threads, int order) {
  const couple c = {{{data[0], (int64_t)bytes[0], 1, 0}, {data[1], (int64_t)bytes[1], 1, 0}}};
  pieces *lists = calloc((size_t)threads, sizeof *lists);
  for (int part = 0; lists && part < threads; part++) add_couple(&lists[part], &c, order, part, threads);
  return time_and_free(loop, order, (bench_read_span){.passes = 1}, threads, lists, 1);
}

/* ---- What this machine reads ----------------------------------------------------------------------------------------- */

enum { PASSES = 9, FILL = 0x55 };

static const uint64_t FILLED = FILL * 0x0101010101010101u; /* eight bytes */

static const double PASS_NS = 3e6;

/* Data that the threads of one measurement share. */
typedef struct reading {
  bench_read_loop loop;
  int order;
  size_t bytes;    /* two halves of whole lines */
  int64_t repeats; /* repeats of one pass */
  double rate[PASSES];
  bool failed;
} reading;

static double time_repeats(const reading *r, unsigned char *data, bool *wrong) {
  const size_t half = r->bytes / 2;
  const double start = bench_now_ns();
  for (int64_t i = 0; i < r->repeats; i++) {
    uint64_t seen = FILLED;
    if (r->order == COPIED) {
      memcpy(data + half, data, half);
      __asm__ volatile("" : : "r"(data) : "memory"); /* the stores have a use */
    } else {
      seen =
          r->order == ONE_BY_ONE ? r->loop(data, NULL, r->bytes, 0) : r->loop(data, data + half, half, ahead_of(r->order));
    }
    *wrong |= seen != FILLED;
  }
  return bench_now_ns() - start;
}

/* Finds how often a pass reads the buffer, on one thread alone; with many threads passes last somewhat longer. */
static void calibrate(reading *r, unsigned char *data) {
  bool wrong = false;
  r->repeats = 1;
  while (time_repeats(r, data, &wrong) < PASS_NS / 2) r->repeats *= 2;
  r->failed |= wrong;
}

/* One thread's part: fills its own buffer (first touch), then adds its rate to every pass. All threads start a pass
 * together. */
static void read_own_buffer(reading *r) {
  bench_thread_settle();
  unsigned char *data = attn_aligned_alloc(LINE, r->bytes);
  if (data) memset(data, FILL, r->bytes);
#pragma omp critical
  {
    r->failed |= !data;
    if (data && !r->repeats) calibrate(r, data);
  }
  for (int pass = 0; pass < PASSES; pass++) {
#pragma omp barrier
    bool wrong = false;
    const double rate = data ? (double)r->bytes * (double)r->repeats / time_repeats(r, data, &wrong) * 1e9 : 0.0;
#pragma omp critical
    {
      r->rate[pass] += rate;
      r->failed |= wrong;
    }
  }
  attn_aligned_free(data);
}

/* 0 if memory is short. */
static double bandwidth_of(int order, size_t bytes, int threads) {
  reading r = {.loop = bench_widest_read(), .order = order};
  r.bytes = (bytes ? (bytes + 2 * LINE - 1) / (2 * LINE) : 1) * 2 * LINE;
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads))
  read_own_buffer(&r);
  return r.failed ? 0 : bench_median(r.rate, PASSES);
}

double bench_read_bandwidth(size_t bytes, int threads) {
  double best = 0;
  for (int order = ONE_BY_ONE; order < BENCH_READ_ORDERS; order++) {
    const double rate = bandwidth_of(order, bytes, threads);
    if (!(rate > 0)) return 0;
    best = fmax(best, rate);
  }
  return best;
}

double bench_copy_bandwidth(size_t bytes, int threads) { return bandwidth_of(COPIED, bytes, threads); }
