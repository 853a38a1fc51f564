/* The tile engine: attention for a few query rows against a few keys, in the words of vec_<isa>.h. flash.h and unfused.h say in
 * which order the tiles are visited.
 *
 * Include vec_<isa>.h first. Everything here is static, so each kernel file gets a copy compiled with its own tier's flags.
 *
 * One tile is TILE_ROWS query rows against the keys of one key block. Both products, S = Q K^T and O += P V, are the same
 * register tile (product()): TILE_ROWS x TILE_VECS vectors of sums, one row of the streamed operand (K packed with keys in lanes;
 * V as it is) times one broadcast element per row.
 *
 * Every output element is one chain of fused multiply-adds over the keys in their order, and masked keys add exact zeros. So the
 * bits of a row depend neither on the rows it shares a tile with nor on where tiles begin.
 */
#ifndef ATTN_COMMON_TILES_H
#define ATTN_COMMON_TILES_H

#include <math.h>
#include <string.h>

#include "kernels/common/convert.h"
#include "kernels/common/exact_row.h"
#include "kernels/common/rows.h"
#include "kernels/kernel.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { PANEL_KEYS = VEC_LANES * TILE_VECS };

static const float LOG2_E = 0x1.715476p+0f;
static const double LN_2 = 0x1.62e42fefa39efp-1;

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static inline int64_t round_down(int64_t x, int64_t multiple) { return x / multiple * multiple; }

/* K and V of one KV head as the tiles read them. */
typedef struct packed_keys {
  const float *k;   /* [panel][dim_qk][PANEL_KEYS]: keys in lanes; keys beyond the sequence are 0 */
  const float *v;   /* row of key 0: dim_v floats, readable up to a multiple of VEC_LANES */
  int64_t v_stride; /* floats from one key's row to the next's */
} packed_keys;

/* Query rows of one head that are worked on together, and their state. `capacity` = rows rounded up to TILE_ROWS; the rows
 * beyond `rows` are computed like the others, on zero queries, and never stored. */
typedef struct row_block {
  const attn_problem *problem;
  const attn_args *args;
  const attn_sequence *seq;
  int64_t b, head, first_row, rows;
  packed_keys keys;

  float *q;              /* [capacity][dim_qk], times scale log2(e) */
  float *acc;            /* [capacity][acc_stride]: O before division */
  float *row_max;        /* [capacity]: reference of the exponentials, log2 units */
  float *row_sum;        /* [capacity][VEC_LANES]: sum of P, one partial sum per lane */
  attn_key_range *range; /* [capacity]: keys that the row may see */
  float *score;          /* [rows of S kept][score_stride]: S, then P */
  int64_t acc_stride, score_stride;
} row_block;

/* ---- The register tile ---- */

/* sum[i][v] += sum_k a[i][k] b[k][v]: TILE_ROWS rows of a against `depth` rows of `vecs` vectors. `vecs` is a constant at every
 * call, so that the sums live in registers. */
static ALWAYS_INLINE void product(vec sum[TILE_ROWS][TILE_VECS], const float *a, int64_t a_stride, const float *b,
                                  int64_t b_stride, int64_t depth, const int vecs) {
  for (int64_t k = 0; k < depth; k++) {
    vec row[TILE_VECS];
    UNROLL
    for (int v = 0; v < vecs; v++) row[v] = vec_load(b + k * b_stride + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) {
      vec x = vec_set1(a[i * a_stride + k]);
      UNROLL
      for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(x, row[v], sum[i][v]);
    }
  }
}

/* Calls f(..., n) with n a constant in 1..TILE_VECS. */
#define WITH_CONSTANT_VECS(n, f, ...)                             \
  switch (n) {                                                    \
    case 1: f(__VA_ARGS__, 1); break;                             \
    case 2: f(__VA_ARGS__, TILE_VECS < 2 ? TILE_VECS : 2); break; \
    case 3: f(__VA_ARGS__, TILE_VECS < 3 ? TILE_VECS : 3); break; \
    default: f(__VA_ARGS__, TILE_VECS); break;                    \
  }

/* ---- S = Q K^T ---- */

