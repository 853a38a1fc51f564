/* SPDX-License-Identifier: MIT */
/* Plans of libattn_mpi: what is checked and chosen before the data is there. Ranks agree on each step: where one fails, all
 * do. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "src/api/error.h"
#include "src/api/layouts.h"

static const attn_struct_layout shard_layout = ATTN_LAYOUT(attn_mpi_shard, layout);
static const attn_struct_layout mpi_options_layout = ATTN_LAYOUT(attn_mpi_options, compute);
static const attn_struct_layout network_layout = ATTN_LAYOUT(attn_mpi_network, bytes_per_s);

enum { LEAST_PIECE_KEYS = 1024, MOST_PIECE_KEYS = 4096, BLOCK_ROWS = 1024, LEAST_ROWS = 16, TIMEOUT_S = 600 };

const mpi_mode *mpi_mode_of(const attn_mpi_plan *plan, attn_mpi_mode mode) {
  static const mpi_mode *const modes[ATTN_MPI_SPLIT + 1] = {
      [ATTN_MPI_PASS_KV] = &mpi_pass_kv,
      [ATTN_MPI_PASS_Q] = &mpi_pass_q,
      [ATTN_MPI_EXCHANGE] = &mpi_exchange,
      [ATTN_MPI_SPLIT] = &mpi_split,
  };
  return finds_gradients(plan) && mode == ATTN_MPI_PASS_KV ? &mpi_backward : modes[mode];
}

/* ---- Zigzag ---- */

int attn_mpi_zigzag(int64_t tokens, int64_t border, int rank, int ranks, attn_mpi_range ranges[2]) {
  const int64_t units = ceil_div(max64(tokens, 0), max64(border, 1)), chunks = 2 * (int64_t)ranks;
  const int64_t chunk[] = {rank, chunks - 1 - rank};
  int count = 0;
  for (int i = 0; i < 2; i++) {
    const int64_t begin = min64(units * chunk[i] / chunks * border, tokens);
    const int64_t end = min64(units * (chunk[i] + 1) / chunks * border, tokens);
    if (begin == end) continue;
    if (count > 0 && ranges[count - 1].end == begin)
      ranges[count - 1].end = end;
    else
      ranges[count++] = (attn_mpi_range){begin, end};
  }
  return count;
}

/* ---- Agreement ---- */

attn_status mpi_agree(attn_mpi_plan *plan, attn_status own) {
  struct {
    int code, rank;
  } mine = {(int)own, plan->rank}, worst = mine;
  char sentence[1000] = "";
  MPI_Request request;
  MPI_TRY(plan, MPI_Iallreduce, &mine, &worst, 1, MPI_2INT, MPI_MAXLOC, plan->comm, &request);
  attn_status status = mpi_wait_one(plan, &request);
  if (status != ATTN_OK || worst.code == ATTN_OK) return status;
  if (plan->rank == worst.rank) snprintf(sentence, sizeof sentence, "%s", attn_last_error());
  MPI_TRY(plan, MPI_Ibcast, sentence, sizeof sentence, MPI_CHAR, worst.rank, plan->comm, &request);
  status = mpi_wait_one(plan, &request);
  return status == ATTN_OK ? attn_fail((attn_status)worst.code, "rank %d: %s", worst.rank, sentence) : status;
}

attn_status mpi_agree_on_problem(attn_mpi_plan *plan, const attn_mpi_options *o) {
  const attn_problem *p = &plan->whole;
  uint32_t scale, softcap;
  memcpy(&scale, &p->scale, sizeof scale);
  memcpy(&softcap, &p->softcap, sizeof softcap);
  int64_t kernel = 0;
  for (const char *c = plan->compute.kernel; c && *c; c++) kernel = (kernel * 131 + *c) % 1000000007;
  const int64_t mine[] = {p->batch,        p->heads_q,    p->heads_kv,   p->seq_q,    p->seq_k,
                          p->dim_qk,       p->dim_v,      p->dtype_q,    p->dtype_kv, p->dtype_o,
                          p->score,        scale,         softcap,       p->align,    p->window_left,
                          p->window_right, p->uses,       p->total_q,    p->total_k,  plan->own.page_tokens,
                          o->mode,         o->piece_keys, o->block_rows, kernel,      o->group_ranks};
  enum { NUMBERS = sizeof mine / sizeof *mine };
  int64_t both[2 * NUMBERS], most[2 * NUMBERS];
  for (int i = 0; i < NUMBERS; i++) both[i] = mine[i], both[NUMBERS + i] = -mine[i];
  MPI_Request request;
  MPI_TRY(plan, MPI_Iallreduce, both, most, 2 * NUMBERS, MPI_INT64_T, MPI_MAX, plan->comm, &request);
  const attn_status status = mpi_wait_one(plan, &request);
  if (status != ATTN_OK) return status;
  static const char *const names[] = {
      "batch",   "heads_q",     "heads_kv", "seq_q",      "seq_k",      "dim_qk",      "dim_v",        "dtype_q", "dtype_kv",
      "dtype_o", "score",       "scale",    "softcap",    "align",      "window_left", "window_right", "uses",    "total_q",
      "total_k", "page_tokens", "mode",     "piece_keys", "block_rows", "kernel",      "group_ranks"};
  _Static_assert(sizeof names / sizeof *names == NUMBERS, "a name for each");
  for (int i = 0; i < NUMBERS; i++)
    if (most[i] != -most[NUMBERS + i])
      return attn_fail(ATTN_INVALID_ARGUMENT, "%s is not the same on all ranks; it must be", names[i]);
  return ATTN_OK;
}

