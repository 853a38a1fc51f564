/* SPDX-License-Identifier: MIT */
/* Counts of what the loops of flash and decode do: the terms of attn_kernel.terms that kernels of several tiers share.
 *
 * Terms are known before the data: sequences have the problem's lengths, and offsets that args bring are taken as
 * ATTN_ALIGN_BOTTOM_RIGHT would have them. Widths are counted in whole vectors of the tier, so that a vector costs about the
 * same on every tier. */
#ifndef ATTN_COMMON_TERMS_H
#define ATTN_COMMON_TERMS_H

#include "attn/kernel.h"
#include "dtypes.h"
#include "indexing.h"

/* ---- Units of flash whose few query rows are computed without packing (tiles/flash_few.h) ---- */

enum {
  MOST_FEW_ROWS = 24 /* sharing a KV head; tested: 8, 16, 24, 32 */,
  FEW_AT_ONCE = 4 /* rows of a walk over K and V */
};

/* K transposed: neighbouring keys lie side by side, so that vectors of one dimension need no shuffles. */
static inline bool keys_beside(const attn_problem *p) {
  return p->k_stride.s == 1 && p->k_stride.d != 1 && attn_dtype_of(p->dtype_kv).values == 1;
}

/* Whether problems like this one have such units at all. */
static inline bool few_take(const attn_problem *p) {
  return p->score == ATTN_SCORE_DOT && !(p->dropout > 0) && !attn_uses(p, ATTN_USE_KV_SCALES) &&
         (p->k_stride.d == 1 || keys_beside(p)) && p->v_stride.d == 1 && attn_group(p) <= MOST_FEW_ROWS;
}

/* More rows of one head would need two walks, where a tile needs one. */
static inline bool few_rows_in(const attn_problem *p, int64_t rows) {
  return few_take(p) && rows <= min64(MOST_FEW_ROWS / attn_group(p), FEW_AT_ONCE);
}

/* How many of the rows left the next walk takes: 4, 2 or 1. 3 are taken as 4. */
static inline int64_t few_at_once(int64_t rows) { return rows >= 3 ? FEW_AT_ONCE : rows; }

/* Vectors of columns of V whose sums such a walk keeps in registers, where vectors have so many lanes. */
static inline int few_vecs(int rows, int lanes) { return rows == 1 ? 8 : (lanes == 16 ? 16 : 8) / rows; }

/* ---- Terms ---- */

/* Floats in a vector of the tier, and values of K in a vector: pairs of bf16 values in the place of floats make twice as
 * many. */
typedef struct term_widths {
  int lanes, values;
} term_widths;

/* TERM(name): a thing that loops do, counted. "_8": for 8 rows at once; x_width: for each vector of a row of K and one of V,
 * halved. */
#define FLASH_TERMS(TERM)                                                                           \
  TERM(call)                                                                                        \
  TERM(head)                                                                                        \
  TERM(pack_key)                                                                                    \
  TERM(pack_width)                                                                                  \
  TERM(pack_tail) /* keys whose last vector is not full */                                          \
  TERM(task)      /* a block of query rows */                                                       \
  TERM(tile)      /* tiles of TILE_ROWS queries */                                                  \
  TERM(tile_width)                                                                                  \
  TERM(tile_key_width)    /* products of the keys that the tile sees, */                            \
  TERM(tile_vector_width) /* and of those in whole vectors */                                       \
  TERM(tile_vector)                                                                                 \
  TERM(tile_panel)                                                                                  \
  TERM(tile_block_width) /* O, which is loaded and stored once for each block of keys */            \
  TERM(tile_ragged)      /* tiles whose rows see different keys */                                  \
  TERM(tile_tail)                                                                                   \
  TERM(row)                                                                                         \
  TERM(row_width)                                                                                   \
  TERM(row_tail)                                                                                    \
  TERM(row_key_tail)                                                                                \
  TERM(shifted_edge) /* tiles whose last panel of masked, biased or sloped scores is not full */    \
  SCORE_TERMS(TERM)                                                                                 \
  TERM(additive) /* elements of q and k of other scores than dot products */                        \
  TERM(gaussian)                                                                                    \
  TERM(given)                                                                                       \
  TERM(few_row) /* rows that are computed without packing and tiles: instead of the terms above, */ \
  TERM(few_row_width)                                                                               \
  TERM(few_row_vector) /* scores, in vectors, */                                                    \
  TERM(few_row_panel)                                                                               \
  TERM(few_4_width) /* vectors of K and V for 4 rows at once, */                                    \
  TERM(few_2_width)                                                                                 \
  TERM(few_1_width)                                                                                 \
  TERM(few_part)        /* keys for each part of V's columns whose sums stay in registers, */       \
  TERM(few_tail)        /* and keys whose last vector is not full */                                \
  TERM(few_beyond_512k) /* elements of K and V in place of the next terms */                        \
  TERM(few_beyond_8m)                                                                               \
  CACHE_TERMS(TERM)

