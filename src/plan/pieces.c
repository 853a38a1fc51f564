/* SPDX-License-Identifier: MIT */
/* Plans of two pieces: first keys and a window, or a prefix that sequences share and their own keys. The prefix is read once
 * for the queries of all sequences, or of as many as the kernel takes at once. Each piece is a plan of its own, whose rows
 * of O in float32 and LSE stand in the workspace; those of the later keys in the caller's o, where that is float32. A joined
 * row is
 *
 *     lse = log sum_n exp(lse_n),   o = sum_n exp(lse_n - lse) o_n,   with a sink in the denominator of o alone.
 *
 * Weights are at most 1, so that o is finite where its parts are. A row that is not finite is computed in double precision
 * from the whole problem. */
#include "src/plan/pieces.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/pieces.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/choice/dispatch.h"
#include "src/choice/paying_threads.h"
#include "src/plan/plan.h"

struct attn_pieces {
  attn_problem problem;
  attn_plan *early, *later;
  int64_t sequences;                           /* sequences that meet the prefix at once; 0 = no prefix */
  bool gathers;                                /* their queries, to dense rows */
  int64_t rows;                                /* rows of a head in the workspace: its own, and room for a run behind them */
  attn_options options;                        /* for joining rows */
  int join_threads;                            /* threads that pay there */
  int64_t o, lse, later_o, later_lse, q, work; /* offsets in the workspace, in bytes */
  int64_t bytes;
};

bool attn_pieces_needed(const attn_problem *problem) { return attn_has_pieces(problem); }

/* ---- Rows in the workspace: [heads_q][rows], those of all sequences side by side ---- */

static void set_strides(const attn_pieces *pieces, attn_problem *piece, bool o) {
  const int64_t rows = pieces->rows, dim_v = piece->dim_v;
  if (o) piece->o_stride = (attn_strides){piece->seq_q * dim_v, rows * dim_v, dim_v, 1};
  piece->lse_stride = (attn_strides){piece->seq_q, rows, 1, 1};
}

/* Whether rows of the later keys can stand in o. */
static bool in_place(const attn_problem *p) { return p->dtype_o == ATTN_F32; }

static bool lay_out_pieces(attn_pieces *pieces) {
  const attn_problem *p = &pieces->problem;
  const int64_t rows = p->heads_q * pieces->rows, row_bytes = float_bytes(p->dim_v);
  const int64_t gathered = pieces->gathers ? p->heads_q * pieces->sequences * p->seq_q : 0;
  const size_t early = attn_plan_workspace(pieces->early), later = attn_plan_workspace(pieces->later);
  const memory_part parts[] = {{&pieces->o, rows, row_bytes},
                               {&pieces->lse, rows, float_bytes(1)},
                               {&pieces->later_o, in_place(p) ? 0 : rows, row_bytes},
                               {&pieces->later_lse, rows, float_bytes(1)},
                               {&pieces->q, gathered, attn_elements_bytes(p->dtype_q, p->dim_qk)},
                               {&pieces->work, 1, (int64_t)(early > later ? early : later)}};
  return LAY_OUT(parts, &pieces->bytes);
}

/* ---- The prefix: rows of several sequences as one ---- */

/* Rows of a run: with more, keys that are read once for each run no longer count. */
enum { MOST_PREFIX_ROWS = 8192 };

/* Whether rows of all sequences lie in q at one stride. */
static bool rows_follow(const attn_problem *p) {
  return attn_uses(p, ATTN_USE_VARLEN) || p->seq_q == 1 || p->q_stride.b == p->seq_q * p->q_stride.s;
}

static attn_problem prefix_of(const attn_pieces *pieces, int64_t sequences) {
  attn_problem prefix = attn_prefix_keys(&pieces->problem, sequences);
  if (!pieces->gathers) return prefix;
  const int64_t dim = prefix.dim_qk;
  prefix.q_stride = (attn_strides){0, prefix.seq_q * dim, dim, 1};
  return prefix;
}

/* The most sequences that the kernel takes at once; one, where a row's bits depend on the rows beside it. */
static int64_t sequences_at_once(const attn_pieces *pieces, const attn_choice *choice) {
  const attn_problem *p = &pieces->problem;
  if (choice->kernel->info.library[0]) return 1;
  int64_t sequences = max64(min64(p->batch, MOST_PREFIX_ROWS / max64(p->seq_q, 1)), 1);
  for (; sequences > 1; sequences = (sequences + 1) / 2) {
    const attn_problem prefix = prefix_of(pieces, sequences);
    if (!attn_refusal(choice->kernel, &prefix, choice->cap)) break;
  }
  return sequences;
}

/* The kernel of the prefix. A row's bits must not depend on how many sequences there are: chosen as for SHARING_SEQUENCES.
 */