/* ---- Checks ---- */

static attn_status refuse_problem(const attn_problem *p) {
  static const struct {
    uint32_t use;
    const char *words;
  } uses[] = {{ATTN_USE_STATE, "a state"}, {ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS, "lists of key blocks"}};
  for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
    if (attn_uses(p, uses[i].use))
      return attn_fail(ATTN_UNSUPPORTED, "attention over ranks takes no problems with %s", uses[i].words);
  const char *field = p->window_first    ? "window_first"
                      : p->key_begin     ? "key_begin"
                      : p->key_end       ? "key_end"
                      : p->shared_prefix ? "shared_prefix"
                      : p->mask_keys     ? "mask_keys"
                      : p->dropout > 0   ? "dropout"
                                         : NULL;
  if (field) return attn_fail(ATTN_UNSUPPORTED, "attention over ranks takes no problems with attn_problem.%s", field);
  if (attn_uses(p, ATTN_USE_VARLEN) && (attn_uses(p, ATTN_USE_BIAS | ATTN_USE_MASK) || p->score == ATTN_SCORE_PRECOMPUTED))
    return attn_fail(ATTN_UNSUPPORTED, "attention over ranks takes no packed sequences with bias, mask or given scores");
  const uint32_t gradients = ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT;
  if (p->operation == ATTN_BACKWARD && (attn_uses(p, gradients | ATTN_USE_ACCUMULATE) || p->score == ATTN_SCORE_PRECOMPUTED))
    return attn_fail(ATTN_UNSUPPORTED, "gradients over ranks are those of q, k and v alone, and are not added to others");
  return ATTN_OK;
}

attn_status mpi_read_problem(attn_mpi_plan *plan, const attn_problem *whole, const attn_options *compute,
                             const attn_mpi_network *network) {
  REQUIRE(whole, "whole is NULL; it must point to an attn_problem");
  attn_status status = attn_struct_read(&attn_problem_layout, whole, &plan->whole);
  if (status == ATTN_OK) status = attn_options_read(compute, &plan->compute);
  if (status == ATTN_OK && network) status = attn_struct_read(&network_layout, network, &plan->network);
  if (status == ATTN_OK) status = refuse_problem(&plan->whole);
  plan->own = plan->whole;
  return status;
}

static int64_t tokens_of(const attn_mpi_range *ranges, int64_t count) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < count; i++) tokens += ranges[i].end - ranges[i].begin;
  return tokens;
}