#define DECODE_TERMS(TERM)                                                                         \
  TERM(call)                                                                                       \
  TERM(head)                                                                                       \
  TERM(pass_8) /* a walk over the keys */                                                          \
  TERM(pass_4)                                                                                     \
  TERM(pass_2)                                                                                     \
  TERM(pass_1)                                                                                     \
  TERM(key)   /* outside whole blocks, as all up to block_8 */                                     \
  TERM(key_8) /* vectors of K and V */                                                             \
  TERM(key_4)                                                                                      \
  TERM(key_2)                                                                                      \
  TERM(key_1)                                                                                      \
  TERM(key_part) /* keys for each part of V's columns whose sums stay in registers */              \
  TERM(key_tail)                                                                                   \
  TERM(score) /* scores, in vectors of one row and several keys, or of several rows and one key */ \
  TERM(row_key)                                                                                    \
  TERM(row_key_tail)                                                                               \
  TERM(row_block) /* 32 keys of a row */                                                           \
  TERM(block_8)   /* vectors of K and V in whole blocks that all rows see */                       \
  TERM(block_4)                                                                                    \
  TERM(block_2)                                                                                    \
  TERM(block_1)                                                                                    \
  TERM(block_part)                                                                                 \
  TERM(block_8_tail)                                                                               \
  TERM(block_4_tail)                                                                               \
  TERM(block_2_tail)                                                                               \
  TERM(block_row_key)                                                                              \
  TERM(block_key)                                                                                  \
  TERM(block_joins) /* keys outside whole blocks */                                                \
  TERM(row)                                                                                        \
  TERM(row_width)                                                                                  \
  TERM(row_tail)                                                                                   \
  TERM(row_ragged) /* rows that see different keys */                                              \
  TERM(split_row)  /* rows of further tasks */                                                     \
  TERM(split_width)                                                                                \
  SCORE_TERMS(TERM)                                                                                \
  CACHE_TERMS(TERM)

/* Kernels on tiles of 16 x 32 values: of 32 queries, or of 16 rows of a KV head. */
#define TILE_TERMS(TERM)                                                     \
  TERM(call)                                                                 \
  TERM(head)                                                                 \
  TERM(key)                                                                  \
  TERM(key_width) /* packed, or copied where widths are no multiple of 32 */ \
  TERM(tile)                                                                 \
  TERM(tile_width)                                                           \
  TERM(tile_key)                                                             \
  TERM(tile_key_width)                                                       \
  TERM(tile_ragged)                                                          \
  TERM(row)                                                                  \
  TERM(row_width)                                                            \
  TERM(row_key)                                                              \
  TERM(row_tail)                                                             \
  SCORE_TERMS(TERM)                                                          \
  CACHE_TERMS(TERM)

