/* The layers that attnbench knows, and what each must say of itself. */
#ifndef BENCH_LAYER_KINDS_H
#define BENCH_LAYER_KINDS_H

#include "layer.h"

/* One layer's data: rows of x and the weights, as many as the kind asks for. */
typedef struct bench_layer_data {
  const bench_case *bench;
  float *x, *y;   /* [batch x seq][width] */
  float *weights; /* matrices of about unit gain, one behind the other: 1/sqrt(depth) times normal numbers */
  float *biases;  /* a fifth of normal numbers */
  void *oracle;   /* what `expect` keeps from one kernel to the next, until `forget` */
} bench_layer_data;

/* A layer that was made, of any kind, and where its time went. */
typedef struct bench_layer_time {
  double projections_ns, attention_ns, total_ns;
} bench_layer_time;

/* Rows of the output in float64 with their limits: value[i][c] may be missed by limit[i][c]. */
typedef struct bench_layer_rows {
  int64_t count;
  const int64_t *batch, *row; /* of each */
  double *value, *limit;      /* [count][width] */
} bench_layer_rows;

typedef struct bench_layer_kind {
  const char *name;
  int64_t (*weights)(const bench_case *bench); /* numbers in all matrices, and in all biases */
  int64_t (*biases)(const bench_case *bench);
  double (*flops)(const bench_case *bench); /* beside attention */
  /* uniform: attention that looks at all allowed keys alike, the wrong answer that every case must tell from the right one. */
  attn_status (*make)(const bench_layer_data *data, const attn_options *options, bool uniform, void **made);
  void (*unmake)(void *made);
  size_t (*workspace)(const void *made);
  attn_status (*run)(const bench_layer_data *data, void *made, void *workspace, size_t bytes, bench_layer_time *time);
  const char *(*kernel)(const void *made);
  const char *(*product)(const void *made);
  /* False if memory is short. */
  bool (*expect)(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows);
  void (*forget)(bench_layer_data *data);
  bool masks;        /* takes causal masks and windows */
  bool no_attention; /* flops are all of the work */
} bench_layer_kind;

/* layer_mha.c, layer_block.c, and layer_family.c for the rest. */
extern const bench_layer_kind bench_layer_mha, bench_layer_block, bench_layer_decoder, bench_layer_cross,
    bench_layer_feed_forward, bench_layer_add_norm;

/* What the block has in common with the layer inside it. */
int64_t bench_mha_weights(const bench_case *bench);
int64_t bench_mha_biases(const bench_case *bench);
attn_mha_weights bench_mha_weights_of(const bench_layer_data *data);

/* Fills in rows of the mha layer alone. */
bool bench_mha_expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows);
void bench_mha_forget(bench_layer_data *data);

/* NULL if no layer has that name. */
const bench_layer_kind *bench_layer_kind_find(const char *name);

#endif