/* The problem of this rank's tensors. */
static attn_status read_layout(attn_mpi_plan *plan, const attn_mpi_shard *shard) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t rows = tokens_of(shard->q, shard->q_count), keys = tokens_of(shard->k, shard->k_count);
  attn_problem layout, *own = &plan->own;
  plan->own_rows = rows;
  plan->own_keys = keys;
  if (shard->layout) {
    const attn_status status = attn_struct_read(&attn_problem_layout, shard->layout, &layout);
    if (status != ATTN_OK) return status;
  } else {
    attn_problem_init(&layout, p->batch, p->heads_q, p->heads_kv, rows, keys, p->dim_qk, p->dim_v);
    layout.dtype_kv = p->dtype_kv;
    if (varlen) attn_problem_set_varlen(&layout, rows, keys);
    if (paged) attn_problem_set_pages(&layout, p->page_tokens, p->batch * ceil_div(keys, max64(p->page_tokens, 1)));
    if (attn_dtype_of(p->dtype_kv).values > 1 && !varlen && !paged) {
      const int64_t k = attn_row_elements(p->dtype_kv, p->dim_qk), v = attn_row_elements(p->dtype_kv, p->dim_v);
      layout.k_stride = (attn_strides){p->heads_kv * keys * k, keys * k, k, 1};
      layout.v_stride = (attn_strides){p->heads_kv * keys * v, keys * v, v, 1};
    }
    const attn_score_strides pairs = {p->heads_q * rows * p->seq_k, rows * p->seq_k, p->seq_k, 1};
    layout.bias_stride = layout.mask_stride = layout.scores_stride = pairs;
    layout.k_scale_stride = p->k_scale_stride;
    layout.v_scale_stride = p->v_scale_stride;
    if (finds_gradients(plan)) attn_problem_set_backward(&layout);
  }
  *own = *p;
  own->seq_q = varlen ? min64(p->seq_q, rows) : rows;
  own->total_q = varlen ? rows : 0;
  own->q_stride = layout.q_stride, own->o_stride = layout.o_stride, own->lse_stride = layout.lse_stride;
  own->k_stride = layout.k_stride, own->v_stride = layout.v_stride;
  own->bias_stride = layout.bias_stride, own->mask_stride = layout.mask_stride;
  own->scores_stride = layout.scores_stride;
  own->k_scale_stride = layout.k_scale_stride, own->v_scale_stride = layout.v_scale_stride;
  own->d_q_stride = layout.d_q_stride, own->d_k_stride = layout.d_k_stride, own->d_v_stride = layout.d_v_stride;
  own->d_o_stride = layout.d_o_stride, own->d_lse_stride = layout.d_lse_stride;
  if (paged) own->page_tokens = layout.page_tokens, own->pages = layout.pages;
  if (paged) own->page_table_stride = layout.page_table_stride;
  attn_problem check = *own;
  check.seq_k = varlen && !paged ? min64(p->seq_k, keys) : keys;
  check.total_k = varlen && !paged ? keys : 0;
  return attn_problem_validate(&check);
}

static attn_status check_shard(const attn_mpi_shard *shard) {
  REQUIRE(shard->q_count >= 0 && shard->k_count >= 0 && shard->q_count < INT32_MAX / 4 && shard->k_count < INT32_MAX / 4,
          "attn_mpi_shard.%s is %" PRId64 "; it must be the number of ranges",
          shard->q_count < 0 || shard->q_count >= INT32_MAX / 4 ? "q_count" : "k_count",
          shard->q_count < 0 || shard->q_count >= INT32_MAX / 4 ? shard->q_count : shard->k_count);
  REQUIRE((shard->q || !shard->q_count) && (shard->k || !shard->k_count),
          "attn_mpi_shard.%s is NULL; it must point to the ranges", shard->q || !shard->q_count ? "k" : "q");
  for (int64_t i = 0; i < shard->q_count; i++)
    REQUIRE(shard->q[i].end >= shard->q[i].begin, "attn_mpi_shard.q[%" PRId64 "] ends before it begins", i);
  for (int64_t i = 0; i < shard->k_count; i++)
    REQUIRE(shard->k[i].end >= shard->k[i].begin, "attn_mpi_shard.k[%" PRId64 "] ends before it begins", i);
  return ATTN_OK;
}

/* All that can be checked without other ranks. */
static attn_status read_arguments(attn_mpi_plan *plan, const attn_problem *whole, const attn_mpi_shard *theirs,
                                  const attn_mpi_options *their_options, attn_mpi_shard *shard, attn_mpi_options *o) {
  *o = ATTN_STRUCT(attn_mpi_options, .mode = ATTN_MPI_AUTO);
  REQUIRE(theirs, "shard is NULL; it must point to an attn_mpi_shard");
  attn_status status = attn_struct_read(&shard_layout, theirs, shard);
  if (status == ATTN_OK && their_options) status = attn_struct_read(&mpi_options_layout, their_options, o);
  if (status == ATTN_OK) status = mpi_read_problem(plan, whole, o->compute, o->network);
  if (status != ATTN_OK) return status;
  REQUIRE((unsigned)o->mode <= ATTN_MPI_SPLIT, "attn_mpi_options.mode is %d; it must be an ATTN_MPI_ mode", (int)o->mode);
  REQUIRE(o->piece_keys >= 0 && o->block_rows >= 0 && o->timeout_s >= 0 && o->group_ranks >= 0,
          "attn_mpi_options has a negative piece_keys, block_rows, timeout_s or group_ranks; each must be at least 0");
  status = check_shard(shard);
  if (status == ATTN_OK) status = read_layout(plan, shard);
  if (status != ATTN_OK) return status;
  plan->timeout_s = o->timeout_s > 0 ? o->timeout_s : TIMEOUT_S;
  plan->asked_piece_keys = o->piece_keys;
  plan->asked_block_rows = o->block_rows;
  plan->asked_group = o->group_ranks;
  plan->run = o->run;
  plan->run_context = o->run_context;
  return ATTN_OK;
}

