/* SPDX-License-Identifier: MIT */
/* Plans for factors of channels. With c the factor of channel d of K, and f that of V,
 *
 *     q . (c k) = (q c) . k,   sum_j p_j (f v_j) = f sum_j p_j v_j
 *
 * so the queries take the factors of K before, in float32 rows in the workspace, and O takes those of V afterwards: kernels
 * meet none, and each score and each output rounds once more. A row of q c or of O that is not finite is computed in double
 * precision from the whole problem, but for rows of a state, which goes on from earlier keys. */
#include "src/plan/channels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/pieces.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/choice/paying_threads.h"
#include "src/plan/plan.h"

struct attn_channels {
  attn_problem problem;
  attn_plan *plan;
  attn_options options;          /* for rows of q and o */
  int64_t q, o, overflows, work; /* offsets in the workspace, in bytes */
  int64_t bytes;
};

/* ---- Creating ---- */

static bool lay_out_channels(attn_channels *c) {
  const attn_problem *p = &c->problem;
  const int64_t rows = p->heads_q * attn_all_rows(p);
  const memory_part parts[] = {{&c->q, attn_k_channel_step(p) ? rows : 0, float_bytes(p->dim_qk)},
                               {&c->o, p->dtype_o == ATTN_F32 ? 0 : rows, float_bytes(p->dim_v)},
                               {&c->overflows, p->batch * p->heads_q, sizeof(bool)},
                               {&c->work, 1, (int64_t)attn_plan_workspace(c->plan)}};
  return LAY_OUT(parts, &c->bytes);
}

/* A row of q times factors takes what attention to one key of as many elements does. */
static int threads_of_rows(const attn_channels *c, const attn_choice *choice) {
  const attn_problem *p = &c->problem;
  const int threads = attn_plan_threads(c->plan);
  attn_problem rows;
  if (threads == 1) return 1;
  attn_problem_init(&rows, 1, p->heads_q, p->heads_q, attn_all_rows(p), 1, p->dim_qk, p->dim_v);
  return attn_paying_threads(choice->tuning, choice->kernel, &rows, 1, threads);
}

static attn_status make(attn_channels *c, const attn_choice *choice, const attn_options *options) {
  const attn_problem inner = attn_without_channel_factors(&c->problem);
  attn_status status = attn_parallel_resolve(options, &c->options);
  if (status == ATTN_OK) status = attn_plan_create_chosen(&inner, choice, options, &c->plan);
  if (status != ATTN_OK) return status;
  if (!lay_out_channels(c))
    return attn_fail(ATTN_UNSUPPORTED,
                     "the workspace of factors of channels exceeds the address space; take a smaller seq_q");
  c->options.threads = threads_of_rows(c, choice);
  return ATTN_OK;
}

attn_status attn_channels_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                                 attn_channels **result) {
  attn_channels *c = calloc(1, sizeof *c);
  if (!c) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_plan needs %zu bytes", sizeof *c);
  c->problem = *problem;
  const attn_status status = make(c, choice, options);
  if (status == ATTN_OK)
    *result = c;
  else
    attn_channels_destroy(c);
  return status;
}

void attn_channels_destroy(attn_channels *c) {
  attn_plan_destroy(c->plan);
  free(c);
}

size_t attn_channels_workspace(const attn_channels *c) { return (size_t)c->bytes; }

const attn_plan *attn_channels_plan(const attn_channels *c) { return c->plan; }

void attn_channels_describe(const attn_channels *c, char *text, size_t bytes) {
  const bool of_k = attn_k_channel_step(&c->problem) != 0, of_v = attn_v_channel_step(&c->problem) != 0;
  snprintf(text, bytes, "channels   factors of %s, which %s. Workspace: %zu bytes\n%s",
           of_k && of_v ? "K and V"
           : of_k       ? "K"
                        : "V",
           of_k && of_v ? "q and o take"
           : of_k       ? "q takes"
                        : "o takes",
           attn_channels_workspace(c), attn_plan_describe(c->plan));
}

