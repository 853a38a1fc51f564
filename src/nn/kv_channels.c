/* SPDX-License-Identifier: MIT */
/* A cache whose keys have a factor of each channel of a page (attn_kv_cache_shape.key_channels; Liu et al. 2024, "KIVI",
 * https://arxiv.org/abs/2402.02750).
 *
 * A page is quantised when it is full. Until then its tokens are float32, in a pool of the cache's own, so that tokens of
 * the newest pages are not rounded twice. A query sees its own page in float32 and earlier ones as they are kept, however
 * steps are cut; so a step goes through its tokens in rounds, and a round has one block of each sequence at most.
 *
 * q . (c k) = (q c) . k: for each page the queries take the factors of its channels. Kernels see each page as a sequence
 * with its own queries. They leave states of streaming softmax. These are merged in the order of the pages, and attention to
 * the sequence's newest page goes on from the result. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/convert.h"
#include "src/nn/check.h"
#include "src/nn/kv_cache.h"

enum {
  MOST_PIECES = 64,       /* pages of a call */
  PIECES_FLOATS = 1 << 20 /* and floats of their queries and states, so that they stay in the cache */
};

static const attn_kv_float_page NO_FLOATS = {ATTN_KV_NO_PAGE, ATTN_KV_NO_PAGE};

/* ---- Pages in float32 ---- */

attn_status attn_kv_channels_create(attn_kv_cache *cache) {
  const attn_kv_cache_shape *s = &cache->shape;
  const size_t count = 2 * (size_t)s->batch;
  cache->held = malloc(count * sizeof *cache->held);
  cache->next_held = malloc(count * sizeof *cache->next_held);
  if (!cache->held || !cache->next_held)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the cache has %" PRId64 " sequences", s->batch);
  for (size_t i = 0; i < count; i++) cache->held[i] = NO_FLOATS;
  return attn_kv_pool_create(
      &ATTN_STRUCT(attn_kv_pool_shape, .layers = s->layers, .pages = (int64_t)count, .page_tokens = s->page_tokens,
                   .heads_kv = s->heads_kv, .dim_qk = s->dim_qk, .dim_v = s->dim_v),
      &cache->floats);
}

static attn_kv_float_page *held_by(const attn_kv_cache *cache, int64_t b) { return cache->held + 2 * b; }

static void let_go(attn_kv_cache *cache, attn_kv_float_page *held) {
  if (held->page != ATTN_KV_NO_PAGE) attn_kv_pool_give_back(cache->floats, held->page);
  *held = NO_FLOATS;
}

bool attn_kv_channels_hold(const attn_kv_cache *cache, int64_t b, int64_t block) {
  const attn_kv_float_page *held = held_by(cache, b);
  return held[0].block == block || held[1].block == block;
}

void attn_kv_channels_forget(attn_kv_cache *cache, int64_t b, int64_t length) {
  for (int i = 0; i < 2; i++)
    if (held_by(cache, b)[i].block * cache->shape.page_tokens >= length) let_go(cache, &held_by(cache, b)[i]);
}

void attn_kv_channels_share(attn_kv_cache *cache, const attn_kv_float_page *from, int64_t length, attn_kv_float_page *to) {
  for (int i = 0; i < 2; i++) {
    const bool goes = from[i].page != ATTN_KV_NO_PAGE && from[i].block * cache->shape.page_tokens < length;
    to[i] = goes ? from[i] : NO_FLOATS;
    if (goes) attn_kv_pool_share(cache->floats, from[i].page);
  }
}

/* rows[t][d] = k8[t][d] factor[t * step_t + d * step_d] for the first `tokens` tokens of a head's page. */
static void read_rows(attn_storage from, int64_t first, int64_t tokens, int64_t dim, const float *factor, int64_t step_t,
                      int64_t step_d, float *rows) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t d = 0; d < dim; d++)
      rows[t * dim + d] = attn_load_f32(from, first + t * dim + d) * factor[t * step_t + d * step_d];
}

