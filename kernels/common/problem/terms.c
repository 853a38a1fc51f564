/* SPDX-License-Identifier: MIT */
#include "kernels/common/problem/terms.h"

#include <limits.h>
#include <math.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/common/problem/pieces.h"

/* ---- Keys ---- */

static double whole(double count, int of) { return ceil(count / of); }

static double padded(double count, int of) { return of * whole(count, of); }

static bool rows_are_ragged(const attn_problem *p) { return p->seq_q > 1 && !attn_rows_see_alike(p); }

/* The sequence as it is expected before the data are known. */
static attn_sequence planned_sequence(const attn_problem *p) {
  const bool top_left = p->align == ATTN_ALIGN_TOP_LEFT;
  return (attn_sequence){
      .rows = p->seq_q, .len_q = p->seq_q, .len_k = p->seq_k, .offset = top_left ? 0 : p->seq_k - p->seq_q};
}

/* The keys that a row sees. If it sees none, the range ends before it begins. */
static attn_key_range keys_of_row(const attn_problem *p, const attn_sequence *seq, int64_t row) {
  attn_key_range keys = attn_piece_of(p, seq);
  const int64_t position = row + seq->offset;
  if (p->window_right >= 0) keys.end = min64(keys.end - 1, attn_saturating_add(position, p->window_right)) + 1;
  if (p->window_left >= 0) keys.begin = max64(keys.begin, attn_saturating_add(position, -p->window_left));
  return keys;
}

/* Keys that rows see: their range, which moves right with the row, and first keys that stay in front of it. */
typedef struct seen_keys {
  attn_key_range early, range; /* either may end before it begins */
} seen_keys;

static seen_keys keys_of_rows(const attn_problem *p, const attn_sequence *seq, int64_t first, int64_t rows) {
  const int64_t begin = keys_of_row(p, seq, first).begin, end = keys_of_row(p, seq, first + rows - 1).end;
  const int64_t early = attn_window_has_first(p) ? min64(p->window_first, min64(begin, end)) : 0;
  return (seen_keys){{p->key_begin, early}, {begin, end}};
}

static double count_keys(seen_keys keys) {
  return (double)(max64(keys.range.end - keys.range.begin, 0) + max64(keys.early.end - keys.early.begin, 0));
}

/* Groups of `of` keys, from multiples of it on, that hold such keys. */
static double count_groups(seen_keys keys, int64_t of) {
  double groups = 0;
  const attn_key_range ranges[] = {keys.early, keys.range};
  for (int64_t i = 0, next = 0; i < 2; i++) {
    if (ranges[i].end <= ranges[i].begin) continue;
    const int64_t first = max64(ranges[i].begin / of, next);
    next = (ranges[i].end - 1) / of + 1;
    groups += (double)(next - first);
  }
  return groups;
}

static seen_keys keys_of_all(const attn_problem *p) {
  const attn_sequence seq = planned_sequence(p);
  return p->seq_q > 0 ? keys_of_rows(p, &seq, 0, p->seq_q) : (seen_keys){{0, 0}, {0, 0}};
}

double attn_seen_keys(const attn_problem *p) { return count_keys(keys_of_all(p)); }

/* Whole groups of `of` keys, from multiples of it on, that all rows see. */
static double count_shared_groups(const attn_problem *p, int64_t of) {
  const attn_sequence seq = planned_sequence(p);
  if (p->seq_q == 0) return 0;
  const int64_t begin = keys_of_row(p, &seq, p->seq_q - 1).begin, end = keys_of_row(p, &seq, 0).end;
  return end > begin ? (double)max64(end / of - ceil_div(begin, of), 0) : 0;
}

/* Keys that a tile of rows sees: the mean over tiles at even distances. */
double attn_tile_keys(const attn_problem *p, int64_t tile_rows) {
  enum { TILES = 16 };
  const attn_sequence seq = planned_sequence(p);
  const int64_t tiles = ceil_div(p->seq_q, tile_rows), looks = min64(tiles, TILES);
  double keys = 0;
  if (!rows_are_ragged(p)) return attn_seen_keys(p);
  for (int64_t i = 0; i < looks; i++) {
    const int64_t tile = looks > 1 ? i * (tiles - 1) / (looks - 1) : 0, first = tile * tile_rows;
    keys += count_keys(keys_of_rows(p, &seq, first, min64(tile_rows, p->seq_q - first)));
  }
  return keys / (double)looks;
}

