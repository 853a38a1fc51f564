/* SPDX-License-Identifier: MIT */
/* Rows of tokens: sinusoidal positions, embeddings, pooling. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "src/api/float_mode.h"
#include "src/nn/check.h"

/* ---- Positions ---- */

/* In float32 the phase of a position of a million would be lost. */
attn_status attn_sinusoidal_positions(int64_t first, int64_t rows, int64_t width, float *out) {
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"width", width, 1}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(first >= 0 && first <= ((int64_t)1 << 31) - rows,
          "first is %" PRId64 " with %" PRId64 " rows; positions must lie within 0..2^31", first, rows);
  REQUIRE(out || rows == 0, "out is NULL; it must point to its elements");
  if (rows == 0) return ATTN_OK; /* not a loop over `width` columns that writes nothing */
  const uint64_t mode = attn_float_mode_enter();
  for (int64_t column = 0; column < width; column++) {
    const double frequency = pow(10000.0, -(double)(column - column % 2) / (double)width);
    for (int64_t row = 0; row < rows; row++) {
      const double angle = (double)(first + row) * frequency;
      out[row * width + column] = (float)(column % 2 ? cos(angle) : sin(angle));
    }
  }
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

/* ---- Embeddings ---- */

static const attn_struct_layout embedding_layout = ATTN_LAYOUT_GROWN(attn_embedding, stride, dtype_rows);

