/* SPDX-License-Identifier: MIT */
/* Multi-head attention: four dense layers around one attention plan (include/attn/mha.h).
 *
 * Q, K, V and O lie in the workspace as [batch][heads][seq][dim], so the keys of a head are adjacent. The products address
 * heads by strides: the projections write Q, K and V in this order and the last one reads O in it, without a transpose. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/product.h"
#include "kernels/common/memory/memory.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"
#include "src/api/wall_clock.h"
#include "src/layers/head_norm.h"
#include "src/layers/identity.h"
#include "src/layers/mha_problem.h"
#include "src/layers/mha_weights.h"
#include "src/plan/own_options.h"

static const attn_struct_layout options_layout = ATTN_LAYOUT(attn_mha_options, product);
static const attn_struct_layout args_layout = ATTN_LAYOUT_GROWN(attn_mha_args, attention, projected_k);

enum { WEIGHT_COLUMNS = 256 }; /* keys whose weights attn_mha_attention_weights computes in one pass */

struct attn_mha {
  attn_mha_problem problem; /* with the strides of q, k, v and o filled in */
  attn_options options;     /* the attention's, for attn_mha_reshape() */
  attn_option_names names;
  attn_product *product[PROJECTIONS];      /* shared by the layers of other shapes */
  attn_head_norm norm;                     /* norms of the heads of Q and K */
  attn_plan *attention, *weights;          /* weights: NULL unless wanted */
  int64_t q_at, k_at, v_at, o_at, rest_at; /* parts of the workspace: Q, K, V, O and the memory of the steps */
  size_t workspace_bytes;
  size_t rest_bytes; /* bytes of the product or plan that needs most */
  char description[3400];
};

/* attn_mha_options, read. */
typedef struct layer_options {
  attn_options attention, products;
} layer_options;

static bool uses(const attn_mha_problem *p, uint32_t use) { return (p->attention.uses & use) != 0; }

/* Rows of x and y, or of the memory, of all sequences. */
static int64_t all_rows(const attn_mha *layer, bool queries) {
  const row_count rows = attn_mha_rows(&layer->problem, queries);
  return rows.batch * rows.rows;
}

/* The caller's options; NULL is the default. */
static attn_status read_options(const attn_mha_options *theirs, layer_options *options) {
  attn_mha_options own = ATTN_STRUCT(attn_mha_options, .product = NULL);
  attn_status status = theirs ? attn_struct_read(&options_layout, theirs, &own) : ATTN_OK;
  if (status == ATTN_OK) status = attn_options_read(own.attention, &options->attention);
  options->products = options->attention;
  options->products.kernel = own.product;
  return status;
}

/* ---- Weights ---- */

static attn_status pack_weights(attn_mha *layer, const attn_mha_weights *weights, const attn_options *options) {
  const attn_status status = attn_mha_pack_weights(&layer->problem, weights, options, layer->product);
  return status == ATTN_OK ? attn_head_norm_create(weights, layer->problem.attention.dim_qk, options, &layer->norm) : status;
}

/* ---- Plans ---- */

/* With the identity as V (identity.h) the output is P. The plan computes WEIGHT_COLUMNS of its columns at a time. */
static attn_status plan_weights(attn_mha *layer) {
  if (!layer->problem.want_weights || layer->problem.attention.seq_k == 0) return ATTN_OK;
  const attn_score_strides stride = layer->problem.weights_stride;
  attn_problem p = layer->problem.attention;
  p.dim_v = min64(p.seq_k, WEIGHT_COLUMNS);
  p.v_stride = attn_identity_strides;
  p.o_stride = (attn_strides){.b = stride.b, .h = stride.h, .s = stride.q, .d = stride.k};
  p.dtype_o = ATTN_F32;
  p.uses &= ~(uint32_t)ATTN_USE_LSE;
  attn_options automatic = layer->options;
  attn_status status = attn_plan_create(&p, &automatic, &layer->weights);
  if (status != ATTN_UNSUPPORTED) return status;
  automatic.kernel = NULL; /* the named kernel may refuse these strides */
  return attn_plan_create(&p, &automatic, &layer->weights);
}

static void want(size_t *bytes, size_t needed) { *bytes = needed > *bytes ? needed : *bytes; }