static attn_status choose_for_prefix(const attn_pieces *pieces, const attn_choice *whole, const attn_options *options,
                                     attn_choice *choice) {
  enum { SHARING_SEQUENCES = 32 };
  *choice = *whole;
  if (whole->cause == ATTN_CAUSE_NAMED || whole->cause == ATTN_CAUSE_GIVEN) return ATTN_OK;
  attn_problem usual = pieces->problem;
  usual.uses &= ~(uint32_t)ATTN_USE_VARLEN;
  usual = attn_prefix_keys(&usual, SHARING_SEQUENCES);
  return attn_dispatch(&usual, options, choice);
}

static attn_status plan_prefix(attn_pieces *pieces, const attn_choice *whole, const attn_options *options) {
  attn_choice choice;
  pieces->gathers = !rows_follow(&pieces->problem);
  const attn_status status = choose_for_prefix(pieces, whole, options, &choice);
  if (status != ATTN_OK) return status;
  pieces->sequences = sequences_at_once(pieces, &choice);
  attn_problem prefix = prefix_of(pieces, pieces->sequences);
  pieces->rows += prefix.seq_q; /* a run of fewer rows writes zeros to the others, which later runs overwrite */
  set_strides(pieces, &prefix, true);
  return attn_plan_create_chosen(&prefix, &choice, options, &pieces->early);
}

/* ---- Creating ---- */

static attn_status plan_early(attn_pieces *pieces, const attn_choice *choice, const attn_options *options) {
  if (attn_shares_prefix(&pieces->problem)) return plan_prefix(pieces, choice, options);
  attn_problem early = attn_early_keys(&pieces->problem);
  set_strides(pieces, &early, true);
  return attn_plan_create_chosen(&early, choice, options, &pieces->early);
}

/* Joining writes a row of o from two others, as attention to one key does from a row of q and one of v. */
static int threads_to_join(const attn_pieces *pieces, const attn_choice *choice) {
  const attn_problem *p = &pieces->problem;
  const int threads = pieces->options.threads;
  attn_problem rows;
  if (threads == 1) return 1;
  attn_problem_init(&rows, 1, p->heads_q, p->heads_q, attn_all_rows(p), 1, p->dim_v, p->dim_v);
  return attn_paying_threads(choice->tuning, choice->kernel, &rows, 1, threads);
}

static attn_status make(attn_pieces *pieces, const attn_choice *choice, const attn_options *options) {
  attn_problem later = attn_later_keys(&pieces->problem);
  pieces->rows = attn_all_rows(&pieces->problem);
  attn_status status = attn_parallel_resolve(options, &pieces->options);
  if (status == ATTN_OK) status = plan_early(pieces, choice, options);
  set_strides(pieces, &later, !in_place(&pieces->problem));
  if (status == ATTN_OK) status = attn_plan_create_chosen(&later, choice, options, &pieces->later);
  if (status != ATTN_OK) return status;
  if (!lay_out_pieces(pieces))
    return attn_fail(ATTN_UNSUPPORTED, "the workspace of two pieces exceeds the address space; take a smaller seq_q");
  pieces->options.threads = (int)max64(attn_plan_threads(pieces->early), attn_plan_threads(pieces->later));
  pieces->join_threads = threads_to_join(pieces, choice);
  return ATTN_OK;
}

attn_status attn_pieces_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                               attn_pieces **result) {
  attn_pieces *pieces = calloc(1, sizeof *pieces);
  if (!pieces) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_plan needs %zu bytes", sizeof *pieces);
  pieces->problem = *problem;
  const attn_status status = make(pieces, choice, options);
  if (status == ATTN_OK)
    *result = pieces;
  else
    attn_pieces_destroy(pieces);
  return status;
}

void attn_pieces_destroy(attn_pieces *pieces) {
  attn_plan_destroy(pieces->early);
  attn_plan_destroy(pieces->later);
  free(pieces);
}

size_t attn_pieces_workspace(const attn_pieces *pieces) { return (size_t)pieces->bytes; }

int attn_pieces_threads(const attn_pieces *pieces) { return pieces->options.threads; }

void attn_pieces_describe(const attn_pieces *pieces, char *text, size_t bytes) {
  const attn_problem *p = &pieces->problem;
  char early[120];
  if (pieces->sequences)
    snprintf(early, sizeof early, "%" PRId64 " keys that sequences share, for %" PRId64 " of them at once", p->shared_prefix,
             pieces->sequences);
  else
    snprintf(early, sizeof early, "%" PRId64 " first keys beside a window", p->window_first);
  snprintf(text, bytes, "pieces     %s; then the others. Workspace: %zu bytes\n---- early keys\n%s---- later keys\n%s",
           early, attn_pieces_workspace(pieces), attn_plan_describe(pieces->early), attn_plan_describe(pieces->later));
}