static attn_status check_embedding(const attn_embedding *e, int64_t count) {
  const attn_nn_size table[] = {{"attn_embedding.vocabulary", e->vocabulary, 1},
                                {"attn_embedding.stride", e->stride > e->width ? e->stride : e->width, 1}};
  const attn_nn_size rows[] = {{"count", count, 0}, {"attn_embedding.width", e->width, 1}};
  attn_status status = attn_nn_check_sizes(rows, NN_COUNT(rows));
  if (status == ATTN_OK) status = attn_nn_check_sizes(table, NN_COUNT(table));
  if (status != ATTN_OK) return status;
  REQUIRE(attn_dtype_is_float(e->dtype), "attn_embedding.dtype is %d; it must be " ATTN_FLOAT_CONSTANTS, (int)e->dtype);
  REQUIRE(attn_dtype_is_float(e->dtype_rows), "attn_embedding.dtype_rows is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)e->dtype_rows);
  REQUIRE(e->stride == 0 || e->stride >= e->width,
          "attn_embedding.stride is %" PRId64 "; it must be at least %" PRId64 ", the width, or 0", e->stride, e->width);
  REQUIRE(isfinite(e->factor), "attn_embedding.factor is %g; it must be finite", (double)e->factor);
  return ATTN_OK;
}

static void embed_row(const attn_embedding *e, int64_t first, float factor, void *rows, int64_t at) {
  const attn_storage table = {e->table, e->dtype};
  if (e->dtype_rows == ATTN_F32) { /* from float32, a loop for vectors */
    const float *from = e->table;
    float *to = (float *)rows + at;
    for (int64_t i = 0; i < e->width; i++)
      to[i] = factor * (e->dtype == ATTN_F32 ? from[first + i] : attn_load_f32(table, first + i));
  } else {
    for (int64_t i = 0; i < e->width; i++)
      attn_store_f32(rows, e->dtype_rows, at + i, factor * attn_load_f32(table, first + i));
  }
}

attn_status attn_embed(const attn_embedding *embedding, int64_t count, const int32_t *tokens, void *rows) {
  attn_embedding e = {0};
  attn_status status = attn_nn_read(&embedding_layout, "embedding", embedding, &e);
  if (status == ATTN_OK) status = check_embedding(&e, count);
  const attn_nn_pointer pointers[] = {{"attn_embedding.table", e.table}, {"tokens", tokens}, {"rows", rows}};
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  for (int64_t i = 0; i < count; i++)
    REQUIRE(tokens[i] >= 0 && tokens[i] < e.vocabulary, "tokens[%" PRId64 "] is %" PRId32 "; it must lie in 0..%" PRId64, i,
            tokens[i], e.vocabulary - 1);
  const int64_t stride = e.stride ? e.stride : e.width;
  const uint64_t mode = attn_float_mode_enter();
  for (int64_t i = 0; i < count; i++) embed_row(&e, tokens[i] * stride, e.factor != 0 ? e.factor : 1, rows, i * e.width);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

/* ---- Pooling ---- */

static const attn_struct_layout pooling_layout = ATTN_LAYOUT_GROWN(attn_pooling, lengths, dtype);

static attn_status check_pooling_lengths(const attn_pooling *p) {
  REQUIRE(!p->lengths || !p->cu_seqlens,
          "attn_pooling has lengths and cu_seqlens; padded sequences take the first, packed "
          "ones the second");
  for (int64_t b = 0; p->lengths && b < p->batch; b++)
    REQUIRE(p->lengths[b] >= 0 && p->lengths[b] <= p->seq,
            "attn_pooling.lengths[%" PRId64 "] is %" PRId32 "; it must lie in 0..%" PRId64, b, p->lengths[b], p->seq);
  for (int64_t b = 0; p->cu_seqlens && b <= p->batch; b++)
    REQUIRE(b ? p->cu_seqlens[b] >= p->cu_seqlens[b - 1] : p->cu_seqlens[0] == 0,
            "attn_pooling.cu_seqlens[%" PRId64 "] is %" PRId32 "; the starts must ascend from 0", b, p->cu_seqlens[b]);
  return ATTN_OK;
}

static attn_status check_pooling(const attn_pooling *p) {
  const attn_nn_size sizes[] = {{"attn_pooling.batch", p->batch, 0},
                                {"attn_pooling.seq", p->cu_seqlens ? 1 : p->seq, 0},
                                {"attn_pooling.width", p->width, 1}};
  const attn_nn_pointer pointers[] = {{"attn_pooling.y", p->y}, {"attn_pooling.x", p->x}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(p->kind == ATTN_POOL_MEAN || p->kind == ATTN_POOL_FIRST,
          "attn_pooling.kind is %d; it must be ATTN_POOL_MEAN or ATTN_POOL_FIRST", (int)p->kind);
  REQUIRE(attn_dtype_is_float(p->dtype), "attn_pooling.dtype is %d; it must be " ATTN_FLOAT_CONSTANTS, (int)p->dtype);
  if (p->batch > 0) status = attn_nn_check_pointers(pointers, p->cu_seqlens || p->seq > 0 ? 2 : 1);
  return status == ATTN_OK ? check_pooling_lengths(p) : status;
}

/* Columns whose sums fit the stack: rows are read in pieces of them. */
enum { POOLED_COLUMNS = 256 };

/* Adds `count` elements from `at` on to the sums. */
static void add_elements(attn_storage x, int64_t at, int64_t count, double *sums) {
  const float *floats = x.data;
  if (x.dtype == ATTN_F32)
    for (int64_t i = 0; i < count; i++) sums[i] += (double)floats[at + i];
  else
    for (int64_t i = 0; i < count; i++) sums[i] += (double)attn_load_f32(x, at + i);
}

/* y = the mean of the rows from element `at` on. Returns the sum of its squares. */
static double mean_of(attn_storage x, int64_t at, int64_t rows, int64_t width, float *y) {
  double squares = 0;
  for (int64_t first = 0; first < width; first += POOLED_COLUMNS) {
    const int64_t columns = width - first < POOLED_COLUMNS ? width - first : POOLED_COLUMNS;
    double sums[POOLED_COLUMNS] = {0};
    for (int64_t row = 0; row < rows; row++) add_elements(x, at + row * width + first, columns, sums);
    for (int64_t i = 0; i < columns; i++) {
      const double mean = sums[i] / (double)rows;
      y[first + i] = (float)mean;
      squares += mean * mean;
    }
  }
  return squares;
}

attn_status attn_pool_rows(const attn_pooling *pooling) {
  attn_pooling p;
  attn_status status = attn_nn_read(&pooling_layout, "pooling", pooling, &p);
  if (status == ATTN_OK) status = check_pooling(&p);
  if (status != ATTN_OK) return status;
  const uint64_t mode = attn_float_mode_enter();
  for (int64_t b = 0; b < p.batch; b++) {
    const int64_t first = p.cu_seqlens ? p.cu_seqlens[b] : b * p.seq, all = p.lengths ? p.lengths[b] : p.seq,
                  rows = p.cu_seqlens ? p.cu_seqlens[b + 1] - first : all;
    float *y = p.y + b * p.width;
    memset(y, 0, (size_t)p.width * sizeof *y);
    const int64_t taken = p.kind == ATTN_POOL_FIRST ? 1 : rows;
    const double squares = rows > 0 ? mean_of((attn_storage){p.x, p.dtype}, first * p.width, taken, p.width, y) : 0;
    for (int64_t i = 0; p.unit && squares > 0 && i < p.width; i++) y[i] = (float)((double)y[i] / sqrt(squares));
  }
  attn_float_mode_leave(mode);
  return ATTN_OK;
}