/* In whole cache lines. */
static int64_t identity_bytes(const attn_mha *layer) {
  const attn_problem *a = &layer->problem.attention;
  return layer->weights ? round_up((int64_t)attn_identity_bytes(a->seq_k, a->dtype_kv), ATTN_MEMORY_ALIGN) : 0;
}

/* [Q][K][V][O][memory of one product or plan at a time; if weights are wanted, the identity and then the plan's memory] */
static attn_status lay_out_workspace(attn_mha *layer) {
  const attn_problem *a = &layer->problem.attention;
  const int64_t queries = all_rows(layer, true), keys = all_rows(layer, false);
  const memory_part parts[] = {{&layer->q_at, queries, attn_elements_bytes(a->dtype_q, a->heads_q * a->dim_qk)},
                               {&layer->k_at, keys, attn_elements_bytes(a->dtype_kv, a->heads_kv * a->dim_qk)},
                               {&layer->v_at, keys, attn_elements_bytes(a->dtype_kv, a->heads_kv * a->dim_v)},
                               {&layer->o_at, queries, attn_elements_bytes(a->dtype_o, a->heads_q * a->dim_v)}};
  if (!LAY_OUT(parts, &layer->rest_at))
    return attn_fail(ATTN_UNSUPPORTED, "the workspace of this layer exceeds the address space; take a smaller batch or seq");
  for (int i = 0; i < PROJECTIONS; i++)
    want(&layer->rest_bytes, attn_product_workspace(layer->product[i], i == PROJECT_Q || i == PROJECT_OUT ? queries : keys));
  want(&layer->rest_bytes, attn_plan_workspace(layer->attention));
  if (layer->weights) want(&layer->rest_bytes, attn_plan_workspace(layer->weights) + (size_t)identity_bytes(layer));
  layer->workspace_bytes = (size_t)layer->rest_at + layer->rest_bytes;
  return ATTN_OK;
}

static attn_status describe(attn_mha *layer) {
  const char *attention = attn_plan_describe(layer->attention);
  const attn_problem *a = &layer->problem.attention;
  snprintf(layer->description, sizeof layer->description,
           "layer      width %" PRId64 " and %" PRId64 " to %" PRId64 ", %" PRId64 " heads on %" PRId64
           ", head dimensions %" PRId64 " and %" PRId64
           "\n"
           "products   %s\n"
           "workspace  %zu bytes: %" PRId64
           " of Q, K, V and O, %zu to work in\n"
           "attention:\n%s",
           layer->problem.width, layer->problem.width_memory, layer->problem.width_out, a->heads_q, a->heads_kv, a->dim_qk,
           a->dim_v, attn_product_name(layer->product[0]), layer->workspace_bytes, layer->rest_at, layer->rest_bytes,
           attention);
  return *attention ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the description of a layer");
}

/* A layer that has a problem and options only. NULL, with the sentence set, if there is no memory. */
static attn_mha *new_layer(const attn_mha_problem *problem, const attn_options *options) {
  attn_mha *layer = calloc(1, sizeof *layer);
  if (!layer) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mha needs %zu bytes", sizeof *layer), NULL;
  layer->problem = *problem;
  layer->options = *options;
  attn_own_options(&layer->options, &layer->names);
  return layer;
}

static attn_status plan_attention(attn_mha *layer) {
  const attn_status status = attn_plan_create(&layer->problem.attention, &layer->options, &layer->attention);
  return status == ATTN_OK ? plan_weights(layer) : status;
}

/* Once it has its plans and products. Frees it on failure. */
static attn_status finish_layer(attn_mha *layer, attn_status status, attn_mha **result) {
  if (status == ATTN_OK) status = lay_out_workspace(layer);
  if (status == ATTN_OK) status = describe(layer);
  if (status == ATTN_OK)
    *result = layer;
  else
    attn_mha_destroy(layer);
  return status;
}