/* ---- What modes share ---- */

const char *mpi_rows_stay(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  if (attn_uses(p, ATTN_USE_BIAS | ATTN_USE_MASK | ATTN_USE_ROW_LEN) || p->score == ATTN_SCORE_PRECOMPUTED)
    return "bias, mask, given scores and row_len stay with their rows; take ATTN_MPI_PASS_KV";
  return NULL;
}

attn_status mpi_take_layout(attn_mpi_plan *plan, int64_t bytes, int64_t item_bytes, int64_t most, const char *things,
                            const char *option) {
  if (bytes == INT64_MAX || item_bytes > MOST_MESSAGE)
    return attn_fail(ATTN_UNSUPPORTED, "%s of up to %" PRId64 " are too large for a message; take smaller %s", things, most,
                     option);
  plan->workspace = (size_t)bytes;
  return ATTN_OK;
}

/* ---- Creating ---- */

attn_status mpi_join_ranks(attn_mpi_plan *plan, MPI_Comm communicator) {
  int there = 0, *tags = NULL;
  MPI_Request request;
  plan->comm = plan->joining = MPI_COMM_NULL;
  plan->stride = 1;
  plan->timeout_s = TIMEOUT_S;
  MPI_TRY(plan, MPI_Initialized, &there);
  REQUIRE(there, "MPI has not been started; MPI_Init_thread() must come before");
  REQUIRE(communicator != MPI_COMM_NULL, "communicator is MPI_COMM_NULL; it must be one of the program's");
  MPI_TRY(plan, MPI_Comm_idup, communicator, &plan->joining, &request);
  const attn_status status = mpi_wait_one(plan, &request);
  if (status != ATTN_OK) return status;
  plan->comm = plan->joining;
  MPI_TRY(plan, MPI_Comm_set_errhandler, plan->comm, MPI_ERRORS_RETURN);
  MPI_TRY(plan, MPI_Comm_rank, plan->comm, &plan->rank);
  MPI_TRY(plan, MPI_Comm_size, plan->comm, &plan->ranks);
  MPI_TRY(plan, MPI_Comm_get_attr, plan->comm, MPI_TAG_UB, (void *)&tags, &there);
  plan->tags = there ? *tags : 32767;
  return ATTN_OK;
}

int64_t mpi_block_rows(int64_t range) {
  return max64(LEAST_ROWS, min64(BLOCK_ROWS, round_up(ceil_div(range, 4), LEAST_ROWS)));
}

/* A rank of a ring has few heads, so it takes as many more rows in a call. */
static int64_t rows_of_block(const attn_mpi_plan *plan) {
  if (plan->asked_block_rows > 0) return plan->asked_block_rows;
  return plan->mode == ATTN_MPI_PASS_Q ? mpi_block_rows(plan->rows.most) : (int64_t)BLOCK_ROWS * plan->stride;
}

int64_t mpi_piece_keys(int64_t keys, int64_t ranges) {
  return max64(LEAST_PIECE_KEYS, min64(ceil_div(keys, 2 * ranges), MOST_PIECE_KEYS));
}

int64_t mpi_even_ranges(const attn_mpi_plan *plan) { return round_up(max64(plan->keys.count, 1), plan->ranks); }

attn_status mpi_lay_out_plan(attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const int64_t asked = plan->asked_piece_keys;
  const int64_t keys = asked > 0 ? asked : mpi_piece_keys(mpi_all_keys(p), mpi_even_ranges(plan));
  attn_status status = finds_gradients(plan) ? mpi_cut_parts(plan, plan->unit, plan->unit)
                                             : mpi_cut_parts(plan, round_up(keys, plan->unit), rows_of_block(plan));
  if (status != ATTN_OK) return status;
  mpi_box_of(plan);
  status = mpi_mode_of(plan, plan->mode)->lay_out(plan);
  if (status != ATTN_OK) return status;
  const int64_t pages = attn_uses(p, ATTN_USE_PAGES) ? ceil_div(plan->keys_of_calls, plan->own.page_tokens) : 0;
  const int64_t rows = attn_uses(p, ATTN_USE_ROW_LEN) ? plan->blocks.most : 0;
  const size_t bytes = (size_t)(5 * p->batch + 2 + p->batch * (pages + rows) + plan->more_numbers) * sizeof *plan->numbers;
  plan->numbers = malloc(bytes);
  return plan->numbers ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs %zu bytes", bytes);
}