/* ---- Caches ---- */

/* 0 up to 2^from bytes, 1 from 2^to on, and a line over their logarithm between. The borders are sizes that caches come in;
 * how much each of them costs is fitted for a class of CPU. */
static double beyond(double log2_bytes, double from, double to) {
  return fmin(fmax((log2_bytes - from) / (to - from), 0), 1);
}

static double mean_dim(const attn_problem *p) { return (double)(p->dim_qk + p->dim_v) / 2; }

/* Bytes of a key and its value. */
static double key_bytes(const attn_problem *p) { return (double)attn_elements_bytes(p->dtype_kv, p->dim_qk + p->dim_v); }

enum { BEYOND_64K, BEYOND_512K, BEYOND_8M };

static void add_cache_terms(const attn_problem *p, double keys, double packed_bytes, double terms[CACHE_TERM_COUNT]) {
  static const double borders[CACHE_TERM_COUNT][2] = {{16, 18}, {19, 21}, {23, 25}, {19, 20}, {20, 21}, {21, 23}};
  const double elements = keys * mean_dim(p), bytes = (double)p->heads_kv * keys * key_bytes(p);
  const double kv = log2(bytes), all = log2(bytes + packed_bytes);
  for (int i = 0; i < CACHE_TERM_COUNT; i++)
    terms[i] = elements * beyond(i <= BEYOND_8M ? kv : all, borders[i][0], borders[i][1]);
}

/* ---- What both count ---- */

typedef struct counts {
  double heads, group, rows, queries, keys; /* KV heads; rows of a KV head; keys that some row sees */
  double wide_k, wide_v;                    /* dim_qk and dim_v in whole vectors; */
  double wide, tail;                        /* their mean, and 1 if one is not full, else 0 */
} counts;

static counts counts_of(const attn_problem *p, term_widths w) {
  counts c = {.heads = (double)p->heads_kv, .group = (double)attn_group(p), .queries = (double)p->seq_q};
  c.rows = c.group * c.queries;
  c.keys = attn_seen_keys(p);
  c.wide_k = padded((double)p->dim_qk, w.values);
  c.wide_v = padded((double)p->dim_v, w.lanes);
  c.wide = (c.wide_k + c.wide_v) / 2;
  c.tail = c.wide > mean_dim(p);
  return c;
}

/* Vectors of a row of V. Nobody has memory for so long a row that an int is too small. */
static int vecs_of_v(const attn_problem *p, term_widths w) {
  return (int)fmin(padded((double)p->dim_v, w.values) / w.lanes, INT_MAX);
}

static double if_used(const attn_problem *p, uint32_t uses, double count) { return attn_uses(p, uses) ? count : 0; }

static void add_score_terms(const attn_problem *p, double scores, double terms[SCORE_TERM_COUNT]) {
  terms[0] = if_used(p, ATTN_USE_MASK, scores);
  terms[1] = if_used(p, ATTN_USE_BIAS, scores);
  terms[2] = if_used(p, ATTN_USE_ALIBI, scores);
  terms[3] = p->softcap > 0 ? scores : 0;
}

/* ---- Flash ---- */

#define FLASH_TERM(name) FLASH_##name,
enum { FLASH_TERMS(FLASH_TERM) };
#define TERM_NAME(name) #name,
const char *const attn_flash_term_names[FLASH_TERM_COUNT] = {FLASH_TERMS(TERM_NAME)};

enum { TILE_ROWS = 6, TASK_ROWS = 96, NARROW_DIM = 128, BLOCK_OF_NARROW = 256, BLOCK_OF_WIDE = 128 };

/* V's columns go by as many vectors as stay in registers, then by two. */
static double few_parts(int vecs, int most) { return vecs / most + (vecs % most + 1) / 2; }

