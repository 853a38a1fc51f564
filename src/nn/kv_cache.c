/* SPDX-License-Identifier: MIT */
/* A KV cache on a pool of pages, and the step that decodes with it: append, then attend causally, aligned bottom-right.
 *
 * The alignment yields positions: with kv_len = tokens cached and the step's own tokens behind them, offset = kv_len - new
 * tokens is the position of the step's first token. It is computed per sequence, so sequences may have different lengths.
 *
 * A sequence holds the pages of its blocks from first[b] to its last token. In front of first[b] are blocks that have left
 * the window of every query to come; the kernels do not look at them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/dtypes.h"
#include "src/nn/check.h"
#include "src/nn/kv_cache.h"
#include "src/plan/deal.h"

/* The type of q, k and v as steps bring them. */
static attn_dtype dtype_of_tokens(const attn_kv_cache_shape *s) { return s->float_tokens ? ATTN_F32 : s->dtype; }

/* ---- Creating ---- */

static const attn_struct_layout shape_layout = ATTN_LAYOUT_GROWN(attn_kv_cache_shape, dtype, window);

static attn_status check_shape(const attn_kv_cache_shape *s) {
  const int64_t dim = s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v;
  const attn_nn_size sizes[] = {{"attn_kv_cache_shape.batch", s->batch, 1},
                                {"attn_kv_cache_shape.heads_q", s->heads_q, 1},
                                {"attn_kv_cache_shape.capacity", s->capacity, 1},
                                {s->dim_qk > s->dim_v ? "attn_kv_cache_shape.dim_qk" : "attn_kv_cache_shape.dim_v", dim, 1}};
  const attn_nn_size least[] = {{"attn_kv_cache_shape.heads_kv", s->heads_kv, 1},
                                {"attn_kv_cache_shape.dim_qk", s->dim_qk, 1}};
  const attn_nn_size last[] = {{"attn_kv_cache_shape.dim_v", s->dim_v, 1}};
  const attn_nn_size bias[] = {{"attn_kv_cache_shape.heads_q", s->heads_q, 1},
                               {"attn_kv_cache_shape.bias_distances", s->bias_distances, s->bias_by_distance ? 1 : 0}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_sizes(least, NN_COUNT(least));
  if (status == ATTN_OK) status = attn_nn_check_sizes(last, NN_COUNT(last));
  if (status == ATTN_OK) status = attn_nn_check_sizes(bias, NN_COUNT(bias));
  if (status != ATTN_OK) return status;
  REQUIRE(s->capacity < INT32_MAX, "attn_kv_cache_shape.capacity is %" PRId64 "; it must be below 2^31 - 1", s->capacity);
  REQUIRE(s->heads_q % s->heads_kv == 0,
          "attn_kv_cache_shape.heads_q is %" PRId64 " with heads_kv %" PRId64 "; it must be a multiple", s->heads_q,
          s->heads_kv);
  REQUIRE(attn_dtype_exists(s->dtype), "attn_kv_cache_shape.dtype is %d; it must be " ATTN_DTYPE_CONSTANTS, (int)s->dtype);
  REQUIRE(attn_dtype_is_float(s->dtype) || s->float_tokens,
          "attn_kv_cache_shape.float_tokens is false with a cache of 8 bits or of blocks; it must be true");
  REQUIRE(s->scales || !attn_dtype_is_integer(s->dtype),
          "attn_kv_cache_shape.scales is false with dtype %d; integers need factors, so it must be true", (int)s->dtype);
  REQUIRE(!s->scales || attn_makes_factors(s->dtype),
          "attn_kv_cache_shape.scales is true with dtype %d; factors go with types of 8 bits", (int)s->dtype);
  REQUIRE(!s->key_channels || s->scales,
          "attn_kv_cache_shape.key_channels is true without scales; factors of channels need scales, true as well");
  REQUIRE(!s->key_channels || s->batch < INT64_C(1) << 30,
          "attn_kv_cache_shape.batch is %" PRId64 "; with key_channels it must be below 2^30", s->batch);
  REQUIRE(!s->key_channels || s->window_first == 0,
          "attn_kv_cache_shape.window_first is %" PRId64 " with key_channels; it must be 0", s->window_first);
  REQUIRE(s->window_first >= 0 && (s->window_first == 0 || s->window > 0),
          "attn_kv_cache_shape.window_first is %" PRId64 "; it must be at least 0, and 0 without a window", s->window_first);
  REQUIRE(s->bias_by_distance || s->bias_distances == 0,
          "attn_kv_cache_shape.bias_distances is %" PRId64 " without bias_by_distance; it must be 0", s->bias_distances);
  REQUIRE(!s->key_channels || !s->bias_by_distance,
          "attn_kv_cache_shape.bias_by_distance is given with key_channels; it must be NULL");
  REQUIRE(!s->hadamard || s->dim_qk % 2 == 0, "attn_kv_cache_shape.dim_qk is %" PRId64 " with hadamard; it must be even",
          s->dim_qk);
  REQUIRE(s->window >= 0, "attn_kv_cache_shape.window is %" PRId64 "; it must be at least 1, or 0 for all tokens",
          s->window);
  return ATTN_OK;
}

static attn_status check_pool(const attn_kv_cache_shape *s, const attn_kv_pool_shape *pool) {
  const struct {
    const char *field;
    int64_t value, pools;
    bool open; /* 0 = as the pool has it */
  } same[] = {{"heads_kv", s->heads_kv, pool->heads_kv, false},
              {"dim_qk", s->dim_qk, pool->dim_qk, false},
              {"dim_v", s->dim_v, pool->dim_v, false},
              {"dtype", (int64_t)s->dtype, (int64_t)pool->dtype, false},
              {"scales", s->scales, pool->scales, false},
              {"key_channels", s->key_channels, pool->key_channels, false},
              {"layers", s->layers, pool->layers, true},
              {"page_tokens", s->page_tokens, pool->page_tokens, true},
              {"pages", s->pages, pool->pages, true}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    REQUIRE(same[i].value == same[i].pools || (same[i].open && same[i].value == 0),
            "attn_kv_cache_shape.%s is %" PRId64 "; it must be %" PRId64 ", as in its pool", same[i].field, same[i].value,
            same[i].pools);
  return ATTN_OK;
}

void attn_kv_cache_set_scores(const attn_kv_cache *cache, attn_problem *p) {
  const attn_kv_cache_shape *s = &cache->shape;
  if (s->scale != 0) p->scale = s->scale;
  if (s->window > 0) p->window_left = s->window - 1;
  p->window_first = s->window_first;
  p->softcap = s->softcap;
  p->uses |= cache->slopes ? (uint32_t)ATTN_USE_ALIBI : 0u;
}

/* A step's bias goes by the distance of query and key alone, so queries and keys share one row of it for each sequence and
 * head: element x is that of the distance past + tokens - 1 - x. Query i and key j find theirs at tokens - 1 - i + j. */
static int64_t bias_row(const attn_kv_cache *cache, int64_t tokens) { return tokens + cache->shape.capacity; }

/* The bias of query 0 and key 0. */
static attn_status make_bias(attn_kv_cache *cache, int64_t tokens, const float **bias) {
  const attn_kv_cache_shape *s = &cache->shape;
  const int64_t row = bias_row(cache, tokens), rows = s->batch * s->heads_q, last = s->bias_distances - 1;
  if (!cache->distance_bias) return ATTN_OK;
  const attn_status status =
      attn_kv_cache_grow("the bias of a step", (size_t)(rows * row) * sizeof(float), &cache->bias, &cache->bias_bytes);
  if (status != ATTN_OK) return status;
  for (int64_t r = 0; r < rows; r++) {
    const float *by_distance = cache->distance_bias + r % s->heads_q * s->bias_distances;
    float *to = (float *)cache->bias + r * row;
    const int64_t first = cache->past[r / s->heads_q] + tokens - 1; /* its elements behind are of keys to come */
    for (int64_t x = 0; x <= first; x++) to[x] = by_distance[min64(first - x, last)];
    for (int64_t x = first + 1; x < min64(first + tokens, row); x++) to[x] = 0;
  }
  *bias = (float *)cache->bias + tokens - 1;
  return ATTN_OK;
}

static attn_problem problem_of(const attn_kv_cache *cache, int64_t tokens, int64_t packed) {
  const attn_kv_cache_shape *s = &cache->shape;
  attn_problem p;
  attn_problem_init(&p, s->batch, s->heads_q, s->heads_kv, tokens, s->capacity, s->dim_qk, s->dim_v);
  if (packed) attn_problem_set_varlen(&p, packed, 0);
  p.dtype_kv = s->dtype; /* rows of blocks are rounded up */
  attn_problem_set_pages(&p, s->page_tokens, s->pages);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.dtype_q = dtype_of_tokens(s);
  attn_kv_cache_set_scores(cache, &p);
  if (s->scales) {
    p.uses |= ATTN_USE_KV_SCALES;
    p.k_scale_stride = p.v_scale_stride = (attn_strides){.b = s->heads_kv * s->page_tokens, .h = s->page_tokens, .s = 1};
  }
  if (cache->distance_bias) {
    const int64_t row = bias_row(cache, tokens);
    p.uses |= ATTN_USE_BIAS;
    p.bias_stride = (attn_score_strides){.b = s->heads_q * row, .h = row, .q = -1, .k = 1};
  }
  p.uses |= (packed ? 0u : (uint32_t)ATTN_USE_Q_LEN) | (cache->sinks ? (uint32_t)ATTN_USE_SINKS : 0u);
  return p;
}

attn_status attn_kv_cache_grow(const char *purpose, size_t bytes, void **memory, size_t *has) {
  if (bytes <= *has) return ATTN_OK;
  void *larger = attn_nn_allocate(purpose, bytes);
  if (!larger) return ATTN_OUT_OF_MEMORY;
  attn_aligned_free(*memory);
  *memory = larger;
  *has = bytes;
  return ATTN_OK;
}

attn_status attn_kv_cache_find_plan(attn_kv_cache *cache, int64_t tokens, int64_t packed) {
  for (int i = 0; i < ATTN_KV_PLANS; i++)
    if (cache->plans[i].plan && cache->plans[i].tokens == tokens && cache->plans[i].packed == packed)
      return cache->last = i, ATTN_OK;
  const attn_problem problem =
      cache->floats ? attn_kv_channels_problem(cache, tokens, packed) : problem_of(cache, tokens, packed);
  attn_plan *plan;
  attn_status status = attn_plan_create(&problem, &cache->options, &plan);
  if (status != ATTN_OK) return status;
  status =
      attn_kv_cache_grow("the workspace of a step", attn_plan_workspace(plan), &cache->workspace, &cache->workspace_bytes);
  if (status != ATTN_OK) return attn_plan_destroy(plan), status;
  cache->last = cache->planned++ % ATTN_KV_PLANS; /* the oldest one goes */
  attn_plan_destroy(cache->plans[cache->last].plan);
  cache->plans[cache->last] = (attn_kv_step_plan){.tokens = tokens, .packed = packed, .plan = plan};
  return ATTN_OK;
}

static float *copy_floats(const float *from, int64_t count) {
  float *copy = malloc((size_t)count * sizeof *copy);
  if (copy) memcpy(copy, from, (size_t)count * sizeof *copy);
  return copy;
}

/* The pool, given or of its own, whose sizes the shape then has. */
static attn_status find_pool(attn_kv_cache *cache) {
  attn_kv_cache_shape *s = &cache->shape;
  attn_status status = ATTN_OK;
  cache->pool = s->pool;
  if (s->pool) {
    status = check_pool(s, &s->pool->shape);
    attn_kv_pool_hold(s->pool);
  } else {
    const int64_t usual = min64(ATTN_KV_PAGE_TOKENS, round_up(s->capacity, 16)); /* no larger than what a sequence needs */
    const int64_t page_tokens = s->page_tokens > 0 ? s->page_tokens : usual;
    const attn_kv_pool_shape shape =
        ATTN_STRUCT(attn_kv_pool_shape, .layers = s->layers,
                    .pages = s->pages ? s->pages : s->batch * ceil_div(s->capacity, page_tokens),
                    .page_tokens = s->page_tokens ? s->page_tokens : usual, .heads_kv = s->heads_kv, .dim_qk = s->dim_qk,
                    .dim_v = s->dim_v, .dtype = s->dtype, .scales = s->scales, .key_channels = s->key_channels);
    status = attn_kv_pool_create(&shape, &cache->pool);
  }
  if (status != ATTN_OK) return status;
  s->layers = cache->pool->shape.layers;
  s->page_tokens = cache->pool->shape.page_tokens;
  s->pages = cache->pool->shape.pages;
  cache->columns = ceil_div(s->capacity, s->page_tokens);
  return ATTN_OK;
}

static attn_status allocate(attn_kv_cache *cache) {
  attn_kv_cache_shape *s = &cache->shape;
  const size_t batch = (size_t)s->batch, entries = batch * (size_t)cache->columns;
  int32_t **arrays[] = {&cache->lengths, &cache->past,  &cache->counts,     &cache->first,     &cache->next[0],
                        &cache->next[1], &cache->table, &cache->next_table, &cache->cu_seqlens};
  const size_t counts[] = {batch, batch, batch, batch, batch, batch, entries, entries, batch + 1};
  bool all = true;
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
    all = (*arrays[i] = calloc(counts[i], sizeof **arrays[i])) && all;
  if (s->sinks) all = (cache->sinks = copy_floats(s->sinks, s->heads_q)) && all;
  if (s->alibi_slopes) all = (cache->slopes = copy_floats(s->alibi_slopes, s->heads_q)) && all;
  if (s->bias_by_distance)
    all = (cache->distance_bias = copy_floats(s->bias_by_distance, s->heads_q * s->bias_distances)) && all;
  if (!all) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the cache has %" PRId64 " sequences", s->batch);
  for (size_t i = 0; i < entries; i++) cache->table[i] = ATTN_KV_NO_PAGE;
  return ATTN_OK;
}

static attn_status create(const attn_kv_cache_shape *shape, const attn_options *options, attn_kv_cache **result) {
  attn_kv_cache *cache = attn_nn_new("attn_kv_cache", sizeof *cache);
  if (!cache) return ATTN_OUT_OF_MEMORY;
  cache->shape = *shape;
  cache->options = *options;
  attn_own_options(&cache->options, &cache->names);
  attn_status status = attn_nn_choose_joins(options, &cache->joins);
  if (status == ATTN_OK) status = find_pool(cache);
  if (status == ATTN_OK) status = allocate(cache);
  if (status == ATTN_OK && cache->shape.key_channels) status = attn_kv_channels_create(cache);
  if (status == ATTN_OK && cache->floats) status = attn_kv_cache_find_plan(cache, 1, 1);
  if (status == ATTN_OK) status = attn_kv_cache_find_plan(cache, 1, 0); /* a kernel that cannot decode is refused now */
  if (status != ATTN_OK) return attn_kv_cache_destroy(cache), status;
  *result = cache;
  return ATTN_OK;
}

attn_status attn_kv_cache_create(const attn_kv_cache_shape *shape, const attn_options *options, attn_kv_cache **result) {
  REQUIRE(result, "cache is NULL; it must point to where the cache's address goes");
  *result = NULL;
  attn_kv_cache_shape s;
  attn_options wanted;
  attn_status status = attn_nn_read(&shape_layout, "shape", shape, &s);
  if (status == ATTN_OK) status = check_shape(&s);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  return status == ATTN_OK ? create(&s, &wanted, result) : status;
}

static void forget_from(attn_kv_cache *cache, int64_t b, int64_t length);

void attn_kv_cache_destroy(attn_kv_cache *cache) {
  if (!cache) return;
  const bool complete = cache->pool && cache->table && cache->first && cache->lengths;
  for (int64_t b = 0; complete && b < cache->shape.batch; b++) forget_from(cache, b, 0);
  if (cache->pool) attn_kv_pool_release(cache->pool);
  attn_kv_pool_destroy(cache->floats);
  for (int i = 0; i < ATTN_KV_PLANS; i++) attn_plan_destroy(cache->plans[i].plan);
  attn_aligned_free(cache->workspace);
  attn_aligned_free(cache->turned);
  attn_aligned_free(cache->heads);
  attn_aligned_free(cache->block_rows);
  attn_aligned_free(cache->pieces);
  free(cache->held), free(cache->next_held);
  attn_aligned_free(cache->bias);
  free(cache->sinks), free(cache->slopes), free(cache->distance_bias);
  free(cache->table), free(cache->next_table);
  free(cache->lengths), free(cache->past), free(cache->counts), free(cache->cu_seqlens);
  free(cache->first), free(cache->next[0]), free(cache->next[1]);
  free(cache);
}

/* ---- Pages of sequences ---- */

static int32_t *row_of(const attn_kv_cache *cache, int64_t b) { return cache->table + b * cache->columns; }

static int64_t blocks_of(const attn_kv_cache *cache, int64_t tokens) { return ceil_div(tokens, cache->shape.page_tokens); }

static int64_t full_blocks(const attn_kv_cache *cache, int64_t tokens) { return tokens / cache->shape.page_tokens; }

/* Blocks that lie in the pool: with key_channels those that are full. */
static int64_t blocks_in_pool(const attn_kv_cache *cache, int64_t tokens) {
  return cache->floats ? full_blocks(cache, tokens) : blocks_of(cache, tokens);
}

int64_t attn_kv_cache_seen_from(const attn_kv_cache *cache, int64_t length) {
  return cache->shape.window ? max64(0, length - (cache->shape.window - 1)) : 0;
}

/* Those of the blocks [begin, end) that the sequence holds. */
static void give_back(attn_kv_cache *cache, int64_t b, int64_t begin, int64_t end) {
  int32_t *row = row_of(cache, b);
  for (int64_t i = begin; i < end; i++) {
    if (row[i] != ATTN_KV_NO_PAGE) attn_kv_pool_give_back(cache->pool, row[i]);
    row[i] = ATTN_KV_NO_PAGE;
  }
}

/* With key_channels a page that is no longer full is one of the pool only while its tokens are not there in float32. */
static void give_back_cut_page(attn_kv_cache *cache, int64_t b) {
  const int64_t block = full_blocks(cache, cache->lengths[b]);
  if (cache->floats && attn_kv_channels_hold(cache, b, block)) give_back(cache, b, block, block + 1);
}

/* Cuts the sequence to `length` tokens, of which it holds what queries behind them see. */
static void forget_from(attn_kv_cache *cache, int64_t b, int64_t length) {
  if (length >= cache->lengths[b]) return;
  give_back(cache, b, blocks_of(cache, length), blocks_of(cache, cache->lengths[b]));
  cache->lengths[b] = (int32_t)length;
  if (length == 0) cache->first[b] = 0;
  if (cache->floats) attn_kv_channels_forget(cache, b, length);
  give_back_cut_page(cache, b);
}

static void leave_window(attn_kv_cache *cache, int64_t b) {
  const int64_t first = attn_kv_cache_seen_from(cache, cache->lengths[b]) / cache->shape.page_tokens;
  if (first <= cache->first[b]) return;
  give_back(cache, b, max64(cache->first[b], blocks_of(cache, cache->shape.window_first)),
            min64(first, blocks_of(cache, cache->lengths[b])));
  cache->first[b] = (int32_t)first;
}

/* The place in the table of the page that a sequence's next token shares with others; NULL if there is none. */
static int32_t *shared_page(const attn_kv_cache *cache, int64_t b) {
  if (cache->lengths[b] % cache->shape.page_tokens == 0) return NULL;
  int32_t *page = row_of(cache, b) + cache->lengths[b] / cache->shape.page_tokens;
  return cache->pool->references[*page] > 1 ? page : NULL;
}

/* The table's entry whose page a sequence gives up when it appends; NULL if there is none. A copy replaces a shared page;
 * with key_channels, floats replace a full page that was cut. */
static int32_t *leaving_page(const attn_kv_cache *cache, int64_t b) {
  int32_t *page = row_of(cache, b) + full_blocks(cache, cache->lengths[b]);
  if (!cache->floats) return shared_page(cache, b);
  return cache->lengths[b] < cache->shape.capacity && *page != ATTN_KV_NO_PAGE ? page : NULL;
}

/* Pages that a step needs. The last sequence that appends to a shared page needs no copy: it keeps the page. With
 * key_channels the pool gets the page back. To find the last one, references are counted down, and then restored. */
static int64_t pages_needed(attn_kv_cache *cache, const int32_t *counts) {
  int64_t needed = 0;
  int32_t *page = cache->next[1]; /* the page that is counted down, for each sequence */
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    const int64_t length = cache->lengths[b];
    const int32_t *leaving = counts[b] > 0 ? leaving_page(cache, b) : NULL;
    needed += blocks_in_pool(cache, length + counts[b]) - blocks_in_pool(cache, length);
    page[b] = leaving ? *leaving : ATTN_KV_NO_PAGE;
    if (!leaving) continue;
    const bool last = --cache->pool->references[*leaving] == 0;
    needed += cache->floats ? -(int64_t)last : 1;
  }
  for (int64_t b = 0; b < cache->shape.batch; b++)
    if (page[b] != ATTN_KV_NO_PAGE) cache->pool->references[page[b]]++;
  return needed;
}

int attn_kv_cache_node_of(const attn_kv_cache *cache, int64_t b, int64_t block) {
  const int nodes = cache->pool->nodes;
  return cache->shape.batch >= nodes ? attn_deal_part_of(cache->shape.batch, nodes, b) : (int)(block % nodes);
}

static void take_pages(attn_kv_cache *cache, int64_t b, int64_t count) {
  int32_t *row = row_of(cache, b), *shared = count > 0 && !cache->floats ? shared_page(cache, b) : NULL;
  const int64_t length = cache->lengths[b], end = blocks_in_pool(cache, length + count);
  if (shared) {
    const int32_t own = attn_kv_pool_take(cache->pool, attn_kv_cache_node_of(cache, b, shared - row));
    attn_kv_pool_copy(cache->pool, *shared, own);
    attn_kv_pool_give_back(cache->pool, *shared);
    *shared = own;
  }
  for (int64_t i = blocks_in_pool(cache, length); i < end; i++)
    row[i] = attn_kv_pool_take(cache->pool, attn_kv_cache_node_of(cache, b, i));
  if (cache->floats && count > 0) attn_kv_channels_take(cache, b, length + count);
}

/* ---- Steps ---- */

static attn_status check_counts(const attn_kv_cache *cache, const int32_t *counts) {
  const int64_t capacity = cache->shape.capacity;
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    REQUIRE(counts[b] >= 0, "counts[%" PRId64 "] is %" PRId32 "; it must be at least 0", b, counts[b]);
    REQUIRE(counts[b] <= capacity - cache->lengths[b],
            "sequence %" PRId64 " holds %d of %" PRId64 " tokens; %" PRId32 " more do not fit", b, (int)cache->lengths[b],
            capacity, counts[b]);
  }
  return ATTN_OK;
}