attn_status attn_mha_create(const attn_mha_problem *problem, const attn_mha_weights *weights,
                            const attn_mha_options *options, attn_mha **layer) {
  REQUIRE(layer, "layer is NULL; it must point to where the layer's address goes");
  *layer = NULL;
  attn_mha_problem p;
  attn_mha_weights w;
  layer_options wanted;
  attn_status status = attn_mha_read_problem(problem, &p);
  if (status == ATTN_OK) status = attn_mha_read_weights(&p, weights, &w);
  if (status == ATTN_OK) status = read_options(options, &wanted);
  if (status != ATTN_OK) return status;
  attn_mha *made = new_layer(&p, &wanted.attention);
  if (!made) return ATTN_OUT_OF_MEMORY;
  status = plan_attention(made);
  if (status == ATTN_OK) status = pack_weights(made, &w, &wanted.products);
  return finish_layer(made, status, layer);
}

attn_status attn_mha_reshape(const attn_mha *layer, const attn_mha_problem *problem, attn_mha **reshaped) {
  REQUIRE(reshaped, "reshaped is NULL; it must point to where the layer's address goes");
  *reshaped = NULL;
  REQUIRE(layer, "layer is NULL; it must come from attn_mha_create");
  attn_mha_problem p;
  attn_status status = attn_mha_read_problem(problem, &p);
  if (status == ATTN_OK) status = attn_mha_check_same_weights(&layer->problem, &p);
  if (status != ATTN_OK) return status;
  attn_mha *made = new_layer(&p, &layer->options);
  if (!made) return ATTN_OUT_OF_MEMORY;
  for (int i = 0; i < PROJECTIONS; i++) made->product[i] = attn_product_share(layer->product[i]);
  status = attn_head_norm_copy(&layer->norm, &made->norm);
  return finish_layer(made, status == ATTN_OK ? plan_attention(made) : status, reshaped);
}

void attn_mha_destroy(attn_mha *layer) {
  if (!layer) return;
  for (int i = 0; i < PROJECTIONS; i++) attn_product_destroy(layer->product[i]);
  attn_head_norm_destroy(&layer->norm);
  attn_plan_destroy(layer->attention);
  attn_plan_destroy(layer->weights);
  free(layer);
}

size_t attn_mha_workspace(const attn_mha *layer) { return layer ? layer->workspace_bytes : 0; }
const char *attn_mha_describe(const attn_mha *layer) { return layer ? layer->description : ""; }
const char *attn_mha_kernel(const attn_mha *layer) { return layer ? attn_plan_kernel(layer->attention) : ""; }
const char *attn_mha_product(const attn_mha *layer) { return layer ? attn_product_name(layer->product[0]) : ""; }

/* ---- Running ---- */

/* The arguments of one run, read. */
typedef struct layer_args {
  attn_mha_args args;
  attn_args attention;
} layer_args;

/* One run: its arguments, and the parts of its workspace. */
typedef struct layer_run {
  const attn_mha *layer;
  const layer_args *given;
  const void *memory;
  attn_strides memory_stride;
  void *q, *k, *v, *o;
  char *rest;
} layer_run;

/* Norms the heads of `rows` tokens that a projection gave, if it is that of Q or K. */
static attn_status norm_heads(const attn_mha *layer, int which, int64_t rows, void *heads) {
  const attn_problem *a = &layer->problem.attention;
  if (which != PROJECT_Q && which != PROJECT_K) return ATTN_OK;
  const int64_t count = which == PROJECT_Q ? a->heads_q : a->heads_kv;
  const attn_head_rows all = {heads, which == PROJECT_Q ? a->dtype_q : a->dtype_kv, rows * count};
  return attn_head_norm_run(&layer->norm, which == PROJECT_K, &all, &layer->options);
}

static attn_status project(const layer_run *r, int which) {
  const attn_mha_problem *p = &r->layer->problem;
  const attn_problem *a = &p->attention;
  const attn_product *product = r->layer->product[which];
  const row_count queries = attn_mha_rows(p, true), keys = attn_mha_rows(p, false);
  const size_t size = sizeof(attn_product_args);
  attn_product_args args;
  switch (which) {
    case PROJECT_Q:
      args = (attn_product_args){size, queries.batch, queries.rows, r->given->args.x, p->x_stride,
                                 0,    r->q,          a->q_stride,  a->dim_qk,        false};
      break;
    case PROJECT_K:
      args = (attn_product_args){size, keys.batch, keys.rows,   r->memory, r->memory_stride,
                                 0,    r->k,       a->k_stride, a->dim_qk, false};
      break;
    case PROJECT_V:
      args = (attn_product_args){size, keys.batch, keys.rows,   r->memory, r->memory_stride,
                                 0,    r->v,       a->v_stride, a->dim_v,  false};
      break;
    default:
      args = (attn_product_args){size,     queries.batch,    queries.rows, r->o, a->o_stride,
                                 a->dim_v, r->given->args.y, p->y_stride,  0,    false};
  }
  const attn_status status = attn_product_run(product, &args, r->rest, r->layer->rest_bytes);
  return status == ATTN_OK ? norm_heads(r->layer, which, args.batch * args.rows, args.y) : status;
}