/* The first tokens of a page as they were kept, as floats. */
static void read_back(attn_kv_cache *cache, int32_t from, int64_t tokens, int32_t to) {
  const attn_kv_cache_shape *s = &cache->shape;
  const int64_t rows = s->page_tokens;
  for (int64_t layer = 0; layer < s->layers; layer++) {
    const attn_storage k = {attn_kv_pool_keys(cache->pool, layer), s->dtype},
                       v = {attn_kv_pool_values(cache->pool, layer), s->dtype};
    const float *k_scale = attn_kv_pool_key_scales(cache->pool, layer);
    const float *v_scale = attn_kv_pool_value_scales(cache->pool, layer);
    float *k_to = attn_kv_pool_keys(cache->floats, layer), *v_to = attn_kv_pool_values(cache->floats, layer);
    for (int64_t h = 0; h < s->heads_kv; h++) {
      const int64_t head = from * s->heads_kv + h, head_to = to * s->heads_kv + h;
      read_rows(k, head * rows * s->dim_qk, tokens, s->dim_qk, k_scale + head * s->dim_qk, 0, 1,
                k_to + head_to * rows * s->dim_qk);
      read_rows(v, head * rows * s->dim_v, tokens, s->dim_v, v_scale + head * rows, 1, 0, v_to + head_to * rows * s->dim_v);
    }
  }
}

/* A page with one reference is the sequence's own. */
static void own(attn_kv_cache *cache, int64_t b, attn_kv_float_page *held) {
  if (cache->floats->references[held->page] == 1) return;
  const int32_t copy = attn_kv_pool_take(cache->floats, attn_kv_cache_node_of(cache, b, held->block));
  attn_kv_pool_copy(cache->floats, held->page, copy);
  attn_kv_pool_give_back(cache->floats, held->page);
  held->page = copy;
}

void attn_kv_channels_settle(attn_kv_cache *cache, int64_t b) {
  const int32_t block = (int32_t)(cache->lengths[b] / cache->shape.page_tokens);
  const int64_t tokens = cache->lengths[b] % cache->shape.page_tokens;
  attn_kv_float_page *held = held_by(cache, b);
  int32_t *kept = cache->table + b * cache->columns + block; /* a page that was full before the sequence was cut */
  if (held[1].block == block) {
    const attn_kv_float_page newest = held[1];
    held[1] = held[0], held[0] = newest;
  }
  let_go(cache, &held[1]);
  if (held[0].block != block) let_go(cache, &held[0]);
  if (held[0].page == ATTN_KV_NO_PAGE) {
    held[0] = (attn_kv_float_page){block, attn_kv_pool_take(cache->floats, attn_kv_cache_node_of(cache, b, block))};
    if (tokens > 0) read_back(cache, *kept, tokens, held[0].page);
  }
  own(cache, b, &held[0]);
  if (*kept != ATTN_KV_NO_PAGE) attn_kv_pool_give_back(cache->pool, *kept);
  *kept = ATTN_KV_NO_PAGE;
}

void attn_kv_channels_take(attn_kv_cache *cache, int64_t b, int64_t length) {
  const int32_t last = (int32_t)((length - 1) / cache->shape.page_tokens);
  attn_kv_float_page *held = held_by(cache, b);
  if (last > held[0].block)
    held[1] = (attn_kv_float_page){last, attn_kv_pool_take(cache->floats, attn_kv_cache_node_of(cache, b, last))};
}

/* ---- Rounds ---- */

/* A step in one layer. */
typedef struct step {
  attn_kv_cache *cache;
  const attn_kv_cache_args *args;
  const float *q;                              /* rotated */
  int64_t rows;                                /* most tokens of a block */
  int64_t row_floats;                          /* floats of a state */
  int64_t most_pieces, round;                  /* pages of a call; number of the round */
  float *q_rows, *o_rows;                      /* a round's, [batch][heads_q][rows][dim] */
  float *states;                               /* [batch][heads_q][rows][row_floats] */
  float *piece_q, *piece_states;               /* [most_pieces][heads_q][rows][..] */
  int32_t *counts, *lengths, *offsets, *pages; /* a call's, [batch or most_pieces] */
  int64_t *slots;                              /* where all new tokens go in this round */
} step;

/* Tokens of a sequence in this round, from its new token `first` on. */
typedef struct stretch {
  int64_t first, count, block;
} stretch;

