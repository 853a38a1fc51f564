/* SPDX-License-Identifier: MIT */
/* Pages of keys and values with reference counts (include/attn/nn.h). Which page is taken next depends on the calls alone:
 * the one that was given back last, whose lines may still be in a cache.
 *
 * On several NUMA nodes each has the pages of a range, and a cache takes a sequence's pages from the node whose threads
 * attend to it. */
#define _DEFAULT_SOURCE /* syscall */
#include "src/nn/kv_pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/dtypes.h"
#include "src/api/large_memory.h"
#include "src/nn/check.h"
#include "src/plan/deal.h"

static const attn_struct_layout shape_layout = ATTN_LAYOUT(attn_kv_pool_shape, dtype);

static attn_status check_shape(const attn_kv_pool_shape *s) {
  const int64_t dim = s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v;
  const attn_nn_size least[] = {{"attn_kv_pool_shape.dim_qk", s->dim_qk, 1}, {"attn_kv_pool_shape.dim_v", s->dim_v, 1}};
  attn_status status = attn_nn_check_sizes(least, 1);
  if (status == ATTN_OK) status = attn_nn_check_sizes(least + 1, 1);
  if (status != ATTN_OK) return status;
  REQUIRE(attn_dtype_exists(s->dtype), "attn_kv_pool_shape.dtype is %d; it must be " ATTN_DTYPE_CONSTANTS, (int)s->dtype);
  const attn_nn_size sizes[] = {{"attn_kv_pool_shape.layers", s->layers, 1},
                                {"attn_kv_pool_shape.pages", s->pages, 1},
                                {"attn_kv_pool_shape.page_tokens", s->page_tokens, 1},
                                {"attn_kv_pool_shape.heads_kv", s->heads_kv, 1},
                                {s->dim_qk > s->dim_v ? "attn_kv_pool_shape.dim_qk" : "attn_kv_pool_shape.dim_v",
                                 attn_row_elements(s->dtype, dim), 1}};
  status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(s->pages < INT32_MAX, "attn_kv_pool_shape.pages is %" PRId64 "; it must be below 2^31 - 1", s->pages);
  REQUIRE(s->page_tokens % 16 == 0 && s->page_tokens <= 1024,
          "attn_kv_pool_shape.page_tokens is %" PRId64 "; it must be a multiple of 16 in 16..1024, or 0 for %d",
          s->page_tokens, (int)ATTN_KV_PAGE_TOKENS);
  REQUIRE(!s->scales || attn_makes_factors(s->dtype),
          "attn_kv_pool_shape.scales is true with dtype %d; factors go with types of 8 bits", (int)s->dtype);
  REQUIRE(!s->key_channels || s->scales,
          "attn_kv_pool_shape.key_channels is true without scales; factors of channels need scales, true as well");
  return ATTN_OK;
}

static int64_t rows_of_page(const attn_kv_pool_shape *s) { return s->heads_kv * s->page_tokens; }

/* Factors of the keys of a page. */
static int64_t key_factors(const attn_kv_pool_shape *s) {
  return s->heads_kv * (s->key_channels ? s->dim_qk : s->page_tokens);
}

/* False if memory is short. */
static bool allocate_scales(attn_kv_pool *pool) {
  const attn_kv_pool_shape *s = &pool->shape;
  const size_t page_bytes = (size_t)(s->layers * s->pages) * sizeof(float);
  if (!s->scales) return true;
  pool->k_scale = attn_nn_allocate("the pool's factors of keys", page_bytes * (size_t)key_factors(s));
  pool->v_scale =
      pool->k_scale ? attn_nn_allocate("the pool's factors of values", page_bytes * (size_t)rows_of_page(s)) : NULL;
  return pool->v_scale;
}

static int64_t first_page(const attn_kv_pool *pool, int node) {
  return attn_deal_border(pool->shape.pages, pool->nodes, node);
}