attn_status attn_kv_cache_begin(attn_kv_cache *cache, const int32_t *counts) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  REQUIRE(counts, "counts is NULL; it must hold the new tokens of each sequence");
  const attn_status status = check_counts(cache, counts);
  if (status != ATTN_OK) return status;
  for (int64_t b = 0; b < cache->shape.batch; b++) leave_window(cache, b);
  const int64_t needed = pages_needed(cache, counts), free_pages = cache->pool->free_count;
  if (needed > free_pages)
    return attn_fail(ATTN_OUT_OF_MEMORY,
                     "out of pages: the step needs %" PRId64 ", and %" PRId64 " of the pool's %" PRId64
                     " are free; sequences must leave first, or counts be smaller",
                     needed, free_pages, cache->shape.pages);
  for (int64_t b = 0; cache->floats && b < cache->shape.batch; b++)
    if (counts[b] > 0) attn_kv_channels_settle(cache, b);
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    take_pages(cache, b, counts[b]);
    cache->past[b] = cache->lengths[b];
    cache->counts[b] = counts[b];
    cache->lengths[b] += counts[b];
    cache->cu_seqlens[b + 1] = cache->cu_seqlens[b] + counts[b];
  }
  return ATTN_OK;
}

attn_status attn_kv_cache_append(attn_kv_cache *cache, const attn_kv_cache_args *a, const int64_t *slots, const void **q) {
  const attn_kv_cache_shape *s = &cache->shape;
  const attn_kv_pool *pool = slots ? cache->floats : cache->pool;
  const attn_dtype given = dtype_of_tokens(s);
  const bool packed = a->tokens == 0;
  attn_kv_append_args args = ATTN_STRUCT(
      attn_kv_append_args, .batch = s->batch, .tokens = packed ? cache->cu_seqlens[s->batch] : a->tokens,
      .heads_q = s->heads_q, .heads_kv = s->heads_kv, .dim_qk = s->dim_qk, .dim_v = s->dim_v, .dtype = given,
      .cache_dtype = pool->shape.dtype, .q_out_dtype = given, .k = a->k, .v = a->v,
      .k_cache = attn_kv_pool_keys(pool, a->layer), .v_cache = attn_kv_pool_values(pool, a->layer),
      .page_tokens = s->page_tokens, .pages = pool->shape.pages, .page_table = slots ? NULL : cache->table,
      .page_table_stride = cache->columns, .past = cache->past, .counts = packed ? NULL : cache->counts,
      .cu_seqlens = packed ? cache->cu_seqlens : NULL, .slots = slots, .rope = s->rope, .hadamard = s->hadamard,
      .k_scale_cache = attn_kv_pool_key_scales(pool, a->layer), .v_scale_cache = attn_kv_pool_value_scales(pool, a->layer));
  if (s->rope || s->hadamard) {
    const int64_t rows = (packed ? args.tokens : s->batch * args.tokens) * s->heads_q;
    const attn_status status = attn_kv_cache_grow("rotated queries", (size_t)attn_elements_bytes(given, rows * s->dim_qk),
                                                  &cache->turned, &cache->turned_bytes);
    if (status != ATTN_OK) return status;
    args.q = a->q;
    *q = args.q_out = cache->turned;
  }
  return attn_kv_append(&args, &cache->options);
}

