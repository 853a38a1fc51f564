/* SPDX-License-Identifier: MIT */
/* Gradients at both ends of a language model: embeddings and cross-entropy. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "src/train/tasks.h"

/* ---- Embeddings ---- */

static const attn_struct_layout embedding_layout = ATTN_LAYOUT_GROWN(attn_embedding, stride, dtype_rows);

typedef struct scatter {
  const attn_embedding *e;
  int64_t count;
  const int32_t *tokens;
  const float *d_rows;
  float *d_table;
} scatter;

/* Rows of one token are added in order. */
static void scatter_strip(void *context, int64_t strip, int worker) {
  const scatter *s = context;
  (void)worker;
  const int64_t first = strip * TRAIN_STRIP, count = min64(TRAIN_STRIP, s->e->width - first);
  const int64_t stride = s->e->stride ? s->e->stride : s->e->width;
  const float factor = s->e->factor != 0 ? s->e->factor : 1;
  for (int64_t i = 0; i < s->count; i++) {
    const float *from = s->d_rows + i * s->e->width + first;
    float *to = s->d_table + s->tokens[i] * stride + first;
    for (int64_t c = 0; c < count; c++) to[c] += factor * from[c];
  }
}

attn_status attn_embed_grad(const attn_embedding *embedding, int64_t count, const int32_t *tokens, const float *d_rows,
                            float *d_table, const attn_options *options) {
  attn_embedding e;
  attn_status status = attn_nn_read(&embedding_layout, "embedding", embedding, &e);
  if (status != ATTN_OK) return status;
  const attn_nn_size sizes[] = {{"count", count, 0}, {"attn_embedding.width", e.width, 1}};
  const attn_nn_pointer pointers[] = {{"tokens", tokens}, {"d_rows", d_rows}, {"d_table", d_table}};
  status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(e.stride == 0 || e.stride >= e.width,
          "attn_embedding.stride is %" PRId64 "; it must be at least %" PRId64 ", the width, or 0", e.stride, e.width);
  for (int64_t i = 0; i < count; i++)
    REQUIRE(tokens[i] >= 0 && tokens[i] < e.vocabulary, "tokens[%" PRId64 "] is %" PRId32 "; it must lie in 0..%" PRId64, i,
            tokens[i], e.vocabulary - 1);
  scatter s = {&e, count, tokens, d_rows, d_table};
  return attn_train_tasks(options, 3 * count * e.width, ceil_div(e.width, TRAIN_STRIP), scatter_strip, &s);
}

/* ---- Cross-entropy ---- */

static const attn_struct_layout entropy_layout = ATTN_LAYOUT(attn_cross_entropy, smoothing);

typedef struct entropy_run {
  const attn_cross_entropy *e;
  int64_t block; /* rows in a task */
  float factor;  /* multiplies gradients */
  double *losses;
  attn_exponentials_function exponentials;
} entropy_run;

static double sum_of(const float *x, int64_t count) {
  double chains[8] = {0}, sum = 0;
  for (int64_t i = 0; i < count; i++) chains[i % 8] += (double)x[i];
  for (int c = 0; c < 8; c++) sum += chains[c];
  return sum;
}

static double entropy_row(const entropy_run *r, int64_t row) {
  const attn_cross_entropy *e = r->e;
  const float *logits = e->logits + row * e->classes, smoothing = e->smoothing;
  float *d = e->d_logits ? e->d_logits + row * e->classes : NULL;
  const int32_t target = e->targets[row];
  if (target < 0) {
    for (int64_t c = 0; d && c < e->classes; c++) d[c] = 0;
    return 0;
  }
  const double at_target = (double)logits[target];
  const double mean =
      smoothing > 0 ? sum_of(logits, e->classes) / (double)e->classes : 0; /* before d, which may be logits */
  double sum;
  const float most = r->exponentials(logits, e->classes, d, &sum);
  const double lse = (double)most + log(sum);
  const float scale = (float)((double)r->factor / sum), even = r->factor * smoothing / (float)e->classes;
  for (int64_t c = 0; d && c < e->classes; c++) d[c] = d[c] * scale - even;
  if (d) d[target] -= r->factor * (1 - smoothing);
  return lse - (1 - (double)smoothing) * at_target - (smoothing > 0 ? (double)smoothing * mean : 0);
}

static void entropy_rows(void *context, int64_t block, int worker) {
  const entropy_run *r = context;
  (void)worker;
  for (int64_t row = block * r->block; row < min64((block + 1) * r->block, r->e->rows); row++)
    r->losses[row] = entropy_row(r, row);
}

static attn_status check_entropy(const attn_cross_entropy *e, const double *loss, int64_t *counted) {
  const attn_nn_size sizes[] = {{"attn_cross_entropy.rows", e->rows, 0}, {"attn_cross_entropy.classes", e->classes, 1}};
  const attn_nn_pointer pointers[] = {{"attn_cross_entropy.logits", e->logits}, {"attn_cross_entropy.targets", e->targets}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK && e->rows > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(loss, "loss is NULL; it must point to a double");
  REQUIRE(e->smoothing >= 0 && e->smoothing <= 1, "attn_cross_entropy.smoothing is %g; it must be in 0..1",
          (double)e->smoothing);
  REQUIRE(isfinite(e->factor), "attn_cross_entropy.factor is %g; it must be finite", (double)e->factor);
  *counted = 0;
  for (int64_t r = 0; r < e->rows; r++) {
    REQUIRE(e->targets[r] < e->classes,
            "attn_cross_entropy.targets[%" PRId64 "] is %" PRId32 "; it must be below %" PRId64 ", the classes", r,
            e->targets[r], e->classes);
    *counted += e->targets[r] >= 0;
  }
  return ATTN_OK;
}

attn_status attn_cross_entropy_run(const attn_cross_entropy *entropy, const attn_options *options, double *loss) {
  attn_cross_entropy e;
  int64_t counted = 0;
  attn_status status = attn_nn_read(&entropy_layout, "entropy", entropy, &e);
  if (status == ATTN_OK) status = check_entropy(&e, loss, &counted);
  if (status != ATTN_OK) return status;
  const attn_row_gradients *functions = attn_row_gradients_choose(options);
  if (!functions) return ATTN_INVALID_ARGUMENT;
  double *losses = attn_nn_allocate("losses of rows", (size_t)e.rows * sizeof *losses);
  if (!losses) return ATTN_OUT_OF_MEMORY;
  const double share = e.sum || counted == 0 ? 1 : 1 / (double)counted;
  entropy_run r = {&e, max64(1, TRAIN_BLOCK / e.classes), (float)((double)(e.factor != 0 ? e.factor : 1) * share), losses,
                   functions->exponentials};
  status = attn_train_tasks(options, 8 * e.rows * e.classes, ceil_div(e.rows, r.block), entropy_rows, &r);
  double sum = 0;
  for (int64_t i = 0; status == ATTN_OK && i < e.rows; i++) sum += losses[i];
  if (status == ATTN_OK) *loss = sum * share;
  attn_aligned_free(losses);
  return status;
}