/* Without packing, K and V are read once for every 4, 2 or 1 rows of a KV head. */
static void few_terms(const attn_problem *p, counts c, term_widths w, int panel_keys, double *t) {
  const double vectors = count_groups(keys_of_all(p), w.lanes), scores = c.rows * vectors;
  const double elements = (vectors * w.lanes * c.wide_k + c.keys * c.wide_v) / 2;
  double walks = 0, levels[CACHE_TERM_COUNT];
  for (int64_t left = (int64_t)c.rows, rows; left > 0; left -= rows, walks++) {
    rows = few_at_once(left);
    t[rows == FEW_AT_ONCE ? FLASH_few_4_width : rows == 2 ? FLASH_few_2_width : FLASH_few_1_width] += elements;
    t[FLASH_few_part] += c.keys * few_parts(vecs_of_v(p, w), few_vecs((int)rows, w.lanes));
  }
  t[FLASH_few_row] = c.rows;
  t[FLASH_few_row_width] = c.rows * c.wide;
  t[FLASH_few_row_vector] = scores;
  t[FLASH_few_row_panel] = c.rows * count_groups(keys_of_all(p), panel_keys);
  t[FLASH_few_tail] = walks * c.keys * c.tail;
  add_cache_terms(p, c.keys, 0, levels);
  t[FLASH_few_beyond_512k] = levels[BEYOND_512K];
  t[FLASH_few_beyond_8m] = levels[BEYOND_8M];
  add_score_terms(p, scores, t + FLASH_masked);
}

/* Flash packs K and V, and goes through them once for every tile of queries. */
static void tile_terms(const attn_problem *p, counts c, term_widths w, int panel_keys, double *t) {
  const double tiles = c.group * whole(c.queries, TILE_ROWS), seen = attn_tile_keys(p, TILE_ROWS);
  const bool in_panels = attn_uses(p, SCORE_SHIFTS) || p->softcap > 0; /* whole ones */
  const double vectors = in_panels                 ? padded(seen, panel_keys)
                         : seen < (double)p->seq_k ? seen + w.lanes / 2.0
                                                   : padded(seen, w.lanes);
  const double packed = padded(c.keys, w.lanes), scores = tiles * TILE_ROWS * vectors / w.lanes;
  const double elements = c.rows * seen * mean_dim(p);
  const double packed_bytes = c.keys * mean_dim(p) * (double)sizeof(float) * (p->dtype_kv == ATTN_F32 ? 1 : 2);
  t[FLASH_pack_key] = packed;
  t[FLASH_pack_width] = packed * c.wide;
  t[FLASH_pack_tail] = packed * c.tail;
  t[FLASH_task] = c.group * whole(c.queries, TASK_ROWS);
  t[FLASH_tile] = tiles;
  t[FLASH_tile_width] = tiles * c.wide;
  t[FLASH_tile_key_width] = tiles * seen * c.wide;
  t[FLASH_tile_vector_width] = tiles * vectors * c.wide;
  t[FLASH_tile_vector] = tiles * vectors;
  t[FLASH_tile_panel] = tiles * whole(vectors, panel_keys);
  t[FLASH_tile_block_width] =
      tiles * c.wide * fmax(whole(seen, mean_dim(p) <= NARROW_DIM ? BLOCK_OF_NARROW : BLOCK_OF_WIDE) - 1, 0);
  t[FLASH_tile_ragged] = tiles * rows_are_ragged(p);
  t[FLASH_tile_tail] = tiles * c.keys * c.tail;
  t[FLASH_row] = c.rows;
  t[FLASH_row_width] = c.rows * c.wide;
  t[FLASH_row_tail] = c.rows * c.tail;
  t[FLASH_row_key_tail] = c.rows * c.keys * c.tail;
  t[FLASH_shifted_edge] = if_used(p, SCORE_SHIFTS, tiles * (fmod(seen, panel_keys) > 0));
  add_score_terms(p, scores, t + FLASH_masked);
  t[FLASH_additive] = p->score == ATTN_SCORE_ADDITIVE ? elements : 0;
  t[FLASH_gaussian] = p->score == ATTN_SCORE_GAUSSIAN ? elements : 0;
  t[FLASH_given] = p->score == ATTN_SCORE_PRECOMPUTED ? c.rows * seen : 0;
  add_cache_terms(p, c.keys, packed_bytes, t + FLASH_beyond_64k);
}