static attn_status check_layer(const attn_kv_cache *cache, const attn_kv_cache_args *a, int64_t longest) {
  REQUIRE(a->layer >= 0 && a->layer < cache->shape.layers,
          "attn_kv_cache_args.layer is %" PRId64 "; it must be in 0..%" PRId64, a->layer, cache->shape.layers - 1);
  REQUIRE(a->tokens == 0 || (a->tokens >= longest && a->tokens <= cache->shape.capacity),
          "attn_kv_cache_args.tokens is %" PRId64 "; it must be in %" PRId64 "..%" PRId64 ", or 0 for packed tokens",
          a->tokens, longest, cache->shape.capacity);
  const attn_nn_pointer pointers[] = {{"attn_kv_cache_args.q", a->q},
                                      {"attn_kv_cache_args.k", a->k},
                                      {"attn_kv_cache_args.v", a->v},
                                      {"attn_kv_cache_args.o", a->o}};
  return longest == 0 && a->tokens == 0 ? ATTN_OK : attn_nn_check_pointers(pointers, NN_COUNT(pointers));
}

static const attn_struct_layout args_layout = ATTN_LAYOUT(attn_kv_cache_args, tokens);

static int64_t largest_of(const attn_kv_cache *cache, const int32_t *counts) {
  int64_t largest = 0;
  for (int64_t b = 0; b < cache->shape.batch; b++) largest = max64(largest, counts[b]);
  return largest;
}

