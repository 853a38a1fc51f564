/* SPDX-License-Identifier: MIT */
/* A KV cache, for the files that implement it and for the layers that run its steps. */
#ifndef ATTN_NN_KV_CACHE_H
#define ATTN_NN_KV_CACHE_H

#include "attn/nn.h"
#include "src/nn/kv_pool.h"
#include "src/nn/linear.h"
#include "src/plan/own_options.h"

enum { ATTN_KV_PLANS = 8 /* sizes of steps that are planned once */ };

/* The plan of steps of one size. */
typedef struct attn_kv_step_plan {
  int64_t tokens; /* most tokens of a sequence */
  int64_t packed; /* tokens of all sequences together; 0 = padded. With key_channels pieces, 0 = the newest pages */
  attn_plan *plan;
} attn_kv_step_plan;

/* A page in float32 of a sequence, with key_channels. */
typedef struct attn_kv_float_page {
  int32_t block, page; /* ATTN_KV_NO_PAGE: none */
} attn_kv_float_page;

struct attn_kv_cache {
  attn_kv_cache_shape shape;
  attn_options options;
  attn_nn_joins joins; /* for rounding the heads' outputs of a layer */
  attn_option_names names;
  float *sinks, *slopes, *distance_bias; /* NULL = none */
  attn_kv_pool *pool;
  int64_t columns;              /* columns of a table */
  int32_t *table, *next_table;  /* [batch][columns]; the other one is for reordering */
  int32_t *lengths, *past;      /* [batch]: tokens cached, and those before the step */
  int32_t *counts, *cu_seqlens; /* [batch], [batch + 1]: tokens of the step */
  int32_t *first, *next[2];     /* [batch]: the first block held; lengths and first blocks while reordering */
  attn_kv_step_plan plans[ATTN_KV_PLANS];
  int planned, last;                /* how many plans were made; the one that the last step ran */
  void *workspace, *turned, *heads; /* workspace of the plans; rotated queries; q, k, v and o of a multi-head layer */
  void *block_rows;                 /* the rows between the sublayers of a block */
  void *bias;                       /* the bias of a step, from distance_bias */
  size_t workspace_bytes, turned_bytes, heads_bytes, block_rows_bytes, bias_bytes;

  attn_kv_pool *floats;                 /* with key_channels: pages in float32; NULL without */
  attn_kv_float_page *held, *next_held; /* [batch][2]: where the last step began, and its last page if that is another */
  void *pieces;                         /* memory of attn_kv_channels_attend() */
  size_t pieces_bytes;
};

/* The node of the pool that a sequence's block goes to: where plans deal out the sequence's heads, or each in turn where
 * there are fewer sequences than nodes, so that all memories are read. */
int attn_kv_cache_node_of(const attn_kv_cache *cache, int64_t b, int64_t block);

/* At least `bytes` of memory at *memory. On failure it stays as it was. */
attn_status attn_kv_cache_grow(const char *purpose, size_t bytes, void **memory, size_t *has);

/* Makes cache->last the plan of such steps. */
attn_status attn_kv_cache_find_plan(attn_kv_cache *cache, int64_t tokens, int64_t packed);

/* Sets what the cache's shape says of scores. */
void attn_kv_cache_set_scores(const attn_kv_cache *cache, attn_problem *problem);

/* Writes the step's keys and values into the pages of the table, with key_channels the places `slots` of the pages in
 * float32. *q are the queries, rotated if the cache rotates. */
attn_status attn_kv_cache_append(attn_kv_cache *cache, const attn_kv_cache_args *a, const int64_t *slots, const void **q);

/* The first token that a query behind `length` tokens sees. */
int64_t attn_kv_cache_seen_from(const attn_kv_cache *cache, int64_t length);

/* ---- key_channels: src/nn/kv_channels.c ---- */

/* Makes the pool of pages in float32. */
attn_status attn_kv_channels_create(attn_kv_cache *cache);

/* The problem of `pieces` pages as kept, each with its own queries; 0: that of the sequences' newest pages. */
attn_problem attn_kv_channels_problem(const attn_kv_cache *cache, int64_t tokens, int64_t pieces);

/* Rows that are planned for each sequence in a step whose largest count is `longest`. */
int64_t attn_kv_channels_rows(const attn_kv_cache *cache, int64_t longest);

/* Gives a sequence the page in float32 that its next token goes to, whose earlier tokens may be read back. */
void attn_kv_channels_settle(attn_kv_cache *cache, int64_t b);

/* The page in float32 of the step's last token, once the sequence is settled. */
void attn_kv_channels_take(attn_kv_cache *cache, int64_t b, int64_t length);

/* Whether the tokens of the sequence's block are there in float32. */
bool attn_kv_channels_hold(const attn_kv_cache *cache, int64_t b, int64_t block);

/* Cuts the sequence's pages in float32 to `length` tokens. */
void attn_kv_channels_forget(attn_kv_cache *cache, int64_t b, int64_t length);

/* Shares the pages in float32 of a sequence's first `length` tokens with another sequence, whose two are `to`. */
void attn_kv_channels_share(attn_kv_cache *cache, const attn_kv_float_page *from, int64_t length, attn_kv_float_page *to);

/* attn_kv_cache_attend(), whose arguments have been checked. */
attn_status attn_kv_channels_attend(attn_kv_cache *cache, const attn_kv_cache_args *a, int64_t longest);

/* ---- Layers ---- */

/* Checks the step that has begun: each of the first `sequences` has so many new tokens, and the others have none. The error
 * gives `why` as the reason. */
attn_status attn_kv_cache_check_even(const attn_kv_cache *cache, int64_t sequences, int64_t tokens, const char *why);

/* Memory of the cache for the rows of a block, until the next call. ATTN_OUT_OF_MEMORY leaves what is there. */
attn_status attn_kv_cache_block_rows(attn_kv_cache *cache, size_t bytes, void **memory);

#endif