/* ---- Joining rows ---- */

/* A row of one piece. */
typedef struct part {
  const float *o;
  int64_t stride; /* stride of o, in elements */
  float lse;
} part;

typedef struct joining {
  const attn_pieces *pieces;
  const attn_args *args;
  const float *o, *lse, *later_o, *later_lse;
} joining;

/* The place of a row in the workspace. */
static int64_t row_at(const attn_pieces *pieces, const attn_sequence *seq, int64_t h, int64_t i) {
  const attn_problem *p = &pieces->problem;
  const int64_t before = attn_uses(p, ATTN_USE_VARLEN) ? seq->first_q : seq->b * p->seq_q;
  return h * pieces->rows + before + i;
}

/* Weights of two parts, and the LSE of both. */
typedef struct part_weights {
  double early, later, lse;
} part_weights;

static double weight_of(double lse, double largest) { return lse == -INFINITY ? 0 : exp(lse - largest); }

/* The LSE is relative to the parts alone: a sink far above them would leave it denormal numbers. */
static part_weights weigh(double early, double later, double sink) {
  const double most = fmax(early, later), largest = fmax(most, sink);
  const double a = weight_of(early, largest), b = weight_of(later, largest), all = a + b + weight_of(sink, largest);
  return (part_weights){.early = a / all,
                        .later = b / all,
                        .lse = most == -INFINITY ? most : most + log(weight_of(early, most) + weight_of(later, most))};
}

/* False if the row is not finite. */
static bool join_row(const joining *j, const attn_sequence *seq, int64_t h, int64_t i) {
  const attn_problem *p = &j->pieces->problem;
  const int64_t row = row_at(j->pieces, seq, h, i), o_at = attn_o_offset(p, seq, seq->b, h, i);
  const float *early = j->o + row * p->dim_v, *later = j->later_o + (in_place(p) ? o_at : row * p->dim_v);
  const int64_t stride = in_place(p) ? p->o_stride.d : 1;
  const double sink = attn_uses(p, ATTN_USE_SINKS) ? (double)j->args->sinks[h] : -INFINITY;
  const bool there = i < seq->len_q; /* the prefix computes rows beyond q_len, too */
  const double lse[] = {there ? (double)j->lse[row] : -INFINITY, (double)j->later_lse[row]};
  const part_weights weights = weigh(lse[0], lse[1], sink);
  const bool none = lse[0] == -INFINITY && lse[1] == -INFINITY; /* o of both is 0, or NaN */
  const float a = none ? there : (float)weights.early, b = none ? 1 : (float)weights.later;
  bool finite = none || isfinite(weights.lse);
  for (int64_t d = 0; d < p->dim_v; d++) {
    const float x = (there ? a * early[d] : 0) + b * later[d * stride]; /* a NaN counts at any weight */
    finite &= fabsf(x) < INFINITY;
    attn_store_f32(j->args->o, p->dtype_o, o_at + d * p->o_stride.d, x);
  }
  if (attn_uses(p, ATTN_USE_LSE)) j->args->lse[attn_lse_offset(p, seq, seq->b, h, i)] = (float)weights.lse;
  return finite;
}

/* Not inlined: the compiler must not move arithmetic out of the default floating-point mode. */
static NO_INLINE void join_head(const joining *j, int64_t b, int64_t h) {
  const attn_problem *p = &j->pieces->problem;
  const attn_sequence seq = attn_sequence_of(p, j->args, b);
  for (int64_t i = 0; i < attn_rows(p, &seq); i++)
    if (!join_row(j, &seq, h, i)) attn_exact_row(p, j->args, b, h, i);
}

static void join_task(void *pointer, int64_t index, int worker) {
  const joining *j = pointer;
  const int64_t heads = j->pieces->problem.heads_q;
  (void)worker;
  const uint64_t mode = attn_float_mode_enter();
  join_head(j, index / heads, index % heads);
  attn_float_mode_leave(mode);
}

/* ---- Running ---- */

static void run_piece(const attn_plan *plan, const attn_args *args, float *o, float *lse, void *workspace) {
  attn_args own = *args;
  own.o = o;
  own.lse = lse;
  attn_plan_run_read(plan, &own, workspace);
}

static void copy_row(const attn_problem *p, const char *from, char *to) {
  const int64_t step = p->q_stride.d, all = p->q_stride.d == 1 ? p->dim_qk : 1;
  for (int64_t d = 0; d < p->dim_qk; d += all)
    memcpy(to + attn_elements_bytes(p->dtype_q, d), attn_element_at(from, p->dtype_q, d * step),
           (size_t)attn_elements_bytes(p->dtype_q, all));
}