static stretch stretch_of(const step *s, int64_t b) {
  const attn_kv_cache *c = s->cache;
  const int64_t tokens = c->shape.page_tokens, past = c->past[b], block = past / tokens + s->round;
  const int64_t begin = max64(past, block * tokens), end = min64(past + c->counts[b], (block + 1) * tokens);
  return (stretch){begin - past, max64(end - begin, 0), block};
}

static attn_kv_float_page page_of_round(const step *s, int64_t b) { return held_by(s->cache, b)[s->round > 0]; }

/* Where a new token's first row is in the caller's q, k, v or o, in rows; *head is the distance of heads. */
static int64_t row_of_new(const step *s, int64_t b, int64_t token, int64_t heads, int64_t *head) {
  const bool packed = s->args->tokens == 0;
  *head = packed ? 1 : s->args->tokens;
  return packed ? (s->cache->cu_seqlens[b] + token) * heads : b * heads * s->args->tokens + token;
}

static int64_t token_step(const step *s, int64_t heads) { return s->args->tokens == 0 ? heads : 1; }

int64_t attn_kv_channels_rows(const attn_kv_cache *cache, int64_t longest) {
  return max64(1, min64(longest, cache->shape.page_tokens));
}

attn_problem attn_kv_channels_problem(const attn_kv_cache *cache, int64_t tokens, int64_t pieces) {
  const attn_kv_cache_shape *s = &cache->shape;
  const int64_t page = s->page_tokens;
  attn_problem p;
  attn_problem_init(&p, pieces ? pieces : s->batch, s->heads_q, s->heads_kv, tokens, page, s->dim_qk, s->dim_v);
  p.dtype_kv = pieces ? s->dtype : ATTN_F32;
  attn_problem_set_pages(&p, page, pieces ? s->pages : cache->floats->shape.pages);
  attn_problem_set_causal(&p, ATTN_ALIGN_OFFSET);
  attn_kv_cache_set_scores(cache, &p);
  p.uses |= ATTN_USE_STATE | ATTN_USE_Q_LEN;
  if (pieces)
    p.uses |= ATTN_USE_KV_SCALES;
  else
    p.uses |= cache->sinks ? (uint32_t)ATTN_USE_SINKS : 0u;
  p.v_scale_stride = (attn_strides){.b = s->heads_kv * page, .h = page, .s = 1};
  return p;
}

/* The arguments of a call, except q, k, v, o and state. */
static attn_args args_of(const step *s) {
  return ATTN_STRUCT(attn_args, .kv_len = s->lengths, .q_len = s->counts, .offsets = s->offsets, .page_table = s->pages,
                     .alibi_slopes = s->cache->slopes);
}

static attn_status run_plan(const attn_kv_cache *c, const attn_args *args) {
  return attn_plan_run(c->plans[c->last].plan, args, c->workspace, c->workspace_bytes);
}

/* Queries of a sequence in this round, each element times its factor if there are factors: [heads_q][rows][dim_qk]. */
static void gather_queries(const step *s, int64_t b, const float *factors, float *to) {
  const attn_kv_cache_shape *shape = &s->cache->shape;
  const int64_t dim = shape->dim_qk, group = shape->heads_q / shape->heads_kv, by_token = token_step(s, shape->heads_q);
  const stretch now = stretch_of(s, b);
  int64_t by_head;
  const int64_t first = row_of_new(s, b, now.first, shape->heads_q, &by_head);
  for (int64_t h = 0; h < shape->heads_q; h++)
    for (int64_t t = 0; t < now.count; t++) {
      const float *row = s->q + (first + h * by_head + t * by_token) * dim;
      float *scaled = to + (h * s->rows + t) * dim;
      if (factors)
        for (int64_t d = 0; d < dim; d++) scaled[d] = row[d] * factors[h / group * dim + d];
      else
        memcpy(scaled, row, (size_t)dim * sizeof *row);
    }
}

/* ---- Pages as they are kept ---- */

/* The next page that a round's queries see. */
typedef struct cursor {
  int64_t b, block;
} cursor;

/* False behind the last page of the last sequence. */
static bool next_page(const step *s, cursor *at) {
  const attn_kv_cache *c = s->cache;
  for (; at->b < c->shape.batch; at->b++, at->block = -1) {
    const stretch now = stretch_of(s, at->b);
    if (now.count == 0) continue;
    const int64_t seen = attn_kv_cache_seen_from(c, c->past[at->b] + now.first) / c->shape.page_tokens;
    at->block = max64(at->block + 1, seen);
    if (at->block < now.block) return true;
  }
  return false;
}

