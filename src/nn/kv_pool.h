/* SPDX-License-Identifier: MIT */
/* A pool of pages, as caches see it. */
#ifndef ATTN_NN_KV_POOL_H
#define ATTN_NN_KV_POOL_H

#include "attn/nn.h"
#include "src/plan/nodes.h"

enum { ATTN_KV_NO_PAGE = -1, ATTN_KV_PAGE_TOKENS = 64 /* tokens of a page if the caller names no number */ };

struct attn_kv_pool {
  attn_kv_pool_shape shape;
  size_t k_page_bytes, v_page_bytes;
  char *k, *v;              /* [layers][pages][heads_kv][page_tokens][dim] */
  float *k_scale, *v_scale; /* [layers] of attn_kv_pool_key_scales()'s arrays; NULL without scales */
  int32_t *references;      /* [pages]: how many table entries name the page */
  int nodes;                /* the pages are divided among so many NUMA nodes, in order (attn_deal_part_of) */
  int32_t *free_pages;      /* [pages]: those of a node from its first page's place on, the next one last */
  int64_t free_count, free_in_node[ATTN_MOST_NODES];
  int64_t owners; /* the program, until it destroys the pool, and each cache */
};

/* One owner more, or one less; a pool without any is freed. */
void attn_kv_pool_hold(attn_kv_pool *pool);
void attn_kv_pool_release(attn_kv_pool *pool);

/* A page with one reference, of the node, modulo `nodes`, if that has a free one. The pool must have one. */
int32_t attn_kv_pool_take(attn_kv_pool *pool, int node);

/* One reference more, or one less; a page without any is free. */
void attn_kv_pool_share(attn_kv_pool *pool, int32_t page);
void attn_kv_pool_give_back(attn_kv_pool *pool, int32_t page);

/* Copies a page's keys and values, and their factors, in all layers. */
void attn_kv_pool_copy(attn_kv_pool *pool, int32_t from, int32_t to);

#endif