static attn_status attend(attn_kv_cache *cache, const attn_kv_cache_args *a) {
  const bool packed = a->tokens == 0;
  const int64_t longest = largest_of(cache, cache->counts);
  attn_status status = check_layer(cache, a, longest);
  if (status != ATTN_OK || (packed && longest == 0)) return status;
  const void *q = a->q;
  if (cache->floats) return attn_kv_channels_attend(cache, a, longest);
  const int64_t tokens = packed ? longest : a->tokens;
  const float *bias = NULL;
  status = attn_kv_cache_find_plan(cache, tokens, packed ? cache->cu_seqlens[cache->shape.batch] : 0);
  if (status == ATTN_OK) status = make_bias(cache, tokens, &bias);
  if (status == ATTN_OK) status = attn_kv_cache_append(cache, a, NULL, &q);
  if (status != ATTN_OK) return status;
  const attn_args args = ATTN_STRUCT(
      attn_args, .q = q, .k = attn_kv_pool_keys(cache->pool, a->layer), .v = attn_kv_pool_values(cache->pool, a->layer),
      .o = a->o, .bias = bias, .kv_len = cache->lengths, .q_len = packed ? NULL : cache->counts,
      .cu_seqlens_q = packed ? cache->cu_seqlens : NULL, .page_table = cache->table, .sinks = cache->sinks,
      .alibi_slopes = cache->slopes, .k_scale = attn_kv_pool_key_scales(cache->pool, a->layer),
      .v_scale = attn_kv_pool_value_scales(cache->pool, a->layer));
  return attn_plan_run(cache->plans[cache->last].plan, &args, cache->workspace, cache->workspace_bytes);
}