/* Gradients: blocks of queries against blocks of keys, each in tiles. */
#define BACKWARD_TERMS(TERM)                                                                 \
  TERM(call)                                                                                 \
  TERM(head)                                                                                 \
  TERM(key) /* packed, and its gradients stored */                                           \
  TERM(key_width)                                                                            \
  TERM(key_tail) /* keys whose last vector is not full */                                    \
  TERM(row)      /* terms of a query, and its gradient stored */                             \
  TERM(row_width)                                                                            \
  TERM(row_tail)                                                                             \
  TERM(range_width) /* dQ of further ranges of keys */                                       \
  TERM(part_width)  /* dK and dV of parts of the queries, if these are more than one */      \
  TERM(block)                                                                                \
  TERM(block_row) /* rows of queries, for each block of keys */                              \
  TERM(block_row_width)                                                                      \
  TERM(block_row_tail)                                                                       \
  TERM(tile) /* tiles of queries for each block of keys */                                   \
  TERM(tile_panel)                                                                           \
  TERM(tile_vector)                                                                          \
  TERM(tile_vector_width) /* the products S and dP, of vectors of keys */                    \
  TERM(tile_key_width)    /* the products dV, dK and dQ, a third of them */                  \
  TERM(tile_ragged)       /* tiles whose rows see different keys */                          \
  SCORE_TERMS(TERM)                                                                          \
  TERM(dropped)                                                                              \
  TERM(additive) /* elements of q and k of other scores than dot products */                 \
  TERM(gaussian)                                                                             \
  TERM(given)                                                                                \
  TERM(again)            /* scores that are computed again for gradients of what is added */ \
  TERM(kept_beyond_512k) /* P and dS of a block in memory beyond the size of a cache */      \
  TERM(kept_beyond_8m)                                                                       \
  CACHE_TERMS(TERM)

/* Vectors of scores, or scores, that pass through something. */
enum { SCORE_TERM_COUNT = 4 };
#define SCORE_TERMS(TERM)            \
  TERM(masked) /* a boolean mask, */ \
  TERM(biased)                       \
  TERM(sloped) /* ALiBi */           \
  TERM(capped) /* or a softcap */

/* Elements of K and V of a head beyond the size of a level of the caches. The first three terms compare K and V alone with
 * the level. The next three, around the end of level 2, compare all bytes of a call, with what it packs. */
enum { CACHE_TERM_COUNT = 6 };
#define CACHE_TERMS(TERM) \
  TERM(beyond_64k)        \
  TERM(beyond_512k)       \
  TERM(beyond_8m)         \
  TERM(pass_512k)         \
  TERM(pass_1m)           \
  TERM(pass_2m)

#define ONE_TERM(name) +1
enum {
  FLASH_TERM_COUNT = 0 FLASH_TERMS(ONE_TERM),
  DECODE_TERM_COUNT = 0 DECODE_TERMS(ONE_TERM),
  TILE_TERM_COUNT = 0 TILE_TERMS(ONE_TERM),
  BACKWARD_TERM_COUNT = 0 BACKWARD_TERMS(ONE_TERM)
};
#undef ONE_TERM
extern const char *const attn_flash_term_names[FLASH_TERM_COUNT],
    *const attn_decode_term_names[DECODE_TERM_COUNT], *const attn_tile_term_names[TILE_TERM_COUNT],
                                                          *const attn_backward_term_names[BACKWARD_TERM_COUNT];

/* few: whether the kernel computes few rows without packing (few_rows.h). */
void attn_flash_terms(const attn_problem *problem, term_widths widths, int panel_keys, bool few, double *terms);

/* How decode goes through a problem. */
typedef struct decode_walk {
  term_widths widths;
  int sums;           /* vectors of O that stay in registers, of all rows */
  double splits;      /* tasks that the keys are split into */
  int64_t block_rows; /* most rows of a KV head that go through whole blocks of keys by themselves */
} decode_walk;

void attn_decode_terms(const attn_problem *problem, const decode_walk *walk, double *terms);

/* How a kernel on tiles goes through a problem. */
typedef struct tile_walk {
  int width;    /* values that dimensions are padded to */
  int keys;     /* keys of a step */
  double tiles; /* tiles of a KV head, each of which meets */
  double seen;  /* so many keys */
  bool copies;  /* K and V are packed or copied */
} tile_walk;

void attn_tile_terms(const attn_problem *problem, const tile_walk *walk, double *terms);

/* How gradients go through a problem. */
typedef struct backward_walk {
  int lanes, tile_rows, panel_keys;
  int64_t rows, keys; /* a block has so many */
  double ranges;      /* ranges of keys, which have a dQ each */
  double parts;       /* parts of the queries; if more than one, each has a dK and a dV */
  bool in_tiles;      /* products leave out keys that no row of a tile sees; else those that no row of the block does */
} backward_walk;

void attn_backward_terms(const attn_problem *problem, const backward_walk *walk, double *terms);

/* Keys of a sequence that some row sees. */
double attn_seen_keys(const attn_problem *problem);

/* Keys that a tile of so many rows sees, on average. */
double attn_tile_keys(const attn_problem *problem, int64_t tile_rows);

#endif