/* ---- Rows ---- */

/* A run: the caller's arguments, and those of the plan. */
typedef struct channel_run {
  const attn_channels *channels;
  const attn_args *args;
  attn_args own;
  attn_problem inner;
  bool *overflows; /* [batch][heads_q]: some product of a query and a factor is not finite */
} channel_run;

/* Factors of a head, `step` apart. They are the same for all keys, also in pages. */
typedef struct channel_factors {
  const float *at;
  int64_t step;
} channel_factors;

static channel_factors factors_of(const attn_problem *p, const float *factors, const attn_strides *stride, int64_t b,
                                  int64_t h) {
  const int64_t head = attn_kv_head(p, h);
  return (channel_factors){factors + attn_row_offset(p, stride, b, head, 0), stride->d};
}

/* to = x f, for elements of one type; whether all are finite. */
static ALWAYS_INLINE bool multiply(attn_storage x, int64_t at, int64_t step, channel_factors f, int64_t count, float *to) {
  int infinite = 0;
  for (int64_t d = 0; d < count; d++) {
    to[d] = attn_load_f32(x, at + d * step) * f.at[d * f.step];
    infinite |= !(fabsf(to[d]) < INFINITY);
  }
  return !infinite;
}

/* The usual strides are loops of their own, which the compiler turns into vectors. */
static bool scale_query(const attn_problem *p, const attn_args *args, int64_t at, channel_factors f, float *to) {
  const int64_t step = p->q_stride.d, dim = p->dim_qk;
  const channel_factors dense = {f.at, 1};
  if (step == 1 && f.step == 1 && p->dtype_q == ATTN_F32)
    return multiply((attn_storage){args->q, ATTN_F32}, at, 1, dense, dim, to);
  if (step == 1 && f.step == 1 && p->dtype_q == ATTN_BF16)
    return multiply((attn_storage){args->q, ATTN_BF16}, at, 1, dense, dim, to);
  return multiply(attn_q_storage(p, args), at, step, f, dim, to);
}

static float *query_at(const channel_run *r, const attn_sequence *seq, int64_t h, int64_t i) {
  return (float *)(uintptr_t)r->own.q + attn_q_offset(&r->inner, seq, seq->b, h, i);
}

/* Rows that are not computed become 0: a kernel may read them beside others. Not inlined, as finish_head(): the compiler
 * must not move arithmetic out of the default floating-point mode. */
static NO_INLINE void scale_head(const channel_run *r, int64_t b, int64_t h) {
  const attn_problem *p = &r->channels->problem;
  const attn_sequence seq = attn_sequence_of(p, r->args, b);
  const bool keys = r->args->k_scale && seq.len_k > 0;
  const channel_factors f = keys ? factors_of(p, r->args->k_scale, &p->k_scale_stride, b, h) : (channel_factors){0};
  bool finite = true;
  for (int64_t i = 0; i < attn_rows(p, &seq); i++) {
    float *to = query_at(r, &seq, h, i);
    if (i < seq.len_q && keys)
      finite &= scale_query(p, r->args, attn_q_offset(p, &seq, b, h, i), f, to);
    else
      memset(to, 0, (size_t)p->dim_qk * sizeof *to);
  }
  r->overflows[b * p->heads_q + h] = !finite;
}

/* Stores o; whether it is finite. Adding 0 makes the 0 of a row without keys positive. */
static bool finish_output(const channel_run *r, const attn_sequence *seq, int64_t h, int64_t i) {
  const attn_problem *p = &r->channels->problem;
  static const float one = 1;
  const bool scaled = attn_v_channel_step(p) && r->args->v_scale && seq->len_k > 0;
  const channel_factors f =
      scaled ? factors_of(p, r->args->v_scale, &p->v_scale_stride, seq->b, h) : (channel_factors){&one, 0};
  const float *from = (const float *)r->own.o + attn_o_offset(&r->inner, seq, seq->b, h, i);
  const int64_t from_step = r->inner.o_stride.d, to_step = p->o_stride.d, to = attn_o_offset(p, seq, seq->b, h, i);
  bool finite = true;
  for (int64_t d = 0; d < p->dim_v; d++) {
    const float x = from[d * from_step] * f.at[d * f.step] + 0.0f;
    finite &= fabsf(x) < INFINITY;
    attn_store_f32(r->args->o, p->dtype_o, to + d * to_step, x);
  }
  return finite;
}