static attn_status attend(const layer_run *r) {
  const attn_mha_problem *p = &r->layer->problem;
  const row_count queries = attn_mha_rows(p, true);
  const attn_problem *a = &p->attention;
  attn_args args = r->given->attention;
  args.q = r->q;
  args.k = r->k;
  args.v = r->v;
  args.o = r->o;
  if (uses(p, ATTN_USE_VARLEN)) /* tokens that belong to no sequence have rows of y too */
    memset(r->o, 0, (size_t)attn_elements_bytes(a->dtype_o, queries.rows * a->heads_q * a->dim_v));
  return attn_plan_run(r->layer->attention, &args, r->rest, r->layer->rest_bytes);
}

static attn_status check_pointer(const char *field, const void *pointer, attn_dtype dtype, bool needed) {
  const size_t align = attn_dtype_alignment(dtype);
  REQUIRE(!needed || pointer, "attn_mha_args.%s is NULL; the layer has rows there", field);
  REQUIRE((uintptr_t)pointer % align == 0, "attn_mha_args.%s is %p; it must be aligned to its element, %zu bytes", field,
          pointer, align);
  return ATTN_OK;
}

static attn_status read_args(const attn_mha_args *theirs, layer_args *given) {
  REQUIRE(theirs, "args is NULL; it must point to an attn_mha_args");
  given->attention = ATTN_STRUCT(attn_args, .q = NULL);
  const attn_status status = attn_struct_read(&args_layout, theirs, &given->args);
  if (status != ATTN_OK || !given->args.attention) return status;
  return attn_struct_read(&attn_args_layout, given->args.attention, &given->attention);
}

static attn_status check_run(const attn_mha *layer, const attn_mha_args *args, const void *workspace, size_t bytes) {
  REQUIRE(layer, "layer is NULL; it must come from attn_mha_create");
  const attn_mha_problem *p = &layer->problem;
  const row_count queries = attn_mha_rows(p, true), keys = attn_mha_rows(p, false);
  const bool has_rows = queries.batch * queries.rows > 0, has_keys = keys.batch * keys.rows > 0;
  const attn_dtype kv = p->attention.dtype_kv;
  attn_status status = check_pointer("x", args->x, p->dtype_x, has_rows);
  if (status == ATTN_OK) status = check_pointer("memory", args->memory, p->dtype_x, false);
  if (status == ATTN_OK) status = check_pointer("projected_k", args->projected_k, kv, args->projected_v && has_keys);
  if (status == ATTN_OK) status = check_pointer("projected_v", args->projected_v, kv, args->projected_k && has_keys);
  if (status != ATTN_OK) return status;
  REQUIRE(!args->memory || !args->projected_k,
          "attn_mha_args.memory is given beside projected_k; it must be NULL, because the keys are there already");
  REQUIRE(args->memory || args->projected_k || !has_keys || (queries.rows == keys.rows && p->width == p->width_memory),
          "attn_mha_args.memory is NULL, which stands for x: but x has %" PRId64 " rows of %" PRId64
          ", and the memory %" PRId64 " of %" PRId64,
          queries.rows, p->width, keys.rows, p->width_memory);
  return attn_check_workspace("attn_mha", workspace, bytes, layer->workspace_bytes);
}

static layer_run start_run(const attn_mha *layer, const layer_args *given, char *workspace) {
  const attn_mha_problem *p = &layer->problem;
  const attn_mha_args *args = &given->args;
  return (layer_run){.layer = layer,
                     .given = given,
                     .memory = args->memory ? args->memory : args->x,
                     .memory_stride = args->memory ? p->memory_stride : p->x_stride,
                     .q = workspace + layer->q_at,
                     .k = workspace + layer->k_at,
                     .v = workspace + layer->v_at,
                     .o = workspace + layer->o_at,
                     .rest = workspace + layer->rest_at};
}

