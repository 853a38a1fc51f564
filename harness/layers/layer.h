/* SPDX-License-Identifier: MIT */
/* Whole layers as cases: libattn's attention with what stands around it, and the rest of libattn_nn, checked against
 * float64 and timed like a kernel, with the share of the time that each part takes. The second half has what differs
 * between layers; all else is the same for all of them. */
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H

#include "attn/product.h"
#include "cases/layer_info.h"
#include "check/check.h"
#include "kernels/ref/nn_oracle_f64.h"

/* Inputs, weights and the rows to check of one case. */
typedef struct bench_layer bench_layer;

/* The layer made with one kernel. */
typedef struct bench_layer_trial bench_layer_trial;

/* Floating-point operations of one call, those of attention included; 0 where nothing counts. And bytes of input, output and
 * weights, each once. */
double bench_layer_flops(const bench_case *bench);
double bench_layer_bytes(const bench_case *bench);

/* ---- Making, checking, calling ---- */

/* NULL if memory is short. */
bench_layer *bench_layer_open(const bench_case *bench);
void bench_layer_close(bench_layer *layer); /* NULL is fine */

/* Makes the layer with this attention kernel (NULL: the automatic choice), and with the projections of the kernel's tier.
 * ATTN_UNSUPPORTED if the layer asks for what the kernel lacks; every failure leaves a sentence in attn_last_error(). wrong:
 * it gives the layer's wrong answer, with which the check compares. */
attn_status bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel, bool wrong, bench_layer_trial **trial);
void bench_layer_unmake(bench_layer_trial *trial); /* NULL is fine */
size_t bench_layer_workspace(const bench_layer_trial *trial);
const char *bench_layer_product(const bench_layer_trial *trial); /* "" without dense layers */

/* Runs the layer on poisoned output, checks the chosen rows, and checks that two wrong answers would fail: zeros, and the
 * wrong answer of the layer, such as uniform attention. Negated inputs must give another output. */
bench_verdict bench_layer_check(bench_layer_trial *trial, const attn_numerics *numerics, void *workspace, size_t bytes);

/* Functions for timing: one call, its input, and the output before and after it. bench_layer_freshen() gives the layer
 * another of the inputs that the check has seen (`positions` has none); *random changes. The hash of an output is that of
 * the checked one, if it is the output that the check saw on the same input. */
void bench_layer_freshen(bench_layer_trial *trial, uint64_t *random);
attn_status bench_layer_call(bench_layer_trial *trial, void *workspace, size_t bytes);
void bench_layer_poison(bench_layer_trial *trial);
uint64_t bench_layer_output_hash(const bench_layer_trial *trial);

/* Shares of the calls' time, 0..1: dense layers, attention, and what is left. All 0 for layers without projections, which
 * report no parts. */
typedef struct bench_shares {
  double projections, attention, rest;
} bench_shares;
bench_shares bench_layer_shares(const bench_layer_trial *trial);

/* ---- What each layer supplies ------------------------------------------------------------------------------------- */
/* cases/layers.def has its name, and bench_layer_<constant> its functions. Everything else is the same for all layers. */

typedef struct bench_layer_functions bench_layer_functions;

/* How many numbers a layer reads and writes. */
typedef struct bench_layer_shape {
  int64_t inputs;          /* in x, whatever the layer keeps there */
  int64_t inputs_read;     /* for a call: so many, the first; 0: all */
  int64_t rows, columns;   /* y is [batch][rows][columns] */
  int64_t weights, biases; /* in all matrices, and in all biases */
  attn_dtype type_x, type_y, type_weights;
  int64_t places;  /* y has room for so many numbers, and bench_layer_functions.place says where each is; 0: as above */
  int64_t stored;  /* numbers of y that a row fills, those that a block lacks included; 0: as many as columns */
  int64_t factors; /* y has room for so many floats behind its numbers, of which a row writes BENCH_LAYER_FACTORS */
} bench_layer_shape;

enum { BENCH_LAYER_FACTORS = 2 /* a key's and a value's */ };