/* Makes the page the call's next piece. */
static void add_piece(step *s, const cursor *at, int64_t piece) {
  const attn_kv_cache *c = s->cache;
  const attn_kv_cache_shape *shape = &c->shape;
  const stretch now = stretch_of(s, at->b);
  const int32_t page = c->table[at->b * c->columns + at->block];
  const float *factors = attn_kv_pool_key_scales(c->pool, s->args->layer) + page * shape->heads_kv * shape->dim_qk;
  s->counts[piece] = (int32_t)now.count;
  s->lengths[piece] = (int32_t)shape->page_tokens;
  s->offsets[piece] = (int32_t)(c->past[at->b] + now.first - at->block * shape->page_tokens);
  s->pages[piece] = page;
  gather_queries(s, at->b, factors, s->piece_q + piece * shape->heads_q * s->rows * shape->dim_qk);
}

/* Plans are made for powers of two of pieces. */
static int64_t planned_pieces(const step *s, int64_t pieces) {
  int64_t planned = 1;
  while (planned < pieces) planned *= 2;
  return min64(planned, s->most_pieces);
}

static attn_status run_pieces(step *s, int64_t pieces, const cursor *of) {
  static const float one = 1;
  attn_kv_cache *c = s->cache;
  const int64_t layer = s->args->layer, rows = c->shape.heads_q * s->rows, floats = rows * s->row_floats;
  const int64_t planned = planned_pieces(s, pieces);
  attn_status status = attn_kv_cache_find_plan(c, s->rows, planned);
  if (status != ATTN_OK) return status;
  for (int64_t i = pieces; i < planned; i++) s->counts[i] = s->lengths[i] = s->offsets[i] = s->pages[i] = 0;
  const attn_problem problem = attn_kv_channels_problem(c, s->rows, planned);
  status = attn_state_start(&problem, s->piece_states);
  attn_args args = args_of(s);
  args.q = s->piece_q, args.state = s->piece_states;
  args.k = attn_kv_pool_keys(c->pool, layer), args.v = attn_kv_pool_values(c->pool, layer);
  args.k_scale = &one, args.v_scale = attn_kv_pool_value_scales(c->pool, layer);
  if (status == ATTN_OK) status = run_plan(c, &args);
  for (int64_t i = 0; i < pieces && status == ATTN_OK; i++) {
    const attn_partial piece = attn_partial_of_state(s->piece_states + i * floats, c->shape.dim_v);
    const attn_partial state = attn_partial_of_state(s->states + of[i].b * floats, c->shape.dim_v);
    status = attn_partial_merge(rows, c->shape.dim_v, &piece, &state);
  }
  return status;
}

static attn_status attend_kept_pages(step *s) {
  cursor of[MOST_PIECES], at = {0, -1};
  attn_status status = ATTN_OK;
  for (bool more = next_page(s, &at); more && status == ATTN_OK;) {
    int64_t pieces = 0;
    for (; more && pieces < s->most_pieces; more = next_page(s, &at)) {
      of[pieces] = at;
      add_piece(s, &at, pieces++);
    }
    status = run_pieces(s, pieces, of);
  }
  return status;
}

/* ---- The newest page of each sequence ---- */

/* Where the tokens of this round go; the others go nowhere. */
static void find_slots(step *s) {
  const attn_kv_cache *c = s->cache;
  const int64_t page_tokens = c->shape.page_tokens;
  for (int64_t b = 0; b < c->shape.batch; b++) {
    const stretch now = stretch_of(s, b);
    const int64_t first = s->args->tokens == 0 ? c->cu_seqlens[b] : b * s->args->tokens;
    const int64_t place = page_of_round(s, b).page * page_tokens + (c->past[b] + now.first) % page_tokens;
    for (int64_t i = 0; i < c->counts[b]; i++) s->slots[first + i] = -1;
    for (int64_t i = 0; i < now.count; i++) s->slots[first + now.first + i] = place + i;
  }
}