void attn_flash_terms(const attn_problem *p, term_widths w, int panel_keys, bool few, double *t) {
  const counts c = counts_of(p, w);
  for (int i = 0; i < FLASH_TERM_COUNT; i++) t[i] = 0;
  (few && few_rows_in(p, p->seq_q) ? few_terms : tile_terms)(p, c, w, panel_keys, t);
  t[FLASH_head] = 1;
  for (int i = 0; i < FLASH_TERM_COUNT; i++) t[i] *= c.heads;
  t[FLASH_call] = 1;
}

/* ---- Decode ---- */

#define DECODE_TERM(name) DECODE_##name,
enum { DECODE_TERMS(DECODE_TERM) };
const char *const attn_decode_term_names[DECODE_TERM_COUNT] = {DECODE_TERMS(TERM_NAME)};

enum { BLOCK_KEYS = 32, AT_ONCE = 4 };
static const int ROWS_AT_ONCE[AT_ONCE] = {8, 4, 2, 1};

/* Splits rows: 7 go as 8 and 3 as 4. Returns how many parts they are. */
static double split_rows(double rows, double count[AT_ONCE]) {
  static const double from[AT_ONCE] = {7, 3, 2, 1};
  double parts = 0;
  for (int i = 0; i < AT_ONCE; i++) {
    count[i] = rows >= from[i] ? floor((rows - from[i]) / ROWS_AT_ONCE[i]) + 1 : 0;
    rows = fmax(rows - count[i] * ROWS_AT_ONCE[i], 0);
    parts += count[i];
  }
  return parts;
}

/* V's columns go by as many vectors as stay in registers with those of the other rows, then by half as many, and so on. */
static double decode_parts(int vecs, int most) {
  double parts = 0;
  for (; most > 0; most /= 2) parts += vecs / most, vecs %= most;
  return parts;
}

/* Keys that go in whole blocks: where nothing is added to scores and rows are few, those that all rows see. A row by itself
 * needs floats of one of two head dimensions. */
static double keys_in_blocks(const attn_problem *p, const decode_walk *walk, double single_rows) {
  const term_widths w = walk->widths;
  const bool plain = !attn_uses(p, SCORE_SHIFTS) && p->softcap == 0 && attn_group(p) * p->seq_q <= walk->block_rows;
  const bool usual = p->dim_qk == p->dim_v && (p->dim_qk == 64 || p->dim_qk == 128);
  if (!plain || (single_rows > 0 && !(usual && w.values == w.lanes))) return 0;
  return BLOCK_KEYS * count_shared_groups(p, BLOCK_KEYS);
}