/* Places the nodes' ranges of a tensor. */
static void place(const attn_kv_pool *pool, uint64_t nodes, char *memory, size_t page_bytes) {
  for (int64_t layer = 0; layer < pool->shape.layers; layer++, memory += (size_t)pool->shape.pages * page_bytes)
    for (int node = 0; node < ATTN_MOST_NODES; node++) {
      if (!(nodes >> node & 1)) continue;
      const int64_t first = first_page(pool, attn_nodes_below(nodes, node));
      const int64_t end = first_page(pool, attn_nodes_below(nodes, node) + 1);
      attn_memory_prefer(memory + (size_t)first * page_bytes, (size_t)(end - first) * page_bytes, node);
    }
}

/* Free pages, the first of each node last, and where they lie. */
static void divide_among_nodes(attn_kv_pool *pool) {
  const uint64_t nodes = attn_parallel_nodes(attn_parallel_default_threads());
  pool->nodes = attn_nodes_count(nodes);
  for (int node = 0; node < pool->nodes; node++) {
    const int64_t first = first_page(pool, node), count = first_page(pool, node + 1) - first;
    pool->free_in_node[node] = count;
    for (int64_t i = 0; i < count; i++) pool->free_pages[first + i] = (int32_t)(first + count - 1 - i);
  }
  if (pool->nodes == 1) return;
  place(pool, nodes, pool->k, pool->k_page_bytes);
  place(pool, nodes, pool->v, pool->v_page_bytes);
}

static attn_status create(const attn_kv_pool_shape *s, attn_kv_pool **result) {
  attn_kv_pool *pool = attn_nn_new("attn_kv_pool", sizeof *pool);
  if (!pool) return ATTN_OUT_OF_MEMORY;
  const int64_t rows = rows_of_page(s);
  pool->shape = *s;
  pool->owners = 1;
  pool->k_page_bytes = (size_t)attn_elements_bytes(s->dtype, rows * attn_row_elements(s->dtype, s->dim_qk));
  pool->v_page_bytes = (size_t)attn_elements_bytes(s->dtype, rows * attn_row_elements(s->dtype, s->dim_v));
  const size_t pages = (size_t)(s->layers * s->pages);
  pool->k = attn_nn_allocate("the pool's keys", pages * pool->k_page_bytes);
  pool->v = pool->k ? attn_nn_allocate("the pool's values", pages * pool->v_page_bytes) : NULL;
  pool->references = calloc((size_t)s->pages, sizeof *pool->references);
  pool->free_pages = calloc((size_t)s->pages, sizeof *pool->free_pages);
  if (!pool->k || !pool->v || !pool->references || !pool->free_pages || !allocate_scales(pool)) {
    const size_t page_bytes = pool->k_page_bytes + pool->v_page_bytes;
    attn_kv_pool_destroy(pool);
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: a pool of %" PRId64 " pages in %" PRId64 " layers, %zu bytes each",
                     s->pages, s->layers, page_bytes);
  }
  pool->free_count = s->pages;
  divide_among_nodes(pool);
  *result = pool;
  return ATTN_OK;
}

attn_status attn_kv_pool_create(const attn_kv_pool_shape *shape, attn_kv_pool **pool) {
  REQUIRE(pool, "pool is NULL; it must point to where the pool's address goes");
  *pool = NULL;
  attn_kv_pool_shape s;
  attn_status status = attn_nn_read(&shape_layout, "shape", shape, &s);
  if (status != ATTN_OK) return status;
  if (s.layers == 0) s.layers = 1;
  if (s.page_tokens == 0) s.page_tokens = ATTN_KV_PAGE_TOKENS;
  status = check_shape(&s);
  return status == ATTN_OK ? create(&s, pool) : status;
}

void attn_kv_pool_hold(attn_kv_pool *pool) { pool->owners++; }