/* One panel: writes vecs vectors of scores per row and raises best[i], the lane-wise largest score of the row so far. */
static ALWAYS_INLINE void score_panel(const float *q, int64_t dim_qk, const float *panel, float *score, int64_t score_stride,
                                      vec best[TILE_ROWS], const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_zero();
  }
  product(sum, q, dim_qk, panel, PANEL_KEYS, dim_qk, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) {
      vec_store(score + i * score_stride + v * VEC_LANES, sum[i][v]);
      best[i] = vec_max(sum[i][v], best[i]);
    }
  }
}

/* Scores of keys [begin, end) for the tile's rows; begin is a multiple of PANEL_KEYS. score[i][j - begin]; what lies between
 * `end` and the end of its vector is written too, what lies beyond that vector is not. */
static void score_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, float *score,
                       vec best[TILE_ROWS]) {
  const int64_t dim_qk = block->problem->dim_qk;
  const float *q = block->q + tile_row * dim_qk;
  for (int i = 0; i < TILE_ROWS; i++) best[i] = vec_set1(-INFINITY);
  for (int64_t key = begin; key < end; key += PANEL_KEYS) {
    const float *panel = block->keys.k + key * dim_qk;
    const int64_t vecs = (min64(end - key, PANEL_KEYS) + VEC_LANES - 1) / VEC_LANES;
    WITH_CONSTANT_VECS(vecs, score_panel, q, dim_qk, panel, score + (key - begin), block->score_stride, best)
  }
}

/* ---- Masks ---- */

typedef enum tile_class { TILE_SKIP, TILE_FULL, TILE_EDGE } tile_class;

/* The keys of one tile: what its rows may see between them, [begin, end), scored from `first`, the panel border at or before
 * begin. FULL: every row may see every key from `first` up to the next panel border, so no mask code runs. */
typedef struct tile_keys {
  tile_class class;
  int64_t first, begin, end;
} tile_keys;

/* The part of keys [begin, end) that the tile at tile_row needs; begin is a multiple of PANEL_KEYS. */
static tile_keys classify_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end) {
  int64_t any_begin = end, any_end = begin, all_begin = 0, all_end = INT64_MAX;
  for (int64_t i = tile_row; i < tile_row + TILE_ROWS; i++) {
    const attn_key_range range = block->range[i];
    all_begin = max64(all_begin, range.begin);
    all_end = min64(all_end, range.end);
    if (range.begin >= range.end) continue;
    any_begin = min64(any_begin, range.begin);
    any_end = max64(any_end, range.end);
  }
  tile_keys keys = {.begin = max64(begin, any_begin), .end = min64(end, any_end)};
  keys.first = round_down(keys.begin, PANEL_KEYS);
  if (keys.begin >= keys.end)
    keys.class = TILE_SKIP;
  else
    keys.class = all_begin <= keys.first && round_up(keys.end, PANEL_KEYS) <= all_end ? TILE_FULL : TILE_EDGE;
  return keys;
}

/* Masks select: whatever stood in a masked score, NaN included, becomes -inf, up to the next panel border. Edge tiles only. */
static void mask_tile(const row_block *block, int64_t tile_row, tile_keys keys, float *score, vec best[TILE_ROWS]) {
  const int64_t padded = round_up(keys.end, PANEL_KEYS);
  for (int i = 0; i < TILE_ROWS; i++) {
    const attn_key_range range = block->range[tile_row + i];
    best[i] = vec_set1(-INFINITY);
    for (int64_t key = keys.first; key < padded; key += VEC_LANES) {
      float *s = score + i * block->score_stride + (key - keys.first);
      const int64_t first = min64(max64(range.begin - key, 0), VEC_LANES),
                    last = min64(max64(range.end - key, 0), VEC_LANES);
      vec x = vec_select_range(vec_load(s), first, last);
      vec_store(s, x);
      best[i] = vec_max(x, best[i]);
    }
  }
}

/* ---- P = exp(S - row_max) ---- */

/* Rescaling costs a pass over acc, so a row keeps an outdated reference until a block exceeds it by more than this, in log2
 * units: P stays below 2^8, which float32 sums and products carry with ease, and acc / row_sum is unchanged. */
static const float RESCALE_AT = 8.0f;

/* Moves row i to a new reference. Tested before any exp, so nothing can overflow. */
static void rescale_row(const row_block *block, int64_t i, float new_max) {
  const vec factor = vec_exp2(vec_set1(block->row_max[i] - new_max)); /* first block: 0, times zeros */
  float *acc = block->acc + i * block->acc_stride, *sum = block->row_sum + i * VEC_LANES;
  vec_store(sum, vec_mul(vec_load(sum), factor));
  for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES) vec_store(acc + c, vec_mul(vec_load(acc + c), factor));
  block->row_max[i] = new_max;
}