static void describe(attn_mpi_plan *plan) {
  const size_t room = sizeof plan->description;
  const int at =
      snprintf(plan->description, room,
               "mode       %s, rank %d of %d\n"
               "kernel     %s, chosen by rank 0; shards of keys begin at multiples of %" PRId64
               "\n"
               "parts      %" PRId64 " own rows, %" PRId64 " own keys; %" PRId64 " pieces of up to %" PRId64
               " keys, blocks of up to %" PRId64
               " rows\n"
               "workspace  %zu bytes\n",
               mpi_mode_of(plan, plan->mode)->name, plan->rank, plan->ranks, plan->kernel, plan->unit, plan->own_rows,
               plan->own_keys, plan->pieces.count, plan->pieces.most, plan->blocks.most, plan->workspace);
  mpi_describe_modes(plan, plan->description + at, room - (size_t)at);
}

static attn_status make(attn_mpi_plan *plan, const attn_problem *whole, const attn_mpi_shard *theirs,
                        const attn_mpi_options *options) {
  attn_mpi_shard shard;
  attn_mpi_options o;
  attn_status status = mpi_agree(plan, read_arguments(plan, whole, theirs, options, &shard, &o));
  if (status == ATTN_OK) status = mpi_agree_on_problem(plan, &o);
  if (status == ATTN_OK) status = mpi_choose_kernel(plan);
  if (status == ATTN_OK && finds_gradients(plan) && o.piece_keys > 0) plan->unit = o.piece_keys;
  if (status == ATTN_OK) status = mpi_agree(plan, mpi_gather_parts(plan, &shard));
  if (status == ATTN_OK) status = mpi_choose_mode(plan, &plan->network, o.mode);
  if (status == ATTN_OK) status = mpi_agree(plan, mpi_lay_out_plan(plan));
  if (status == ATTN_OK) describe(plan);
  return status;
}

attn_status attn_mpi_plan_create(const attn_problem *whole, const attn_mpi_shard *shard, const attn_mpi_options *options,
                                 MPI_Comm communicator, attn_mpi_plan **result) {
  REQUIRE(result, "plan is NULL; it must point to where the plan's address goes");
  *result = NULL;
  attn_mpi_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs %zu bytes", sizeof *plan);
  attn_status status = mpi_join_ranks(plan, communicator);
  if (status == ATTN_OK) status = make(plan, whole, shard, options);
  if (status == ATTN_OK)
    *result = plan;
  else
    attn_mpi_plan_destroy(plan);
  return status;
}

void mpi_free_plan(attn_mpi_plan *plan) {
  if (!plan) return;
  mpi_free_plan(plan->ring);
  mpi_free_calls(plan);
  mpi_free_parts(plan);
  free(plan->numbers);
  free(plan);
}

void attn_mpi_plan_destroy(attn_mpi_plan *plan) {
  if (!plan || (plan->broken && plan->comm == MPI_COMM_NULL)) return; /* MPI_Comm_idup() may write to it yet */
  if (plan->comm != MPI_COMM_NULL && !plan->broken) MPI_Comm_free(&plan->comm);
  mpi_free_plan(plan);
}

/* ---- Reading and running ---- */

size_t attn_mpi_plan_workspace(const attn_mpi_plan *plan) { return plan ? plan->workspace : 0; }
const char *attn_mpi_plan_describe(const attn_mpi_plan *plan) { return plan ? plan->description : ""; }
attn_mpi_mode attn_mpi_plan_mode(const attn_mpi_plan *plan) { return plan ? plan->mode : ATTN_MPI_AUTO; }
const char *attn_mpi_plan_kernel(const attn_mpi_plan *plan) { return plan ? plan->kernel : ""; }