void attn_kv_pool_release(attn_kv_pool *pool) {
  if (--pool->owners > 0) return;
  attn_aligned_free(pool->k);
  attn_aligned_free(pool->v);
  attn_aligned_free(pool->k_scale);
  attn_aligned_free(pool->v_scale);
  free(pool->references);
  free(pool->free_pages);
  free(pool);
}

void attn_kv_pool_destroy(attn_kv_pool *pool) {
  if (pool) attn_kv_pool_release(pool);
}

int64_t attn_kv_pool_free_pages(const attn_kv_pool *pool) { return pool ? pool->free_count : 0; }

static bool has_layer(const attn_kv_pool *pool, int64_t layer) { return pool && layer >= 0 && layer < pool->shape.layers; }

void *attn_kv_pool_keys(const attn_kv_pool *pool, int64_t layer) {
  return has_layer(pool, layer) ? pool->k + (size_t)(layer * pool->shape.pages) * pool->k_page_bytes : NULL;
}

void *attn_kv_pool_values(const attn_kv_pool *pool, int64_t layer) {
  return has_layer(pool, layer) ? pool->v + (size_t)(layer * pool->shape.pages) * pool->v_page_bytes : NULL;
}

/* The layer's part of a tensor that has `of_page` factors a page. */
static float *scales_of(const attn_kv_pool *pool, float *all, int64_t layer, int64_t of_page) {
  return all && has_layer(pool, layer) ? all + layer * pool->shape.pages * of_page : NULL;
}

float *attn_kv_pool_key_scales(const attn_kv_pool *pool, int64_t layer) {
  return pool ? scales_of(pool, pool->k_scale, layer, key_factors(&pool->shape)) : NULL;
}

float *attn_kv_pool_value_scales(const attn_kv_pool *pool, int64_t layer) {
  return pool ? scales_of(pool, pool->v_scale, layer, rows_of_page(&pool->shape)) : NULL;
}

int32_t attn_kv_pool_take(attn_kv_pool *pool, int node) {
  assert(pool->free_count > 0);
  for (node %= pool->nodes; pool->free_in_node[node] == 0;) node = (node + 1) % pool->nodes;
  pool->free_count--;
  const int32_t page = pool->free_pages[first_page(pool, node) + --pool->free_in_node[node]];
  pool->references[page] = 1;
  return page;
}

void attn_kv_pool_share(attn_kv_pool *pool, int32_t page) {
  assert(pool->references[page] > 0);
  pool->references[page]++;
}

void attn_kv_pool_give_back(attn_kv_pool *pool, int32_t page) {
  assert(pool->references[page] > 0);
  if (--pool->references[page] > 0) return;
  const int node = attn_deal_part_of(pool->shape.pages, pool->nodes, page);
  pool->free_pages[first_page(pool, node) + pool->free_in_node[node]++] = page;
  pool->free_count++;
}

void attn_kv_pool_copy(attn_kv_pool *pool, int32_t from, int32_t to) {
  const int64_t keys = key_factors(&pool->shape), rows = rows_of_page(&pool->shape);
  for (int64_t layer = 0; layer < pool->shape.layers; layer++) {
    char *k = attn_kv_pool_keys(pool, layer), *v = attn_kv_pool_values(pool, layer);
    memcpy(k + (size_t)to * pool->k_page_bytes, k + (size_t)from * pool->k_page_bytes, pool->k_page_bytes);
    memcpy(v + (size_t)to * pool->v_page_bytes, v + (size_t)from * pool->v_page_bytes, pool->v_page_bytes);
    if (!pool->shape.scales) continue;
    float *k_scale = attn_kv_pool_key_scales(pool, layer), *v_scale = attn_kv_pool_value_scales(pool, layer);
    memcpy(k_scale + to * keys, k_scale + from * keys, (size_t)keys * sizeof(float));
    memcpy(v_scale + to * rows, v_scale + from * rows, (size_t)rows * sizeof(float));
  }
}