/* score = 2^(score - reference) for a multiple of PANEL_KEYS scores; returns the lane-wise sum added to `sum`. */
static ALWAYS_INLINE vec exponentials(float *score, int64_t count, float reference, vec sum) {
  const vec shift = vec_set1(reference);
  for (int64_t j = 0; j < count; j += PANEL_KEYS) {
    vec p[TILE_VECS], pair = vec_zero();
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
      p[v] = vec_exp2(vec_sub(vec_load(score + j + v * VEC_LANES), shift));
      vec_store(score + j + v * VEC_LANES, p[v]);
    }
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) pair = v == 0 ? p[0] : vec_add(pair, p[v]);
    sum = vec_add(sum, pair);
  }
  return sum;
}

/* Turns `keys` scores per row (rounded up to whole panels) into P and adds them to row_sum. A row that has seen no allowed key
 * yet has reference -inf and stays as it is. */
static void softmax_tile(const row_block *block, int64_t tile_row, int64_t keys, float *score, const vec best[TILE_ROWS],
                         float rescale_at) {
  const int64_t padded = round_up(keys, PANEL_KEYS);
  for (int i = 0; i < TILE_ROWS; i++) {
    const int64_t row = tile_row + i;
    const float block_max = vec_reduce_max(best[i]);
    if (block_max > block->row_max[row] + rescale_at) rescale_row(block, row, block_max);
    const float reference = block->row_max[row] == -INFINITY ? 0.0f : block->row_max[row];
    float *sum = block->row_sum + row * VEC_LANES;
    vec_store(sum, exponentials(score + i * block->score_stride, padded, reference, vec_load(sum)));
  }
}

/* ---- O += P V ---- */

static ALWAYS_INLINE void accumulate_columns(float *acc, int64_t acc_stride, const float *p, int64_t p_stride,
                                             const float *v, int64_t v_stride, int64_t keys, const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int c = 0; c < vecs; c++) sum[i][c] = vec_load(acc + i * acc_stride + c * VEC_LANES);
  }
  product(sum, p, p_stride, v, v_stride, keys, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int c = 0; c < vecs; c++) vec_store(acc + i * acc_stride + c * VEC_LANES, sum[i][c]);
  }
}

/* Adds the keys [begin, end) with p[i][j - begin]. Columns are cut into equal strips rather than full tiles and a rest: 5 vectors are 3 + 2, not 4 + 1, because a one-vector tile
 * has too few sums to hide FMA latency. */
static void accumulate_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const float *p) {
  const int64_t vecs = block->acc_stride / VEC_LANES, strips = (vecs + TILE_VECS - 1) / TILE_VECS;
  float *acc = block->acc + tile_row * block->acc_stride;
  const float *v = block->keys.v + begin * block->keys.v_stride;
  for (int64_t strip = 0, done = 0; strip < strips; strip++) {
    const int64_t next = vecs * (strip + 1) / strips, column = done * VEC_LANES;
    WITH_CONSTANT_VECS(next - done, accumulate_columns, acc + column, block->acc_stride, p, block->score_stride, v + column,
                       block->keys.v_stride, end - begin)
    done = next;
  }
}

/* ---- Rows in, rows out ---- */

static void load_query_row(const row_block *block, int64_t i, float factor) {
  const attn_problem *p = block->problem;
  float *q = block->q + i * p->dim_qk;
  const int64_t offset = attn_q_offset(p, block->seq, block->b, block->head, block->first_row + i);
  for (int64_t d = 0; d < p->dim_qk; d++)
    q[d] = factor * attn_load_f32(block->args->q, p->dtype_q, offset + d * p->q_stride.d);
}

static void load_dense_query_row(const row_block *block, int64_t i, float factor) {
  const int64_t dim_qk = block->problem->dim_qk;
  const float *from =
      (const float *)block->args->q + attn_q_offset(block->problem, block->seq, block->b, block->head, block->first_row + i);
  float *q = block->q + i * dim_qk;
  int64_t d = 0;
  for (; d + VEC_LANES <= dim_qk; d += VEC_LANES) vec_store(q + d, vec_mul(vec_set1(factor), vec_load(from + d)));
  for (; d < dim_qk; d++) q[d] = factor * from[d];
}