/* The keys and values of the memory: projected now, or given. */
static attn_status project_memory(layer_run *r) {
  const attn_mha_args *args = &r->given->args;
  if (args->projected_k) { /* which nobody writes through these pointers */
    r->k = (void *)(uintptr_t)args->projected_k;
    r->v = (void *)(uintptr_t)args->projected_v;
    return ATTN_OK;
  }
  const attn_status status = project(r, PROJECT_K);
  return status == ATTN_OK ? project(r, PROJECT_V) : status;
}

static double now_ns(const attn_mha_profile *profile) { return profile ? attn_wall_clock_ns() : 0; }

attn_status attn_mha_run(const attn_mha *layer, const attn_mha_args *args, void *workspace, size_t workspace_bytes) {
  layer_args given;
  attn_status status = read_args(args, &given);
  if (status != ATTN_OK) return status;
  attn_mha_profile *profile = given.args.profile;
  const double start = now_ns(profile);
  status = check_run(layer, &given.args, workspace, workspace_bytes);
  if (status != ATTN_OK) return status;
  if (all_rows(layer, true) == 0) return ATTN_OK;
  status = check_pointer("y", given.args.y, layer->problem.dtype_y, true);
  layer_run run = start_run(layer, &given, workspace);
  const double projecting = now_ns(profile);
  if (status == ATTN_OK) status = project(&run, PROJECT_Q);
  if (status == ATTN_OK) status = project_memory(&run);
  const double attending = now_ns(profile);
  if (status == ATTN_OK) status = attend(&run);
  const double finishing = now_ns(profile);
  if (status == ATTN_OK) status = project(&run, PROJECT_OUT);
  if (!profile || status != ATTN_OK) return status;
  const double end = now_ns(profile);
  profile->runs++;
  profile->projections_ns += attending - projecting + (end - finishing);
  profile->attention_ns += finishing - attending;
  profile->total_ns += end - start;
  return ATTN_OK;
}

static attn_status run_weights(const layer_run *r, float *weights) {
  const attn_problem *a = &r->layer->problem.attention;
  const int64_t columns = min64(a->seq_k, WEIGHT_COLUMNS);
  const char *identity = attn_identity_fill(r->rest, a->seq_k, a->dtype_kv);
  char *rest = r->rest + identity_bytes(r->layer);
  attn_args args = r->given->attention;
  args.q = r->q;
  args.k = r->k;
  args.lse = NULL;
  attn_status status = ATTN_OK;
  for (int64_t first = 0; first < a->seq_k && status == ATTN_OK; first += columns) {
    const int64_t column = min64(first, a->seq_k - columns); /* the last pass overlaps the one before */
    args.v = attn_element_at(identity, a->dtype_kv, column);
    args.o = weights + column * r->layer->problem.weights_stride.k;
    status = attn_plan_run(r->layer->weights, &args, rest, attn_plan_workspace(r->layer->weights));
  }
  return status;
}

attn_status attn_mha_attention_weights(const attn_mha *layer, const attn_mha_args *args, float *weights, void *workspace,
                                       size_t workspace_bytes) {
  layer_args given;
  attn_status status = read_args(args, &given);
  if (status == ATTN_OK) status = check_run(layer, &given.args, workspace, workspace_bytes);
  if (status != ATTN_OK) return status;
  REQUIRE(layer->problem.want_weights,
          "attn_mha_problem.want_weights was false when this layer was made; set it before attn_mha_create");
  const attn_problem *a = &layer->problem.attention;
  if (a->batch * a->seq_q == 0 || a->seq_k == 0) return ATTN_OK;
  REQUIRE(weights && (uintptr_t)weights % sizeof *weights == 0, "weights is %p; it must point to aligned floats",
          (void *)weights);
  const layer_run run = start_run(layer, &given, workspace);
  status = project(&run, PROJECT_Q);
  if (status == ATTN_OK) status = project(&run, PROJECT_K);
  return status == ATTN_OK ? run_weights(&run, weights) : status;
}

/* ---- Projections on their own ---- */