attn_status attn_kv_cache_attend(attn_kv_cache *cache, const attn_kv_cache_args *args) {
  attn_kv_cache_args a;
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  const attn_status status = attn_nn_read(&args_layout, "args", args, &a);
  return status == ATTN_OK ? attend(cache, &a) : status;
}

/* ---- Multi-head layers ---- */

static attn_status check_mha(const attn_kv_cache *cache, const attn_mha_problem *p) {
  const attn_kv_cache_shape *s = &cache->shape;
  const attn_problem *a = &p->attention;
  const struct {
    const char *name;
    int64_t value, caches;
  } same[] = {{"heads_q", a->heads_q, s->heads_q},
              {"heads_kv", a->heads_kv, s->heads_kv},
              {"dim_qk", a->dim_qk, s->dim_qk},
              {"dim_v", a->dim_v, s->dim_v}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    REQUIRE(same[i].value == same[i].caches, "the layer's %s is %" PRId64 "; it must be %" PRId64 ", as in the cache",
            same[i].name, same[i].value, same[i].caches);
  const attn_dtype given = dtype_of_tokens(s);
  REQUIRE(a->dtype_q == given && a->dtype_kv == given,
          "the layer's dtype_q and dtype_kv are %d and %d; they must be %d, the type of tokens that the cache takes%s",
          (int)a->dtype_q, (int)a->dtype_kv, (int)given, s->dtype == ATTN_F32 ? "" : " (attn_kv_cache_shape.float_tokens)");
  return ATTN_OK;
}

/* [Q][K][V][O][O rounded to the layer's type, unless that is float32][memory of a product], for so many rows. */
static attn_status lay_out_heads(attn_kv_cache *cache, const attn_mha *mha, attn_dtype dtype_o, int64_t rows,
                                 int64_t at[6]) {
  const attn_kv_cache_shape *s = &cache->shape;
  int64_t end = 0;
  const attn_dtype dtype = dtype_of_tokens(s);
  const memory_part parts[] = {{&at[0], rows, attn_elements_bytes(dtype, s->heads_q * s->dim_qk)},
                               {&at[1], rows, attn_elements_bytes(dtype, s->heads_kv * s->dim_qk)},
                               {&at[2], rows, attn_elements_bytes(dtype, s->heads_kv * s->dim_v)},
                               {&at[3], rows, float_bytes(s->heads_q * s->dim_v)},
                               {&at[4], dtype_o == ATTN_F32 ? 0 : rows, attn_elements_bytes(dtype_o, s->heads_q * s->dim_v)},
                               {&at[5], 1, (int64_t)attn_mha_rows_workspace(mha, rows)}};
  if (!LAY_OUT(parts, &end)) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the step has %" PRId64 " rows", rows);
  return attn_kv_cache_grow("the heads of a step", (size_t)end, &cache->heads, &cache->heads_bytes);
}

/* Attends, and leaves the heads' outputs at *o in the layer's type. */
static attn_status attend_rounded(attn_kv_cache *cache, attn_kv_cache_args args, attn_dtype dtype_o, char *rounded,
                                  const void **o) {
  const attn_status status = attend(cache, &args);
  *o = args.o;
  if (status != ATTN_OK || dtype_o == ATTN_F32) return status;
  *o = rounded;
  return attn_nn_join(&cache->joins, (attn_row_join){.rows = cache->cu_seqlens[cache->shape.batch],
                                                     .width = cache->shape.heads_q * cache->shape.dim_v,
                                                     .dtype_y = dtype_o,
                                                     .x = args.o,
                                                     .y = rounded});
}

static attn_status step_mha(const attn_mha *mha, const attn_mha_problem *p, attn_kv_cache *cache, int64_t layer,
                            const void *x, void *y) {
  const int64_t rows = cache->cu_seqlens[cache->shape.batch];
  int64_t at[6];
  attn_status status = lay_out_heads(cache, mha, p->attention.dtype_o, rows, at);
  if (status != ATTN_OK) return status;
  char *memory = cache->heads, *q = memory + at[0], *k = memory + at[1], *v = memory + at[2], *rest = memory + at[5];
  const size_t bytes = cache->heads_bytes - (size_t)at[5];
  status = attn_mha_project_rows(mha, rows, x, q, k, v, rest, bytes);
  if (status != ATTN_OK) return status;
  const attn_kv_cache_args args =
      ATTN_STRUCT(attn_kv_cache_args, .layer = layer, .q = q, .k = k, .v = v, .o = floats_at(memory, at[3]));
  const void *o;
  status = attend_rounded(cache, args, p->attention.dtype_o, memory + at[4], &o);
  return status == ATTN_OK ? attn_mha_project_output(mha, rows, o, y, rest, bytes) : status;
}

attn_status attn_mha_step(const attn_mha *mha, attn_kv_cache *cache, int64_t layer, const void *x, void *y) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_mha_problem problem;
  attn_status status = attn_mha_get_problem(mha, &problem);
  if (status == ATTN_OK) status = check_mha(cache, &problem);
  if (status != ATTN_OK || cache->cu_seqlens[cache->shape.batch] == 0) return status;
  const attn_nn_pointer pointers[] = {{"x", x}, {"y", y}};
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  return status == ATTN_OK ? step_mha(mha, &problem, cache, layer, x, y) : status;
}