static void scatter_outputs(const step *s) {
  const attn_kv_cache_shape *shape = &s->cache->shape;
  const int64_t dim = shape->dim_v, by_token = token_step(s, shape->heads_q);
  for (int64_t b = 0; b < shape->batch; b++) {
    const stretch now = stretch_of(s, b);
    int64_t by_head;
    const int64_t first = row_of_new(s, b, now.first, shape->heads_q, &by_head);
    for (int64_t h = 0; h < shape->heads_q; h++)
      for (int64_t t = 0; t < now.count; t++)
        memcpy(s->args->o + (first + h * by_head + t * by_token) * dim,
               s->o_rows + ((b * shape->heads_q + h) * s->rows + t) * dim, (size_t)dim * sizeof(float));
  }
}

static attn_status attend_newest_pages(step *s) {
  attn_kv_cache *c = s->cache;
  const int64_t tokens = c->shape.page_tokens;
  const attn_status status = attn_kv_cache_find_plan(c, s->rows, 0);
  if (status != ATTN_OK) return status;
  for (int64_t b = 0; b < c->shape.batch; b++) {
    const stretch now = stretch_of(s, b);
    const int64_t within = (c->past[b] + now.first) % tokens;
    s->counts[b] = (int32_t)now.count;
    s->lengths[b] = now.count > 0 ? (int32_t)(within + now.count) : 0;
    s->offsets[b] = (int32_t)within;
    s->pages[b] = now.count > 0 ? page_of_round(s, b).page : 0;
    gather_queries(s, b, NULL, s->q_rows + b * c->shape.heads_q * s->rows * c->shape.dim_qk);
  }
  attn_args args = args_of(s);
  args.q = s->q_rows, args.o = s->o_rows, args.state = s->states, args.sinks = c->sinks;
  args.k = attn_kv_pool_keys(c->floats, s->args->layer), args.v = attn_kv_pool_values(c->floats, s->args->layer);
  return run_plan(c, &args);
}

/* A full page goes from floats to the pool. attn_kv_append() makes a factor for each row of K; here it gets K across, with a
 * channel in each row. */
static attn_status quantise(const step *s, int32_t from, int32_t to) {
  const attn_kv_cache *c = s->cache;
  const attn_kv_cache_shape *shape = &c->shape;
  const int64_t layer = s->args->layer, tokens = shape->page_tokens, dim = shape->dim_qk;
  const float *k = attn_kv_pool_keys(c->floats, layer), *v = attn_kv_pool_values(c->floats, layer);
  const attn_strides across = {.b = shape->heads_kv * tokens * dim, .h = tokens * dim, .s = 1, .d = dim};
  attn_kv_append_args args = ATTN_STRUCT(
      attn_kv_append_args, .batch = 1, .heads_kv = shape->heads_kv, .cache_dtype = shape->dtype, .pages = shape->pages,
      .page_table = &to, .page_table_stride = 1, .tokens = dim, .page_tokens = dim, .dim_qk = tokens,
      .k = k + from * across.b, .k_stride = across, .k_cache = attn_kv_pool_keys(c->pool, layer), .k_cache_stride = across,
      .k_scale_cache = attn_kv_pool_key_scales(c->pool, layer));
  const attn_status status = attn_kv_append(&args, &c->options);
  if (status != ATTN_OK) return status;
  args = ATTN_STRUCT(attn_kv_append_args, .batch = 1, .heads_kv = shape->heads_kv, .cache_dtype = shape->dtype,
                     .pages = shape->pages, .page_table = &to, .page_table_stride = 1, .tokens = tokens,
                     .page_tokens = tokens, .dim_v = shape->dim_v, .v = v + from * shape->heads_kv * tokens * shape->dim_v,
                     .v_cache = attn_kv_pool_values(c->pool, layer),
                     .v_scale_cache = attn_kv_pool_value_scales(c->pool, layer));
  return attn_kv_append(&args, &c->options);
}

static attn_status quantise_full_pages(const step *s) {
  const attn_kv_cache *c = s->cache;
  attn_status status = ATTN_OK;
  for (int64_t b = 0; b < c->shape.batch && status == ATTN_OK; b++) {
    const stretch now = stretch_of(s, b);
    const bool full = now.count > 0 && c->past[b] + now.first + now.count == (now.block + 1) * c->shape.page_tokens;
    if (full) status = quantise(s, page_of_round(s, b).page, c->table[b * c->columns + now.block]);
  }
  return status;
}