/* Keys and values that self-attention projects from one sequence of x, in float64: the same for every kernel. */
typedef struct bench_kept {
  int64_t batch;
  attn_nn_field kv[2];
} bench_kept;
void bench_forget(bench_kept *kept);

/* One layer's data, made from the case's seed. */
typedef struct bench_layer_data {
  const bench_layer_functions *functions;
  const bench_case *bench;
  bench_layer_shape shape;
  float *x, *y;     /* x: normal numbers. Both, and the weights, are of the shape's types */
  float *weights;   /* matrices of about unit gain, one behind the other: 1/sqrt(width) times normal numbers */
  float *biases;    /* a fifth of normal numbers */
  bench_kept *kept; /* from one kernel to the next */
  int32_t *pages;   /* in the order in which sequences take them; NULL: the case has none */
} bench_layer_data;

/* Rows of the output in float64 with their limits: value[i][c] may be missed by limit[i][c]. */
typedef struct bench_layer_rows {
  int64_t count;
  const int64_t *batch, *row; /* each output row's */
  double *value, *limit;      /* [count][columns] */
} bench_layer_rows;

/* Inputs that the check sees: x, -x, and both from a later number on. */
enum { BENCH_LAYER_INPUTS = 4, BENCH_LAYER_SHIFT = 16 /* numbers */ };

/* The layer made with one kernel. */
struct bench_layer_trial {
  const bench_layer_data *data;
  bench_layer *of;
  const attn_kernel_info *asked; /* NULL: the automatic choice */
  attn_options options;
  bool wrong;            /* gives the wrong answer of its functions */
  void *layer;           /* made by `create` */
  char kernel[64];       /* kernel of attention; for feed-forward, which has none, the kernel that attention would run */
  char product[40];      /* "" = the layer chooses */
  attn_product *example; /* made as the layer makes its own: knows the product's name; NULL without dense layers */
  attn_mha_profile time; /* where it went, over all calls; whoever times the layer sets it to 0 before */
  uint64_t hash[BENCH_LAYER_INPUTS]; /* hash of the output on each input, from the check */
};

/* The chosen rows of one sequence. */
typedef struct bench_chosen {
  const bench_layer_data *data;
  const attn_numerics *numerics;
  int64_t batch, count;
  const int64_t *row; /* within the sequence */
} bench_chosen;

struct bench_layer_functions {
  bench_layer_shape (*shape)(const bench_case *bench);
  double (*flops)(const bench_case *bench); /* without attention; NULL: two per weight and row, if it has dense layers */
  void (*prepare)(bench_layer_data *data);  /* gives numbers another size, where the layer needs it; or NULL */
  bool names_product;                       /* the layer takes a product's name */
  const char *wrong; /* the wrong answer that every case must tell from the right one; NULL: keys that count alike */
  attn_status (*create)(
      bench_layer_trial *trial); /* sets layer and, where it runs attention, kernel; NULL: nothing outlives a call */
  void (*destroy)(void *layer);  /* takes NULL; NULL where `create` is */
  size_t (*workspace)(const bench_layer_trial *trial); /* NULL: 0 bytes */
  attn_status (*run)(bench_layer_trial *trial, void *workspace, size_t bytes);
  attn_nn_field (*expect)(const bench_chosen *chosen);                                        /* [count][columns] */
  int64_t (*place)(const bench_layer_data *data, int64_t batch, int64_t row, int64_t column); /* in y; NULL: in order */
  /* Multiplies what stands there; NULL: 1. */
  double (*factor)(const bench_layer_data *data, int64_t batch, int64_t row, int64_t column);
};

#define LAYER(constant, ...) extern const bench_layer_functions bench_layer_##constant;
#include "cases/layers.def"

/* ---- For layers in general ---- */

/* rows: batch x seq_q. shape: that of a layer that maps these rows of `width` to rows of `width`. */
int64_t bench_layer_case_rows(const bench_case *bench);
bench_layer_shape bench_layer_rows_to_rows(const bench_case *bench, int64_t weights, int64_t biases);

/* A multiplication and an addition per weight and row. */
double bench_dense_flops(const bench_case *bench, int64_t weights);