attn_status attn_kv_cache_check_even(const attn_kv_cache *cache, int64_t sequences, int64_t tokens, const char *why) {
  REQUIRE(sequences <= cache->shape.batch, "the cache has %" PRId64 " sequences; it must have %" PRId64 ", %s",
          cache->shape.batch, sequences, why);
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    const int64_t right = b < sequences ? tokens : 0;
    REQUIRE(cache->counts[b] == right,
            "sequence %" PRId64 " has %" PRId32 " new tokens in this step; it must have %" PRId64 ", %s", b,
            cache->counts[b], right, why);
  }
  return ATTN_OK;
}

attn_status attn_kv_cache_block_rows(attn_kv_cache *cache, size_t bytes, void **memory) {
  const attn_status status = attn_kv_cache_grow("the rows of a block", bytes, &cache->block_rows, &cache->block_rows_bytes);
  *memory = cache->block_rows;
  return status;
}

/* ---- Steps of one layer ---- */

static attn_status check_step(const attn_kv_cache *cache, int64_t tokens, const int32_t *counts) {
  REQUIRE(cache->shape.layers == 1,
          "the cache has %" PRId64 " layers; it takes attn_kv_cache_begin and attn_kv_cache_attend", cache->shape.layers);
  REQUIRE(tokens >= 0 && tokens <= cache->shape.capacity,
          "tokens is %" PRId64 "; it must be in 0..%" PRId64 ", the cache's capacity", tokens, cache->shape.capacity);
  for (int64_t b = 0; counts && b < cache->shape.batch; b++)
    REQUIRE(counts[b] >= 0 && counts[b] <= tokens, "counts[%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64, b,
            counts[b], tokens);
  return ATTN_OK;
}

