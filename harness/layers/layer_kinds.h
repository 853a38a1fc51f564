/* SPDX-License-Identifier: MIT */
/* The layers that attnbench knows, and what each must say of itself. */
#ifndef BENCH_LAYER_KINDS_H
#define BENCH_LAYER_KINDS_H

#include "layers/layer.h"

typedef struct bench_layer_kind bench_layer_kind;

/* How many numbers a layer reads and writes. */
typedef struct bench_layer_shape {
  int64_t inputs;          /* in x, whatever the kind keeps there */
  int64_t rows, columns;   /* y is [batch][rows][columns] */
  int64_t weights, biases; /* in all matrices, and in all biases */
} bench_layer_shape;

/* One layer's data, all of it numbers from the case's seed. */
typedef struct bench_layer_data {
  const bench_layer_kind *kind;
  const bench_case *bench;
  bench_layer_shape shape;
  float *x, *y;   /* normal numbers */
  float *weights; /* matrices of about unit gain, one behind the other: 1/sqrt(width) times normal numbers */
  float *biases;  /* a fifth of normal numbers */
  void *oracle;   /* what `expect` keeps from one kernel to the next, until `forget` */
} bench_layer_data;

/* Where the time of a layer went. */
typedef struct bench_layer_time {
  double projections_ns, attention_ns, total_ns;
} bench_layer_time;

/* Rows of the output in float64 with their limits: value[i][c] may be missed by limit[i][c]. */
typedef struct bench_layer_rows {
  int64_t count;
  const int64_t *batch, *row; /* of each */
  double *value, *limit;      /* [count][columns] */
} bench_layer_rows;

/* The value that an axis has for a layer where none is given; fixed: and no other makes sense. */
typedef struct bench_layer_axis {
  bench_axis axis;
  const char *value;
  bool fixed;
} bench_layer_axis;

enum { BENCH_LAYER_MOST_AXES = 4 };

/* What a layer has, of what axes and columns speak. */
typedef enum bench_layer_has {
  BENCH_HAS_WIDTH = 1 << 0,       /* rows of `width` go in or come out */
  BENCH_HAS_HEADS = 1 << 1,       /* heads and head_dim; without: they mean nothing */
  BENCH_HAS_GROUPS = 1 << 2,      /* heads may share keys and values */
  BENCH_HAS_LENGTHS = 1 << 3,     /* seq_q and seq_k may differ */
  BENCH_HAS_PAST = 1 << 11,       /* seq_k counts the seq_q new tokens and those before them */
  BENCH_HAS_CAUSAL = 1 << 4,      /* a causal mask, aligned top-left */
  BENCH_HAS_MASKS = 1 << 5,       /* any causal mask, and windows */
  BENCH_HAS_SCALE = 1 << 6,       /* of dot scores */
  BENCH_HAS_ATTENTION = 1 << 7,   /* runs a kernel */
  BENCH_HAS_PROJECTIONS = 1 << 8, /* dense layers, with a profile that tells their time from the rest */
  BENCH_HAS_PLAN = 1 << 9,        /* is made once and run many times */
  BENCH_HAS_WORKSPACE = 1 << 10,  /* the caller's; otherwise what a call needs is its own affair */
  /* What the layers of attn/mha.h and most of attn/nn.h have in common. */
  BENCH_HAS_DENSE = BENCH_HAS_PROJECTIONS | BENCH_HAS_PLAN | BENCH_HAS_WORKSPACE,
} bench_layer_has;

struct bench_layer_kind {
  const char *name;
  unsigned has; /* bench_layer_has */
  bench_layer_axis axes[BENCH_LAYER_MOST_AXES];
  bench_layer_shape (*shape)(const bench_case *bench);
  double (*flops)(const bench_case *bench); /* beside attention; NULL = none */
  void (*prepare)(bench_layer_data *data);  /* gives numbers another size, where the kind needs it; or NULL */
  const char *wrong;                        /* the wrong answer that every case must tell from the right one */
  /* wrong: the layer that gives that answer. */
  attn_status (*make)(const bench_layer_data *data, const attn_options *options, bool wrong, void **made);
  void (*unmake)(void *made);
  size_t (*workspace)(const void *made);
  attn_status (*run)(const bench_layer_data *data, void *made, void *workspace, size_t bytes, bench_layer_time *time);
  const char *(*kernel)(const void *made);  /* "" without attention or dense layers */
  const char *(*product)(const void *made); /* "" without dense layers */
  /* False if memory is short. */
  bool (*expect)(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows);
  void (*forget)(bench_layer_data *data); /* NULL: nothing is kept */
  const struct bench_family *family;      /* of the kinds that share layer_family.c */
};

/* layer_mha.c, layer_block.c; then layer_transformer.c, layer_scores.c, layer_synthesizer.c and layer_sequence.c. */
extern const bench_layer_kind bench_layer_mha, bench_layer_block;
extern const bench_layer_kind bench_layer_decoder, bench_layer_cross, bench_layer_feed_forward, bench_layer_add_norm;
extern const bench_layer_kind bench_layer_additive, bench_layer_regression;
extern const bench_layer_kind bench_layer_synthesizer_dense, bench_layer_synthesizer_random;
extern const bench_layer_kind bench_layer_positions, bench_layer_decode_step;

/* Of a case: NULL for plain attention. By name: NULL if no layer has it. */
const bench_layer_kind *bench_layer_kind_of(const bench_case *bench);
const bench_layer_kind *bench_layer_kind_find(const char *name);

/* batch x seq_q, and the shape of a layer that maps as many rows of `width` to rows of `width`. */
int64_t bench_layer_case_rows(const bench_case *bench);
bench_layer_shape bench_layer_rows_to_rows(const bench_case *bench, int64_t weights, int64_t biases);

/* What layers have in common with the multi-head attention inside them. */
int64_t bench_mha_weights(const bench_case *bench);
int64_t bench_mha_biases(const bench_case *bench);
attn_mha_weights bench_mha_weights_of(const bench_layer_data *data);

/* Fills in rows of the mha layer alone. */
bool bench_mha_expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows);
void bench_mha_forget(bench_layer_data *data);

/* A job whose answer is the kind's wrong one, as the check makes it for comparison. */
attn_status bench_layer_make_wrong(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_job **job);

#endif