/* ---- Steps ---- */

static attn_status run_round(step *s) {
  attn_kv_cache *c = s->cache;
  const void *q = s->args->q;
  find_slots(s);
  attn_status status = attn_kv_cache_append(c, s->args, s->slots, &q);
  s->q = q;
  const attn_problem newest = attn_kv_channels_problem(c, s->rows, 0);
  if (status == ATTN_OK) status = attn_state_start(&newest, s->states);
  if (status == ATTN_OK) status = attend_kept_pages(s);
  if (status == ATTN_OK) status = attend_newest_pages(s);
  if (status != ATTN_OK) return status;
  scatter_outputs(s);
  return quantise_full_pages(s);
}

static attn_status find_memory(step *s) {
  attn_kv_cache *c = s->cache;
  const attn_kv_cache_shape *shape = &c->shape;
  const int64_t q = shape->heads_q * s->rows * shape->dim_qk, o = shape->heads_q * s->rows * shape->dim_v;
  const int64_t state = shape->heads_q * s->rows * s->row_floats;
  const int64_t new_tokens = s->args->tokens ? shape->batch * s->args->tokens : c->cu_seqlens[shape->batch];
  s->most_pieces = max64(1, min64(MOST_PIECES, PIECES_FLOATS / (q + state)));
  const int64_t calls = max64(shape->batch, s->most_pieces), number = (int64_t)sizeof(int32_t);
  int64_t at[10], end = 0;
  const memory_part parts[] = {{&at[0], shape->batch, float_bytes(q)},
                               {&at[1], shape->batch, float_bytes(o)},
                               {&at[2], shape->batch, float_bytes(state)},
                               {&at[3], s->most_pieces, float_bytes(q)},
                               {&at[4], s->most_pieces, float_bytes(state)},
                               {&at[5], calls, number},
                               {&at[6], calls, number},
                               {&at[7], calls, number},
                               {&at[8], calls, number},
                               {&at[9], new_tokens, (int64_t)sizeof(int64_t)}};
  if (!LAY_OUT(parts, &end))
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: a step has %" PRId64 " rows of a sequence at a time", s->rows);
  const attn_status status = attn_kv_cache_grow("the pages of a step", (size_t)end, &c->pieces, &c->pieces_bytes);
  if (status != ATTN_OK) return status;
  char *memory = c->pieces;
  s->q_rows = floats_at(memory, at[0]), s->o_rows = floats_at(memory, at[1]), s->states = floats_at(memory, at[2]);
  s->piece_q = floats_at(memory, at[3]), s->piece_states = floats_at(memory, at[4]);
  s->counts = (int32_t *)(memory + at[5]), s->lengths = (int32_t *)(memory + at[6]);
  s->offsets = (int32_t *)(memory + at[7]), s->pages = (int32_t *)(memory + at[8]);
  s->slots = (int64_t *)(memory + at[9]);
  return ATTN_OK;
}

/* Padding has no output. */
static void clear_outputs(const step *s) {
  const attn_kv_cache_shape *shape = &s->cache->shape;
  const int64_t floats = shape->batch * shape->heads_q * s->args->tokens * shape->dim_v; /* 0 where tokens are packed */
  if (floats > 0) memset(s->args->o, 0, (size_t)floats * sizeof(float));
}

attn_status attn_kv_channels_attend(attn_kv_cache *cache, const attn_kv_cache_args *a, int64_t longest) {
  const int64_t page = cache->shape.page_tokens;
  step s = {.cache = cache,
            .args = a,
            .rows = attn_kv_channels_rows(cache, longest),
            .row_floats = attn_state_floats(cache->shape.dim_v)};
  attn_status status = find_memory(&s);
  if (status == ATTN_OK) clear_outputs(&s);
  int64_t rounds = 0;
  for (int64_t b = 0; b < cache->shape.batch; b++)
    if (cache->counts[b] > 0) rounds = max64(rounds, (cache->lengths[b] - 1) / page - cache->past[b] / page + 1);
  for (; s.round < rounds && status == ATTN_OK; s.round++) status = run_round(&s);
  return status;
}