/* Queries times scale log2(e), so that scores come out in log2 units. Rows without keys may hold anything and are not read. */
static void load_queries(const row_block *block, int64_t capacity) {
  const attn_problem *p = block->problem;
  const bool dense = p->dtype_q == ATTN_F32 && p->q_stride.d == 1;
  const float factor = p->scale * LOG2_E;
  for (int64_t i = 0; i < capacity; i++) {
    if (i >= block->rows || block->range[i].begin >= block->range[i].end)
      memset(block->q + i * p->dim_qk, 0, (size_t)p->dim_qk * sizeof(float));
    else if (dense)
      load_dense_query_row(block, i, factor);
    else
      load_query_row(block, i, factor);
  }
}

/* Key ranges and state of the rows. Rows beyond the block's last repeat its range, so that they never make a tile an edge. */
static void start_rows(const row_block *block, int64_t capacity) {
  for (int64_t i = 0; i < capacity; i++) {
    block->range[i] = i < block->rows
                          ? attn_allowed_keys(block->problem, block->args, block->seq, block->b, block->first_row + i)
                          : block->range[block->rows - 1];
    block->row_max[i] = -INFINITY;
  }
  memset(block->row_sum, 0, (size_t)(capacity * VEC_LANES) * sizeof(float));
  memset(block->acc, 0, (size_t)(capacity * block->acc_stride) * sizeof(float));
  load_queries(block, capacity);
}

/* Writes one row of dim_v floats by dtype and stride. */
static void store_row(const row_block *block, int64_t i, const float *row) {
  const attn_problem *p = block->problem;
  const int64_t offset = attn_o_offset(p, block->seq, block->b, block->head, block->first_row + i);
  if (p->dtype_o == ATTN_F32 && p->o_stride.d == 1) {
    memcpy((float *)block->args->o + offset, row, (size_t)p->dim_v * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < p->dim_v; d++) attn_store_f32(block->args->o, p->dtype_o, offset + d * p->o_stride.d, row[d]);
}

static void store_lse(const row_block *block, int64_t i, double lse) {
  const attn_problem *p = block->problem;
  if (attn_uses(p, ATTN_USE_LSE))
    block->args->lse[attn_lse_offset(p, block->seq, block->b, block->head, block->first_row + i)] = (float)lse;
}

/* acc[i] = acc[i] / (row_sum + sink); false if the result is not finite. */
static bool divide_row(const row_block *block, int64_t i, float denominator) {
  const vec inverse = vec_set1(1.0f / denominator);
  float *acc = block->acc + i * block->acc_stride;
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and Inf */
  for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES) {
    vec o = vec_mul(vec_load(acc + c), inverse);
    vec_store(acc + c, o);
    poison = vec_fma(o, vec_zero(), poison);
  }
  return !vec_any_nan(poison);
}

/* O = acc / row_sum and LSE = row_max + log(row_sum). A row without keys gives 0 and -inf. A row that did not come out finite
 * (a masked key's NaN met its zero weight, sums of huge values overflowed, or an input is not finite) is computed again on its own
 * in double precision, from its allowed keys alone. */
static void finish_rows(const row_block *block) {
  const attn_problem *p = block->problem;
  for (int64_t i = 0; i < block->rows; i++) {
    float *acc = block->acc + i * block->acc_stride;
    if (block->range[i].begin >= block->range[i].end) {
      memset(acc, 0, (size_t)p->dim_v * sizeof(float));
      store_row(block, i, acc);
      store_lse(block, i, -INFINITY);
      continue;
    }
    const float sum = vec_reduce_add(vec_load(block->row_sum + i * VEC_LANES));
    float denominator = sum;
    if (attn_uses(p, ATTN_USE_SINKS)) denominator += exp2f(block->args->sinks[block->head] * LOG2_E - block->row_max[i]);
    if (sum > 0 && denominator < INFINITY && divide_row(block, i, denominator)) {
      store_row(block, i, acc);
      store_lse(block, i, attn_uses(p, ATTN_USE_LSE) ? LN_2 * (double)block->row_max[i] + log((double)sum) : 0);
    } else {
      attn_exact_row(p, block->args, block->b, block->head, block->first_row + i);
    }
  }
}

#endif