/* Decode goes through K and V once for every 8, 4, 2 or 1 rows of a KV head. */
void attn_decode_terms(const attn_problem *p, const decode_walk *walk, double *t) {
  const term_widths w = walk->widths;
  const counts c = counts_of(p, w);
  double count[AT_ONCE];
  const double passes = split_rows(c.rows, count);
  const double rows = 8 * count[0] + 4 * count[1] + 2 * count[2] + count[3]; /* rows of zeros included */
  const double blocks = keys_in_blocks(p, walk, count[3]), rest = c.keys - blocks, scores = c.rows * whole(c.keys, w.lanes);
  t[DECODE_score] = t[DECODE_key_part] = t[DECODE_block_part] = 0;
  for (int i = 0; i < AT_ONCE; i++) {
    const int keys = w.lanes > ROWS_AT_ONCE[i] ? w.lanes / ROWS_AT_ONCE[i] : 1;
    t[DECODE_pass_8 + i] = count[i];
    t[DECODE_key_8 + i] = count[i] * rest * c.wide;
    const double parts =
        count[i] * decode_parts(vecs_of_v(p, w), walk->sums > ROWS_AT_ONCE[i] ? walk->sums / ROWS_AT_ONCE[i] : 1);
    t[DECODE_key_part] += parts * rest;
    t[DECODE_block_part] += parts * blocks;
    t[DECODE_score] += count[i] * w.lanes * whole(rest, keys) * c.wide;
    t[DECODE_block_8 + i] = count[i] * blocks * c.wide;
    if (i < 3) t[DECODE_block_8_tail + i] = count[i] * blocks * c.tail;
  }
  t[DECODE_head] = 1;
  t[DECODE_key] = rest;
  t[DECODE_key_tail] = passes * rest * c.tail;
  t[DECODE_row_key] = c.rows * (w.lanes * count_groups(keys_of_all(p), w.lanes) - blocks);
  t[DECODE_row_key_tail] = rows * rest * c.tail;
  t[DECODE_row_block] = c.rows * (count_groups(keys_of_all(p), BLOCK_KEYS) - blocks / BLOCK_KEYS);
  t[DECODE_block_row_key] = rows * blocks;
  t[DECODE_block_key] = passes * blocks;
  t[DECODE_block_joins] = blocks > 0 && rest > 0 ? passes : 0;
  t[DECODE_row] = c.rows;
  t[DECODE_row_width] = c.rows * c.wide;
  t[DECODE_row_tail] = c.rows * c.tail;
  t[DECODE_row_ragged] = c.rows * rows_are_ragged(p);
  t[DECODE_split_row] = c.rows * (walk->splits - 1);
  t[DECODE_split_width] = c.rows * (walk->splits - 1) * c.wide;
  add_score_terms(p, scores, t + DECODE_masked);
  add_cache_terms(p, c.keys, 0, t + DECODE_beyond_64k);
  for (int i = 0; i < DECODE_TERM_COUNT; i++) t[i] *= c.heads;
  t[DECODE_call] = 1;
}

/* ---- Tiles ---- */

#define TILE_TERM(name) TILE_##name,
enum { TILE_TERMS(TILE_TERM) };
const char *const attn_tile_term_names[TILE_TERM_COUNT] = {TILE_TERMS(TERM_NAME)};

void attn_tile_terms(const attn_problem *p, const tile_walk *walk, double *t) {
  const counts c = counts_of(p, (term_widths){.lanes = walk->width, .values = walk->width});
  const double seen = padded(walk->seen, walk->keys), scores = c.rows * seen;
  t[TILE_head] = 1;
  t[TILE_key] = c.keys;
  t[TILE_key_width] = walk->copies ? padded(c.keys, walk->keys) * c.wide : 0;
  t[TILE_tile] = walk->tiles;
  t[TILE_tile_width] = walk->tiles * c.wide;
  t[TILE_tile_key] = walk->tiles * seen;
  t[TILE_tile_key_width] = walk->tiles * seen * c.wide;
  t[TILE_tile_ragged] = walk->tiles * rows_are_ragged(p);
  t[TILE_row] = c.rows;
  t[TILE_row_width] = c.rows * c.wide;
  t[TILE_row_key] = scores;
  t[TILE_row_tail] = c.rows * c.tail;
  add_score_terms(p, scores, t + TILE_masked);
  add_cache_terms(p, c.keys, walk->copies ? c.keys * key_bytes(p) / 2 : 0, t + TILE_beyond_64k);
  for (int i = 0; i < TILE_TERM_COUNT; i++) t[i] *= c.heads;
  t[TILE_call] = 1;
}

/* ---- Gradients ---- */

#define BACKWARD_TERM(name) BACKWARD_##name,
enum { BACKWARD_TERMS(BACKWARD_TERM) };
const char *const attn_backward_term_names[BACKWARD_TERM_COUNT] = {BACKWARD_TERMS(TERM_NAME)};

/* Scores that gradients of what is added to them compute again: sums over queries and keys. */
static double scores_again(const attn_problem *p, double scores) {
  static const uint32_t sums[] = {ATTN_USE_D_BIAS, ATTN_USE_D_ALIBI, ATTN_USE_D_SCORE_WEIGHT};
  double times = p->score == ATTN_SCORE_PRECOMPUTED;
  for (int i = 0; i < 3; i++) times += attn_uses(p, sums[i]);
  return times * scores;
}