attn_status attn_mha_project_memory(const attn_mha *layer, const attn_mha_args *args, void *k, void *v, void *workspace,
                                    size_t workspace_bytes) {
  layer_args given;
  attn_status status = read_args(args, &given);
  if (status != ATTN_OK) return status;
  if (!given.args.x) given.args.x = given.args.memory; /* not read */
  status = check_run(layer, &given.args, workspace, workspace_bytes);
  if (status != ATTN_OK) return status;
  REQUIRE(!given.args.projected_k, "attn_mha_args.projected_k is given; here it must be NULL, because it is made");
  if (all_rows(layer, false) == 0) return ATTN_OK;
  const size_t align = attn_dtype_alignment(layer->problem.attention.dtype_kv);
  REQUIRE(k && (uintptr_t)k % align == 0, "k is %p; it must point to aligned elements of dtype_kv", k);
  REQUIRE(v && (uintptr_t)v % align == 0, "v is %p; it must point to aligned elements of dtype_kv", v);
  layer_run run = start_run(layer, &given, workspace);
  run.k = k;
  run.v = v;
  return project_memory(&run);
}

size_t attn_mha_rows_workspace(const attn_mha *layer, int64_t rows) {
  size_t bytes = 0;
  for (int i = 0; layer && i < PROJECTIONS; i++) want(&bytes, attn_product_workspace(layer->product[i], rows));
  return bytes;
}

/* Dense rows through one projection. Heads stand side by side in both. */
static attn_status project_dense(const attn_mha *layer, int which, int64_t rows, int64_t depth, int64_t columns,
                                 const void *x, void *y, void *workspace, size_t bytes) {
  const attn_status status = attn_product_run(
      layer->product[which],
      &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = x, .x_stride = {.b = rows * depth, .s = depth, .d = 1},
                   .y = y, .y_stride = {.b = rows * columns, .s = columns, .d = 1}),
      workspace, bytes);
  return status == ATTN_OK ? norm_heads(layer, which, rows, y) : status;
}

static attn_status check_rows(const attn_mha *layer, int64_t rows) {
  REQUIRE(layer, "layer is NULL; it must come from attn_mha_create");
  REQUIRE(rows >= 0 && rows < ((int64_t)1 << 31), "rows is %" PRId64 "; it must be in 0..2^31 - 1", rows);
  return ATTN_OK;
}

attn_status attn_mha_project_rows(const attn_mha *layer, int64_t rows, const void *x, void *q, void *k, void *v,
                                  void *workspace, size_t workspace_bytes) {
  attn_status status = check_rows(layer, rows);
  if (status != ATTN_OK || rows == 0) return status;
  const attn_mha_problem *p = &layer->problem;
  const attn_problem *a = &p->attention;
  REQUIRE(!(k || v) || p->width == p->width_memory,
          "k or v is given with width %" PRId64 " and width_memory %" PRId64 "; the rows are then both, so it must be NULL",
          p->width, p->width_memory);
  const struct {
    int which;
    int64_t columns;
    void *y;
  } parts[] = {{PROJECT_Q, a->heads_q * a->dim_qk, q},
               {PROJECT_K, a->heads_kv * a->dim_qk, k},
               {PROJECT_V, a->heads_kv * a->dim_v, v}};
  for (int i = 0; i < 3 && status == ATTN_OK; i++)
    if (parts[i].y)
      status =
          project_dense(layer, parts[i].which, rows, p->width, parts[i].columns, x, parts[i].y, workspace, workspace_bytes);
  return status;
}

attn_status attn_mha_project_output(const attn_mha *layer, int64_t rows, const void *o, void *y, void *workspace,
                                    size_t workspace_bytes) {
  const attn_status status = check_rows(layer, rows);
  if (status != ATTN_OK || rows == 0) return status;
  const attn_problem *a = &layer->problem.attention;
  return project_dense(layer, PROJECT_OUT, rows, a->heads_q * a->dim_v, layer->problem.width_out, o, y, workspace,
                       workspace_bytes);
}

attn_status(attn_mha_get_problem)(const attn_mha *layer, attn_mha_problem *problem) {
  REQUIRE(layer && problem, "%s is NULL; it must be given", layer ? "problem" : "layer");
  attn_struct_write(&attn_mha_problem_layout, &layer->problem, problem);
  return ATTN_OK;
}
