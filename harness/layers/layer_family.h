/* SPDX-License-Identifier: MIT */
/* What most layers of libattn_nn share as benchmark cases: how they are made, named and compared. A kind adds create, run and expect;
 * layer_mha.c and layer_block.c, whose oracles keep state, do without. */
#ifndef BENCH_LAYER_FAMILY_H
#define BENCH_LAYER_FAMILY_H

#include "attn/nn.h"
#include "attn/product.h"
#include "layers/layer_kinds.h"
#include "src/nn/ref/nn_oracle_f64.h"

/* A layer that was made. */
typedef struct bench_made {
  const bench_layer_data *data;
  void *layer;
  bool wrong; /* gives the wrong answer of its kind */
  attn_options options;
  char kernel[64];       /* of feed-forward: the one that attention would have run, as a label of the tier */
  attn_product *example; /* made as the layer makes its own: knows the name; NULL without dense layers */
} bench_made;

/* The chosen rows of one sequence. */
typedef struct bench_chosen {
  const bench_layer_data *data;
  const attn_numerics *numerics;
  int64_t batch, count;
  const int64_t *row; /* within the sequence */
  attn_nn_field mha;  /* with after_mha: the self-attention of the rows */
} bench_chosen;

typedef struct bench_family {
  attn_status (*create)(bench_made *made);     /* NULL: nothing outlives a call */
  void (*destroy)(void *layer);                /* NULL: likewise */
  size_t (*workspace)(const bench_made *made); /* NULL: 0 */
  attn_status (*run)(bench_made *made, void *workspace, size_t bytes, bench_layer_time *time);
  attn_nn_field (*expect)(const bench_chosen *chosen); /* [count][columns] */
  bool after_mha;
} bench_family;

/* Members of bench_layer_kind. */
attn_status bench_family_make(const bench_layer_data *data, const attn_options *options, bool wrong, void **made);
void bench_family_unmake(void *made);
size_t bench_family_workspace(const void *made);
attn_status bench_family_run(const bench_layer_data *data, void *made, void *workspace, size_t bytes,
                             bench_layer_time *time);
const char *bench_family_kernel(const void *made);
const char *bench_family_product(const void *made);
bool bench_family_expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows);

#define BENCH_FAMILY_MEMBERS                                                                                              \
  .make = bench_family_make, .unmake = bench_family_unmake, .workspace = bench_family_workspace, .run = bench_family_run, \
  .kernel = bench_family_kernel, .product = bench_family_product, .expect = bench_family_expect

/* ---- For the kinds ---- */

void bench_add_times(bench_layer_time *time, const attn_mha_profile *profile);

/* `next`, which was made from `used`, which is given up. */
attn_nn_field bench_then(attn_nn_field next, attn_nn_field *used);

/* [in][out] at `at` of the weights, with the bias at `bias_at`. */
attn_linear bench_linear_at(const bench_layer_data *data, int64_t at, int64_t bias_at);
attn_nn_field bench_apply(const attn_nn_field *x, attn_linear linear, int64_t out);

/* Rows `row` of one sequence of base[batch][rows][width], or all of them where row is NULL. */
typedef struct bench_sequence {
  const float *base;
  int64_t rows, width, batch;
} bench_sequence;
attn_nn_field bench_take(bench_sequence from, const int64_t *row, int64_t count);

/* The same of x where x is [batch][seq][width]. */
attn_nn_field bench_chosen_x(const bench_chosen *chosen);
attn_nn_field bench_all_x(const bench_chosen *chosen);

#endif