/* The queries of sequences `first` to `end` - 1 as [heads_q][sequences][seq_q][dim_qk]. */
static void gather(const attn_pieces *pieces, const attn_args *args, int64_t first, int64_t end, char *to) {
  const attn_problem *p = &pieces->problem;
  const int64_t row_bytes = attn_elements_bytes(p->dtype_q, p->dim_qk);
  for (int64_t h = 0; h < p->heads_q; h++)
    for (int64_t b = first; b < end; b++) {
      const attn_sequence seq = attn_sequence_of(p, args, b);
      char *rows = to + (h * pieces->sequences + (b - first)) * p->seq_q * row_bytes;
      memset(rows + seq.len_q * row_bytes, 0, (size_t)((p->seq_q - seq.len_q) * row_bytes));
      for (int64_t i = 0; i < seq.len_q; i++)
        copy_row(p, attn_element_at(args->q, p->dtype_q, attn_q_offset(p, &seq, b, h, i)), rows + i * row_bytes);
    }
}

/* The prefix for sequences `first` to `end` - 1, from the pages or rows of sequence `of`. */
static void run_sequences(const attn_pieces *pieces, const attn_args *args, int64_t of, int64_t first, int64_t end,
                          char *workspace) {
  const attn_problem *p = &pieces->problem;
  const attn_sequence owner = attn_sequence_of(p, args, of), seq = attn_sequence_of(p, args, first);
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t rows = varlen ? args->cu_seqlens_q[end] - args->cu_seqlens_q[first] : (end - first) * p->seq_q;
  const int64_t row = row_at(pieces, &seq, 0, 0);
  const int32_t q_len = (int32_t)rows, kv_len = (int32_t)p->shared_prefix;
  if (rows == 0) return;
  attn_args own = {.struct_size = sizeof own,
                   .k = args->k,
                   .v = args->v,
                   .score_weight = args->score_weight,
                   .q_len = &q_len,
                   .k_scale = args->k_scale,
                   .v_scale = args->v_scale};
  if (paged) {
    own.kv_len = &kv_len;
    own.page_table = args->page_table + of * p->page_table_stride;
  } else {
    const attn_key_run run = attn_key_run_at(p, args, &owner, 0, 0);
    own.k = attn_element_at(args->k, p->dtype_kv, run.k);
    own.v = attn_element_at(args->v, p->dtype_kv, run.v);
    if (attn_uses(p, ATTN_USE_KV_SCALES)) {
      const attn_key_scales scales = attn_key_scales_at(p, args, &owner, 0, 0);
      own.k_scale = args->k_scale ? scales.k : NULL;
      own.v_scale = scales.v;
    }
  }
  own.q = attn_element_at(args->q, p->dtype_q, attn_q_offset(p, &seq, first, 0, 0));
  if (pieces->gathers) {
    gather(pieces, args, first, end, workspace + pieces->q);
    own.q = workspace + pieces->q;
  }
  own.o = floats_at(workspace, pieces->o) + row * p->dim_v;
  own.lse = floats_at(workspace, pieces->lse) + row;
  attn_plan_run_read(pieces->early, &own, workspace + pieces->work);
}

static void run_prefix(const attn_pieces *pieces, const attn_args *args, char *workspace) {
  const attn_problem *p = &pieces->problem;
  int64_t of = 0;
  while (of < p->batch && attn_sequence_of(p, args, of).len_q == 0) of++;
  for (int64_t first = 0; of < p->batch && first < p->batch; first += pieces->sequences)
    run_sequences(pieces, args, of, first, min64(first + pieces->sequences, p->batch), workspace);
}

void attn_pieces_run(const attn_pieces *pieces, const attn_args *args, void *workspace) {
  const attn_problem *p = &pieces->problem;
  if (attn_all_rows(p) == 0) return;
  float *o = floats_at(workspace, pieces->o), *lse = floats_at(workspace, pieces->lse);
  float *later_o = in_place(p) ? args->o : floats_at(workspace, pieces->later_o);
  float *later_lse = floats_at(workspace, pieces->later_lse);
  if (pieces->sequences)
    run_prefix(pieces, args, workspace);
  else
    run_piece(pieces->early, args, o, lse, (char *)workspace + pieces->work);
  run_piece(pieces->later, args, later_o, later_lse, (char *)workspace + pieces->work);
  joining j = {.pieces = pieces, .args = args, .o = o, .lse = lse, .later_o = later_o, .later_lse = later_lse};
  attn_options options = pieces->options;
  options.threads = pieces->join_threads;
  attn_parallel_run(&options, p->batch * p->heads_q, join_task, &j);
}