/* With packed keys borders are those of sequences, which a run brings. All ranks see the same. */
static attn_status check_packed_borders(const attn_mpi_plan *plan, const attn_args *args) {
  const attn_problem *p = &plan->whole;
  if (!attn_uses(p, ATTN_USE_VARLEN) || attn_uses(p, ATTN_USE_PAGES) || finds_gradients(plan)) return ATTN_OK;
  for (int64_t i = 0; i < plan->pieces.count; i++)
    for (int64_t b = 0; b < p->batch; b++) {
      const int64_t first = args->cu_seqlens_k[b], end = args->cu_seqlens_k[b + 1], at = plan->pieces.part[i].begin;
      if (at > first && at < end && (at - first) % plan->unit != 0)
        return attn_fail(ATTN_INVALID_ARGUMENT,
                         "attn_mpi_shard.k of rank %d begins at key %" PRId64 " of sequence %" PRId64
                         "; it must be a multiple of attn_mpi_border(), %" PRId64,
                         plan->pieces.part[i].owner, at - first, b, plan->unit);
    }
  return ATTN_OK;
}

/* Arrays that are read before a call of libattn checks them. */
static attn_status check_args(const attn_mpi_plan *plan, const attn_args *a) {
  const attn_problem *p = &plan->whole;
  const struct {
    bool needed;
    const void *data;
    const char *name;
  } arrays[] = {{attn_uses(p, ATTN_USE_KV_LEN), a->kv_len, "kv_len"},
                {attn_uses(p, ATTN_USE_Q_LEN), a->q_len, "q_len"},
                {attn_uses(p, ATTN_USE_ROW_LEN) && plan->own_rows, a->row_len, "row_len"},
                {attn_uses(p, ATTN_USE_VARLEN), a->cu_seqlens_q, "cu_seqlens_q"},
                {attn_uses(p, ATTN_USE_VARLEN) && !attn_uses(p, ATTN_USE_PAGES), a->cu_seqlens_k, "cu_seqlens_k"},
                {attn_uses(p, ATTN_USE_PAGES) && plan->own_keys, a->page_table, "page_table"},
                {p->align == ATTN_ALIGN_OFFSET, a->offsets, "offsets"},
                {plan->own_rows > 0 && p->score != ATTN_SCORE_PRECOMPUTED, a->q, "q"},
                {plan->own_rows > 0, a->o, "o"},
                {plan->own_rows > 0 && attn_uses(p, ATTN_USE_LSE), a->lse, "lse"},
                {plan->own_rows > 0 && finds_gradients(plan), a->d_o, "d_o"},
                {plan->own_rows > 0 && attn_uses(p, ATTN_USE_D_LSE), a->d_lse, "d_lse"},
                {plan->box.k_factors && plan->own_keys, a->k_scale, "k_scale"},
                {plan->box.v_factors && plan->own_keys, a->v_scale, "v_scale"},
                {plan->own_keys > 0 && plan->box.k_row, a->k, "k"},
                {plan->own_keys > 0, a->v, "v"}};
  for (size_t i = 0; p->batch > 0 && i < sizeof arrays / sizeof *arrays; i++)
    REQUIRE(!arrays[i].needed || arrays[i].data, "attn_args.%s is NULL; the problem or the shard of this rank needs it",
            arrays[i].name);
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, a, b);
    REQUIRE(seq.len_k >= 0 && seq.len_k <= p->seq_k && seq.len_q >= 0 && seq.len_q <= p->seq_q,
            "sequence %" PRId64 " has %" PRId64 " queries and %" PRId64 " keys; they must be 0 to %" PRId64 " and %" PRId64,
            b, seq.len_q, seq.len_k, p->seq_q, p->seq_k);
  }
  return check_packed_borders(plan, a);
}

attn_status attn_mpi_plan_run(attn_mpi_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes) {
  REQUIRE(plan, "plan is NULL; it must come from attn_mpi_plan_create");
  REQUIRE(!plan->broken, "a run of this plan has failed; it can only be destroyed");
  attn_args own;
  attn_status status = ATTN_OK;
  if (!args) status = attn_fail(ATTN_INVALID_ARGUMENT, "args is NULL; it must point to an attn_args");
  if (status == ATTN_OK) status = attn_struct_read(&attn_args_layout, args, &own);
  if (status == ATTN_OK) status = check_args(plan, &own);
  if (status == ATTN_OK) status = attn_check_workspace("attn_mpi_plan", workspace, workspace_bytes, plan->workspace);
  if (status == ATTN_OK && plan->whole.batch > 0) status = mpi_mode_of(plan, plan->mode)->run(plan, &own, workspace);
  if (status != ATTN_OK && !plan->broken) (void)mpi_abort_run(plan, status);
  return status;
}