/* next[0] serves as counts for a caller that gives none. */
static const int32_t *all_of(attn_kv_cache *cache, int64_t tokens) {
  for (int64_t b = 0; b < cache->shape.batch; b++) cache->next[0][b] = (int32_t)tokens;
  return cache->next[0];
}

attn_status attn_kv_cache_step(attn_kv_cache *cache, int64_t tokens, const int32_t *counts, const void *q, const void *k,
                               const void *v, float *o) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_status status = check_step(cache, tokens, counts);
  if (status != ATTN_OK || tokens == 0) return status;
  const attn_nn_pointer pointers[] = {{"q", q}, {"k", k}, {"v", v}, {"o", o}};
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  const int32_t *new_tokens = counts ? counts : all_of(cache, tokens);
  const int64_t planned = cache->floats ? attn_kv_channels_rows(cache, largest_of(cache, new_tokens)) : tokens;
  if (status == ATTN_OK) status = attn_kv_cache_find_plan(cache, planned, 0);
  if (status == ATTN_OK) status = attn_kv_cache_begin(cache, new_tokens);
  if (status != ATTN_OK) return status;
  const attn_kv_cache_args args = ATTN_STRUCT(attn_kv_cache_args, .tokens = tokens, .q = q, .k = k, .v = v, .o = o);
  status = attend(cache, &args);
  for (int64_t b = 0; status != ATTN_OK && b < cache->shape.batch; b++) forget_from(cache, b, cache->past[b]);
  return status;
}

/* ---- Sequences ---- */

static attn_status check_sequence(const attn_kv_cache *cache, const char *name, int64_t b) {
  REQUIRE(b >= 0 && b < cache->shape.batch, "%s is %" PRId64 "; it must be in 0..%" PRId64, name, b, cache->shape.batch - 1);
  return ATTN_OK;
}