static void add_products(const attn_problem *p, const counts *c, const backward_walk *w, double *t) {
  const int64_t together = w->in_tiles ? w->tile_rows : min64(w->rows, p->seq_q);
  const double tiles = c->group * whole(c->queries, w->tile_rows), seen = attn_tile_keys(p, (int)max64(together, 1));
  const bool in_panels = attn_uses(p, SCORE_SHIFTS) || p->softcap > 0 || p->score != ATTN_SCORE_DOT;
  const double vectors = in_panels                 ? padded(seen, w->panel_keys)
                         : seen < (double)p->seq_k ? seen + w->lanes / 2.0
                                                   : padded(seen, w->lanes);
  const double blocks = fmax(ceil(seen / (double)w->keys), 1), elements = c->rows * seen * mean_dim(p);
  const double scores = tiles * w->tile_rows * vectors / w->lanes;
  const double kept = log2(fmax((double)min64(w->rows, p->seq_q) * fmin(seen, (double)w->keys) * 2 * sizeof(float), 1));
  t[BACKWARD_block] = c->group * whole(c->queries, (int)w->rows) * blocks;
  t[BACKWARD_block_row] = c->rows * blocks;
  t[BACKWARD_block_row_width] = c->rows * blocks * c->wide;
  t[BACKWARD_block_row_tail] = c->rows * blocks * c->tail;
  t[BACKWARD_tile] = tiles * blocks;
  t[BACKWARD_tile_panel] = tiles * whole(vectors, w->panel_keys);
  t[BACKWARD_tile_vector] = tiles * vectors;
  t[BACKWARD_tile_vector_width] = tiles * vectors * mean_dim(p);
  t[BACKWARD_tile_key_width] = tiles * seen * (2 * c->wide_k + c->wide_v) / 3;
  t[BACKWARD_tile_ragged] = tiles * rows_are_ragged(p);
  add_score_terms(p, scores, t + BACKWARD_masked);
  t[BACKWARD_dropped] = p->dropout > 0 ? scores : 0;
  t[BACKWARD_additive] = p->score == ATTN_SCORE_ADDITIVE ? elements : 0;
  t[BACKWARD_gaussian] = p->score == ATTN_SCORE_GAUSSIAN ? elements : 0;
  t[BACKWARD_given] = p->score == ATTN_SCORE_PRECOMPUTED ? c->rows * seen : 0;
  t[BACKWARD_again] = scores_again(p, tiles * vectors * mean_dim(p));
  t[BACKWARD_kept_beyond_512k] = c->rows * seen * beyond(kept, 19, 22);
  t[BACKWARD_kept_beyond_8m] = c->rows * seen * beyond(kept, 22, 25);
}

/* The terms of a query are found, P and dS made of each pair of blocks, multiplied, and sums stored. */
void attn_backward_terms(const attn_problem *p, const backward_walk *walk, double *t) {
  const counts c = counts_of(p, (term_widths){.lanes = walk->lanes, .values = walk->lanes});
  for (int i = 0; i < BACKWARD_TERM_COUNT; i++) t[i] = 0;
  if (p->seq_q > 0 && p->seq_k > 0) add_products(p, &c, walk, t);
  t[BACKWARD_head] = 1;
  t[BACKWARD_key] = (double)p->seq_k;
  t[BACKWARD_key_width] = (double)p->seq_k * c.wide;
  t[BACKWARD_key_tail] = (double)p->seq_k * c.tail;
  t[BACKWARD_row] = c.rows;
  t[BACKWARD_row_width] = c.rows * c.wide;
  t[BACKWARD_row_tail] = c.rows * c.tail;
  t[BACKWARD_range_width] = c.rows * c.wide_k * (walk->ranges - 1);
  t[BACKWARD_part_width] = walk->parts > 1 ? 2 * (double)p->seq_k * c.wide * walk->parts : 0;
  add_cache_terms(p, c.keys, c.rows * mean_dim(p) * 2 * sizeof(float), t + BACKWARD_beyond_64k);
  for (int i = 0; i < BACKWARD_TERM_COUNT; i++) t[i] *= c.heads;
  t[BACKWARD_call] = 1;
}