/* Ends `create`: takes the layer that it made (NULL: none), and the name of the kernel that runs attention there. Returns
 * the status. */
attn_status bench_layer_made(bench_layer_trial *trial, attn_status status, void *layer, const char *kernel);

/* The product that the layer is to name; NULL: it chooses. */
const char *bench_product_to_name(const bench_layer_trial *trial);

/* A layer with its data and output: layer.c allocates and runs it, layer_check.c checks it. */
enum { BENCH_LAYER_GUARD = 64 /* floats before and behind y */ };

/* Fills y before a call: a NaN, or the least integer. */
unsigned char bench_layer_poison_byte(const bench_layer *layer);
struct bench_layer {
  bench_layer_data data;
  bench_kept kept;
  bench_layer_rows rows; /* to check */
  int64_t *row_memory;
  float *y_memory; /* [guard][y][guard] */
  int64_t y_bytes;
  float *all_x; /* [inputs that a call reads + room for shifts] */
  int input;    /* x is this one now */
};

/* Makes input 0 .. BENCH_LAYER_INPUTS - 1 the present one. */
void bench_layer_choose_input(bench_layer *layer, int input);

/* The factors behind the numbers of y. */
float *bench_layer_factors(const bench_layer_data *data);

/* A hash of the output. */
uint64_t bench_layer_hash_y(const bench_layer *layer);

/* ---- For expected answers ---- */

/* Frees `used`, from which `next` was made, and returns `next`. */
attn_nn_field bench_then(attn_nn_field next, attn_nn_field *used);

/* Attention; frees q, k and v. q and k may be NULL. */
attn_nn_field bench_attend(const attn_nn_attention *attention, attn_nn_field *q, attn_nn_field *k, attn_nn_field *v);

/* The matrices that begin at `at` of the weights. */
const void *bench_weights_at(const bench_layer_data *data, int64_t at);

/* A matrix [in][out] of them, with the bias at `bias_at`. */
attn_linear bench_linear_at(const bench_layer_data *data, int64_t at, int64_t bias_at);
attn_nn_field bench_apply(const attn_nn_field *x, attn_linear linear, int64_t out);

/* Rows `row` of one sequence of base[batch][rows][width], or all of them where row is NULL. */
typedef struct bench_sequence {
  const void *base;
  attn_dtype dtype;
  int64_t rows, width, batch;
} bench_sequence;
attn_nn_field bench_take(bench_sequence from, const int64_t *row, int64_t count);

/* The same of x where x is [batch][seq][width]. */
attn_nn_field bench_chosen_x(const bench_chosen *chosen);
attn_nn_field bench_all_x(const bench_chosen *chosen);

/* ---- Multi-head attention and feed-forward, which other layers contain ---- */

int64_t bench_mha_weights(const bench_case *bench);
int64_t bench_mha_biases(const bench_case *bench);
attn_mha_weights bench_mha_weights_at(const bench_layer_data *data, int64_t at, int64_t bias_at);

/* The self-attention of x, its rows kept in this type. */
attn_nn_field bench_mha_expect(const bench_chosen *chosen, attn_dtype dtype_y);

/* Cross-attention to x, with queries from `batch` sequences of seq_q rows. */
attn_mha_problem bench_cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q);
attn_nn_field bench_cross_expect(const bench_chosen *chosen, const attn_mha_weights *weights, const attn_nn_field *x,
                                 attn_dtype dtype_y);

/* Ends a call of dense layers alone: its time since `begin` is theirs. Returns the status. */
attn_status bench_dense_ran(bench_layer_trial *trial, attn_status status, double begin_ns);

int64_t bench_feed_forward_weights(const bench_case *bench);
int64_t bench_feed_forward_biases(const bench_case *bench);
attn_feed_forward_config bench_feed_forward_at(const bench_layer_data *data, int64_t at, int64_t bias_at);

/* A layer norm whose gain and bias begin at `bias_at` of the biases. */
attn_norm bench_norm_at(const bench_layer_data *data, int64_t bias_at);

#endif