/* Whether the sequence still holds what queries behind its first `length` tokens see. */
static attn_status check_length(const attn_kv_cache *cache, int64_t b, int64_t length) {
  REQUIRE(length >= 0, "length is %" PRId64 "; it must be at least 0", length);
  const int64_t held = (int64_t)cache->first[b] * cache->shape.page_tokens;
  REQUIRE(length == 0 || attn_kv_cache_seen_from(cache, length) >= held,
          "length is %" PRId64 "; sequence %" PRId64 " has given back its first %" PRId64
          " tokens, which left the window: it must be 0, or at least %" PRId64,
          length, b, held, held + cache->shape.window - 1);
  return ATTN_OK;
}

attn_status attn_kv_cache_truncate(attn_kv_cache *cache, int64_t length) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  REQUIRE(length >= 0, "length is %" PRId64 "; it must be at least 0", length);
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    const attn_status status = length < cache->lengths[b] ? check_length(cache, b, length) : ATTN_OK;
    if (status != ATTN_OK) return status;
  }
  for (int64_t b = 0; b < cache->shape.batch; b++) forget_from(cache, b, length);
  return ATTN_OK;
}

attn_status attn_kv_cache_truncate_sequence(attn_kv_cache *cache, int64_t sequence, int64_t length) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_status status = check_sequence(cache, "sequence", sequence);
  if (status != ATTN_OK) return status;
  if (length >= cache->lengths[sequence]) return ATTN_OK;
  status = check_length(cache, sequence, length);
  if (status == ATTN_OK) forget_from(cache, sequence, length);
  return status;
}

/* Makes row `to` share the pages of the first `end` blocks of row `from`. */
static void share(attn_kv_cache *cache, const int32_t *from, int64_t end, int32_t *to) {
  for (int64_t i = 0; i < cache->columns; i++) {
    to[i] = i < end ? from[i] : ATTN_KV_NO_PAGE;
    if (to[i] != ATTN_KV_NO_PAGE) attn_kv_pool_share(cache->pool, to[i]);
  }
}

attn_status attn_kv_cache_fork(attn_kv_cache *cache, int64_t from, int64_t to, int64_t length) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_status status = check_sequence(cache, "from", from);
  if (status == ATTN_OK) status = check_sequence(cache, "to", to);
  if (status != ATTN_OK) return status;
  REQUIRE(from != to, "to is %" PRId64 "; it must be another sequence than from", to);
  REQUIRE(length <= cache->lengths[from], "length is %" PRId64 "; sequence %" PRId64 " holds %d tokens", length, from,
          (int)cache->lengths[from]);
  status = check_length(cache, from, length);
  if (status != ATTN_OK) return status;
  forget_from(cache, to, 0);
  share(cache, row_of(cache, from), blocks_of(cache, length), row_of(cache, to));
  if (cache->floats) attn_kv_channels_share(cache, cache->held + 2 * from, length, cache->held + 2 * to);
  cache->lengths[to] = (int32_t)length;
  cache->first[to] = length > 0 ? cache->first[from] : 0;
  give_back_cut_page(cache, to);
  return ATTN_OK;
}

/* Every sequence stays what it is. */
static bool nothing_moves(const attn_kv_cache *cache, const int32_t *parents) {
  for (int64_t b = 0; b < cache->shape.batch; b++)
    if (parents[b] != b && (parents[b] >= 0 || cache->lengths[b] > 0)) return false;
  return true;
}

attn_status attn_kv_cache_reorder(attn_kv_cache *cache, const int32_t *parents) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  REQUIRE(parents, "parents is NULL; it must name a sequence for each sequence");
  const int64_t batch = cache->shape.batch;
  for (int64_t b = 0; b < batch; b++)
    REQUIRE(parents[b] >= -1 && parents[b] < batch,
            "parents[%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64 ", or -1 for none", b, parents[b], batch - 1);
  if (nothing_moves(cache, parents)) return ATTN_OK;
  int32_t *lengths = cache->next[0], *first = cache->next[1], *table = cache->next_table;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t parent = parents[b];
    lengths[b] = parent < 0 ? 0 : cache->lengths[parent];
    first[b] = parent < 0 ? 0 : cache->first[parent];
    share(cache, row_of(cache, parent < 0 ? b : parent), blocks_of(cache, lengths[b]), table + b * cache->columns);
    if (cache->floats)
      attn_kv_channels_share(cache, cache->held + 2 * (parent < 0 ? b : parent), lengths[b], cache->next_held + 2 * b);
  }
  for (int64_t b = 0; b < batch; b++) forget_from(cache, b, 0);
  memcpy(cache->lengths, lengths, (size_t)batch * sizeof *lengths);
  memcpy(cache->first, first, (size_t)batch * sizeof *first);
  memcpy(cache->table, table, (size_t)(batch * cache->columns) * sizeof *table);
  if (cache->floats) memcpy(cache->held, cache->next_held, 2 * (size_t)batch * sizeof *cache->held);
  return ATTN_OK;
}

int64_t attn_kv_cache_step_tokens(const attn_kv_cache *cache) { return cache ? cache->cu_seqlens[cache->shape.batch] : 0; }

const int32_t *attn_kv_cache_lengths(const attn_kv_cache *cache) { return cache ? cache->lengths : NULL; }

const int32_t *attn_kv_cache_pages(const attn_kv_cache *cache) { return cache ? cache->table : NULL; }

attn_kv_pool *attn_kv_cache_pool(const attn_kv_cache *cache) { return cache ? cache->pool : NULL; }

const char *attn_kv_cache_kernel(const attn_kv_cache *cache) {
  return cache ? attn_plan_kernel(cache->plans[cache->last].plan) : "";
}