static bool query_is_finite(const channel_run *r, const attn_sequence *seq, int64_t h, int64_t i) {
  const float *q = query_at(r, seq, h, i);
  bool finite = true;
  for (int64_t d = 0; d < r->inner.dim_qk; d++) finite &= fabsf(q[d]) < INFINITY;
  return finite;
}

static NO_INLINE void finish_head(const channel_run *r, int64_t b, int64_t h) {
  const attn_problem *p = &r->channels->problem;
  const attn_sequence seq = attn_sequence_of(p, r->args, b);
  const bool scales = r->own.o != r->args->o || attn_v_channel_step(p), state = attn_uses(p, ATTN_USE_STATE);
  const bool overflows = attn_k_channel_step(p) && r->overflows[b * p->heads_q + h] && !state;
  for (int64_t i = 0; i < attn_rows(p, &seq); i++) {
    bool finite = !scales || finish_output(r, &seq, h, i);
    if (overflows && i < seq.len_q) finite &= query_is_finite(r, &seq, h, i);
    if (!finite && !state) attn_exact_row(p, r->args, b, h, i);
  }
}

typedef struct head_loop {
  const channel_run *run;
  void (*body)(const channel_run *r, int64_t b, int64_t h);
} head_loop;

static void head_task(void *pointer, int64_t index, int worker) {
  const head_loop *l = pointer;
  const int64_t heads = l->run->inner.heads_q;
  (void)worker;
  const uint64_t mode = attn_float_mode_enter();
  l->body(l->run, index / heads, index % heads);
  attn_float_mode_leave(mode);
}

static void each_head(const channel_run *r, void (*body)(const channel_run *r, int64_t b, int64_t h)) {
  head_loop loop = {r, body};
  attn_parallel_run(&r->channels->options, r->inner.batch * r->inner.heads_q, head_task, &loop);
}

/* Whether anything is left to do once the kernel has run. */
static bool needs_finish(const channel_run *r) {
  const attn_problem *p = &r->channels->problem;
  if (!r->args->o) return false;
  if (r->own.o != r->args->o || attn_v_channel_step(p)) return true;
  for (int64_t n = 0; n < p->batch * p->heads_q; n++)
    if (r->overflows[n]) return true;
  return false;
}

/* ---- Running ---- */

void attn_channels_run(const attn_channels *c, const attn_args *args, void *workspace) {
  static const float one = 1;
  const attn_problem *p = &c->problem;
  const bool of_k = attn_k_channel_step(p) != 0, of_v = attn_v_channel_step(p) != 0;
  channel_run r = {.channels = c, .args = args, .own = *args, .inner = attn_without_channel_factors(p)};
  if (attn_all_rows(p) == 0) return;
  const bool scaled = attn_uses(&r.inner, ATTN_USE_KV_SCALES);
  r.overflows = (bool *)workspace + c->overflows;
  if (of_k) r.own.q = floats_at(workspace, c->q);
  if (of_k || !scaled) r.own.k_scale = scaled ? &one : NULL;
  if (of_v) r.own.v_scale = scaled ? &one : NULL;
  if (p->dtype_o != ATTN_F32 && args->o) r.own.o = floats_at(workspace, c->o);
  if (of_k) each_head(&r, scale_head);
  attn_plan_run_read(c->plan, &r.own, (char *)workspace + c->work);
  if (needs_finish(&r)) each_head(&r, finish_head);
}
