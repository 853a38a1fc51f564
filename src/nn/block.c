/* SPDX-License-Identifier: MIT */
/* Transformer blocks. Encoder and decoder differ only in the number of their sublayers, pre-norm and post-norm only in the
 * place of the norm. So a block is a list of sublayers, each with its norm, and one loop runs them all:
 *
 *     post-norm:  stream = norm(stream + sublayer(stream))
 *     pre-norm:   stream = stream + sublayer(norm(stream)), with post_norms stream + post_norm(sublayer(norm(stream)))
 *
 * In pre-norm the addition of one sublayer and the norm of the next are one pass over the rows. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/nn/kv_cache.h"
#include "src/nn/linear.h"

enum { MOST_SUBLAYERS = 3, MOST_NORMS = 2 * MOST_SUBLAYERS };

typedef struct sublayer {
  attn_mha *attention;             /* NULL in a feed-forward sublayer */
  attn_feed_forward *feed_forward; /* NULL in an attention sublayer */
  bool cross;
  attn_norm norm, post_norm; /* gain and bias point into norm_arrays */
} sublayer;

struct attn_block {
  int64_t rows, width;
  attn_dtype dtype; /* type of x, y and the memory, and of the rows that enter sublayers */
  bool pre_norm, post_norms;
  attn_norm_kind norm_kind;
  int count;
  sublayer sublayers[MOST_SUBLAYERS];
  attn_nn_joins joins;
  float *norm_arrays; /* gain and bias of every norm, [2 count][2][width]; shared by the blocks of other shapes */
};

/* ---- Shapes ---- */

static const attn_struct_part config_parts[] = {
    {offsetof(attn_block_config, self), &attn_mha_problem_layout},
    {offsetof(attn_block_config, self_weights), &attn_mha_weights_layout},
    {offsetof(attn_block_config, cross), &attn_mha_problem_layout},
    {offsetof(attn_block_config, cross_weights), &attn_mha_weights_layout},
    {offsetof(attn_block_config, feed_forward), &attn_feed_forward_layout},
    {0, NULL},
};
/* Its parts may all be smaller than here. */
static const attn_struct_layout config_layout = {
    .name = "attn_block_config",
    .maker = "attn_encoder_block_init or attn_decoder_block_init",
    .bytes = sizeof(attn_block_config),
    .least = sizeof(attn_block_config) / 2,
    .parts = config_parts,
};
static const attn_struct_layout args_layout = ATTN_LAYOUT_GROWN(attn_block_args, self, projected_k);

void(attn_causal_self_attention_init)(attn_mha_problem *theirs, int64_t batch, int64_t heads, int64_t seq, int64_t width) {
  attn_mha_problem p;
  attn_mha_problem_init(&p, batch, heads, seq, seq, width);
  attn_problem_set_causal(&p.attention, ATTN_ALIGN_TOP_LEFT);
  attn_struct_write(&attn_mha_problem_layout, &p, theirs);
}

void(attn_cross_attention_init)(attn_mha_problem *theirs, int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_memory,
                                int64_t width, int64_t width_memory) {
  attn_mha_problem p;
  attn_mha_problem_init(&p, batch, heads, seq_q, seq_memory, width);
  p.width_memory = width_memory;
  p.memory_stride = (attn_strides){.b = seq_memory * width_memory, .s = width_memory, .d = 1};
  attn_struct_write(&attn_mha_problem_layout, &p, theirs);
}

/* The configuration that both kinds of block begin with; the caller fills in the attentions. */
static attn_block_config start_config(int64_t width, int64_t hidden) {
  const attn_norm norm = {.epsilon = 1e-5f};
  return (attn_block_config){.self_norm = norm,
                             .cross_norm = norm,
                             .feed_forward = {.width = width, .hidden = hidden},
                             .feed_forward_norm = norm,
                             .self_post_norm = norm,
                             .cross_post_norm = norm,
                             .feed_forward_post_norm = norm};
}

void(attn_encoder_block_init)(attn_block_config *theirs, int64_t batch, int64_t heads, int64_t seq, int64_t width,
                              int64_t hidden) {
  attn_block_config config = start_config(width, hidden);
  attn_mha_problem_init(&config.self, batch, heads, seq, seq, width);
  attn_struct_write(&config_layout, &config, theirs);
}

void(attn_decoder_block_init)(attn_block_config *theirs, int64_t batch, int64_t heads, int64_t seq, int64_t seq_memory,
                              int64_t width, int64_t width_memory, int64_t hidden) {
  attn_block_config config = start_config(width, hidden);
  attn_causal_self_attention_init(&config.self, batch, heads, seq, width);
  attn_cross_attention_init(&config.cross, batch, heads, seq, seq_memory, width, width_memory);
  config.has_cross = true;
  attn_struct_write(&config_layout, &config, theirs);
}

/* ---- Creating ---- */

static int64_t rows_of(const attn_mha_problem *p) {
  const attn_problem *a = &p->attention;
  return a->uses & ATTN_USE_VARLEN ? a->total_q : a->batch * a->seq_q;
}

/* Rows are dense and have one width and type, and every sublayer has the same number of them. */
static attn_status check_attention(const char *name, const attn_mha_problem *p, int64_t width, attn_dtype dtype) {
  const attn_problem *a = &p->attention;
  const attn_nn_size sizes[] = {{"attn_block_config.self or .cross: batch", a->batch, 0},
                                {"attn_block_config.self or .cross: seq_q", a->seq_q, 0},
                                {"attn_block_config.self or .cross: width", p->width, 1}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(p->width == width && p->width_out == width,
          "attn_block_config.%s has width %" PRId64 " and width_out %" PRId64
          "; a block with residual connections needs both "
          "to be %" PRId64 ", the width of x",
          name, p->width, p->width_out, width);
  REQUIRE((p->dtype_x == ATTN_F32 || p->dtype_x == dtype) && p->dtype_y == ATTN_F32,
          "attn_block_config.%s has dtype_x %d and dtype_y %d; they must be 0, because rows of a block have dtype_rows, %d",
          name, (int)p->dtype_x, (int)p->dtype_y, (int)dtype);
  const attn_strides strides[] = {p->x_stride, p->y_stride};
  for (int i = 0; i < 2; i++)
    REQUIRE((strides[i].b == a->seq_q * width || a->batch <= 1 || (a->uses & ATTN_USE_VARLEN)) && strides[i].s == width &&
                strides[i].d == 1,
            "attn_block_config.%s.%c_stride is {.b = %" PRId64 ", .s = %" PRId64 ", .d = %" PRId64
            "}; the rows of a block are dense: it must be as attn_mha_problem_init sets it",
            name, i ? 'y' : 'x', strides[i].b, strides[i].s, strides[i].d);
  return ATTN_OK;
}

/* Gives both attentions the type of rows. cross: NULL without cross-attention. */
static attn_status check_attentions(attn_mha_problem *self, attn_mha_problem *cross, attn_dtype dtype) {
  attn_status status = check_attention("self", self, self->width, dtype);
  if (status == ATTN_OK && cross) status = check_attention("cross", cross, self->width, dtype);
  if (status != ATTN_OK) return status;
  REQUIRE(!cross || rows_of(cross) == rows_of(self),
          "attn_block_config.cross has %" PRId64 " query rows and .self has %" PRId64 "; they must be the same rows",
          rows_of(cross), rows_of(self));
  self->dtype_x = dtype;
  if (cross) cross->dtype_x = dtype;
  return ATTN_OK;
}

static attn_status check_feed_forward(attn_feed_forward_config *c, int64_t width, attn_dtype dtype) {
  REQUIRE(c->width == width, "attn_block_config.feed_forward.width is %" PRId64 "; it must be %" PRId64 ", the width of x",
          c->width, width);
  REQUIRE((c->dtype_x == ATTN_F32 || c->dtype_x == dtype) && c->dtype_y == ATTN_F32,
          "attn_block_config.feed_forward has dtype_x %d and dtype_y %d; they must be 0, because rows of a block have "
          "dtype_rows, %d",
          (int)c->dtype_x, (int)c->dtype_y, (int)dtype);
  c->dtype_x = dtype;
  return ATTN_OK;
}

static attn_status check_block(attn_block_config *c) {
  const int64_t width = c->self.width;
  REQUIRE(attn_dtype_is_float(c->dtype_rows), "attn_block_config.dtype_rows is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)c->dtype_rows);
  attn_status status = check_attentions(&c->self, c->has_cross ? &c->cross : NULL, c->dtype_rows);
  if (status == ATTN_OK) status = check_feed_forward(&c->feed_forward, width, c->dtype_rows);
  if (status != ATTN_OK) return status;
  REQUIRE(c->pre_norm || !c->post_norms,
          "attn_block_config.post_norms is true without pre_norm; the norms of a post-norm block are after the sublayers "
          "already: it must be false");
  const struct {
    const char *field;
    const attn_norm *norm;
    bool used;
  } norms[MOST_NORMS] = {{"self_norm", &c->self_norm, true},
                         {"cross_norm", &c->cross_norm, c->has_cross},
                         {"feed_forward_norm", &c->feed_forward_norm, true},
                         {"self_post_norm", &c->self_post_norm, c->post_norms},
                         {"cross_post_norm", &c->cross_post_norm, c->post_norms && c->has_cross},
                         {"feed_forward_post_norm", &c->feed_forward_post_norm, c->post_norms}};
  for (int i = 0; i < MOST_NORMS; i++)
    REQUIRE(!norms[i].used || (norms[i].norm->epsilon >= 0 && isfinite(norms[i].norm->epsilon)),
            "attn_block_config.%s.epsilon is %g; it must be finite and at least 0", norms[i].field,
            (double)norms[i].norm->epsilon);
  return ATTN_OK;
}

/* Copies gain and bias into the block's memory. A missing gain is 1, a missing bias 0. */
static attn_norm keep_norm(attn_block *block, const attn_norm *norm, int number) {
  float *gain = block->norm_arrays + (int64_t)number * 2 * block->width, *bias = gain + block->width;
  for (int64_t i = 0; i < block->width; i++) {
    gain[i] = norm->gain ? norm->gain[i] : 1;
    bias[i] = norm->bias ? norm->bias[i] : 0;
  }
  return (attn_norm){.gain = gain, .bias = bias, .epsilon = norm->epsilon};
}

static sublayer *add_sublayer(attn_block *block, const attn_norm *norm, const attn_norm *post_norm) {
  const int number = 2 * block->count;
  sublayer *s = &block->sublayers[block->count++];
  *s = (sublayer){.norm = keep_norm(block, norm, number)};
  if (block->post_norms) s->post_norm = keep_norm(block, post_norm, number + 1);
  return s;
}

static attn_status add_attentions(attn_block *block, const attn_block_config *c, const attn_mha_options *mha) {
  sublayer *s = add_sublayer(block, &c->self_norm, &c->self_post_norm);
  const attn_status status = attn_mha_create(&c->self, &c->self_weights, mha, &s->attention);
  if (status != ATTN_OK || !c->has_cross) return status;
  s = add_sublayer(block, &c->cross_norm, &c->cross_post_norm);
  s->cross = true;
  return attn_mha_create(&c->cross, &c->cross_weights, mha, &s->attention);
}

static attn_status build(attn_block *block, const attn_block_config *c, const attn_options *options) {
  block->norm_arrays = attn_nn_allocate_shared("the norms", (size_t)(MOST_NORMS * 2 * block->width) * sizeof(float));
  if (!block->norm_arrays) return ATTN_OUT_OF_MEMORY;
  const attn_mha_options mha = ATTN_STRUCT(attn_mha_options, .attention = options, .product = c->product);
  attn_status status = attn_nn_choose_joins(options, &block->joins);
  if (status == ATTN_OK) status = add_attentions(block, c, &mha);
  if (status != ATTN_OK) return status;
  sublayer *s = add_sublayer(block, &c->feed_forward_norm, &c->feed_forward_post_norm);
  attn_feed_forward_config feed_forward = c->feed_forward;
  if (c->product) feed_forward.product = c->product;
  return attn_feed_forward_create(&feed_forward, options, &s->feed_forward);
}

/* [stream] [input of the sublayer: pre-norm only] [output of the sublayer] [workspace of the sublayer] */
typedef struct layout {
  int64_t stream, normed, out, step, bytes;
  size_t step_bytes;
  bool fits;
} layout;

/* In a step the self-attention works in the cache. */
static layout layout_of(const attn_block *block, int64_t rows, bool in_cache) {
  layout l = {0};
  for (int i = in_cache ? 1 : 0; i < block->count; i++) {
    const sublayer *s = &block->sublayers[i];
    const size_t bytes =
        s->attention ? attn_mha_workspace(s->attention) : attn_feed_forward_workspace(s->feed_forward, rows);
    l.step_bytes = bytes > l.step_bytes ? bytes : l.step_bytes;
  }
  const int64_t row_bytes = attn_elements_bytes(block->dtype, block->width);
  const memory_part parts[] = {{&l.stream, rows, block->pre_norm ? float_bytes(block->width) : row_bytes},
                               {&l.normed, block->pre_norm ? rows : 0, row_bytes},
                               {&l.out, rows, float_bytes(block->width)},
                               {&l.step, 1, (int64_t)l.step_bytes}};
  l.fits = LAY_OUT(parts, &l.bytes);
  return l;
}

static bool has_cross(const attn_block *block) { return block->count == MOST_SUBLAYERS; }

/* Frees the block on failure. */
static attn_status finish_block(attn_block *block, attn_status status, attn_block **result) {
  if (status == ATTN_OK) status = attn_nn_check_fits("attn_block", layout_of(block, block->rows, false).fits);
  if (status != ATTN_OK) return attn_block_destroy(block), status;
  *result = block;
  return ATTN_OK;
}

attn_status attn_block_create(const attn_block_config *config, const attn_options *options, attn_block **result) {
  REQUIRE(result, "block is NULL; it must point to where the block's address goes");
  *result = NULL;
  attn_block_config c;
  attn_status status = attn_nn_read(&config_layout, "config", config, &c);
  if (status == ATTN_OK) status = check_block(&c);
  if (status != ATTN_OK) return status;
  attn_block *block = attn_nn_new("attn_block", sizeof *block);
  if (!block) return ATTN_OUT_OF_MEMORY;
  block->rows = rows_of(&c.self);
  block->width = c.self.width;
  block->dtype = c.dtype_rows;
  block->pre_norm = c.pre_norm;
  block->norm_kind = c.rms_norm ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
  block->post_norms = c.post_norms;
  return finish_block(block, build(block, &c, options), result);
}

attn_status attn_block_reshape(const attn_block *block, const attn_mha_problem *self, const attn_mha_problem *cross,
                               attn_block **reshaped) {
  REQUIRE(reshaped, "reshaped is NULL; it must point to where the block's address goes");
  *reshaped = NULL;
  REQUIRE(block, "block is NULL; it must come from attn_block_create");
  REQUIRE(!cross == !has_cross(block), "cross is %s; it must be %s, because the block has %s cross-attention",
          cross ? "given" : "NULL", cross ? "NULL" : "given", cross ? "no" : "a");
  attn_mha_problem problems[2];
  attn_status status = attn_nn_read(&attn_mha_problem_layout, "self", self, &problems[0]);
  if (status == ATTN_OK && cross) status = attn_nn_read(&attn_mha_problem_layout, "cross", cross, &problems[1]);
  if (status == ATTN_OK) status = check_attentions(&problems[0], cross ? &problems[1] : NULL, block->dtype);
  if (status != ATTN_OK) return status;
  attn_block *made = attn_nn_new("attn_block", sizeof *made);
  if (!made) return ATTN_OUT_OF_MEMORY;
  *made = *block;
  made->rows = rows_of(&problems[0]);
  attn_nn_share(made->norm_arrays);
  for (int i = 0; i < made->count; i++) { /* all that it owns, so that it can be destroyed from here on */
    made->sublayers[i].attention = NULL;
    attn_nn_share_feed_forward(made->sublayers[i].feed_forward);
  }
  for (int i = 0; i + 1 < made->count && status == ATTN_OK; i++)
    status = attn_mha_reshape(block->sublayers[i].attention, &problems[i], &made->sublayers[i].attention);
  return finish_block(made, status, reshaped);
}

void attn_block_destroy(attn_block *block) {
  if (!block) return;
  for (int i = 0; i < block->count; i++) {
    attn_mha_destroy(block->sublayers[i].attention);
    attn_feed_forward_destroy(block->sublayers[i].feed_forward);
  }
  attn_nn_unshare(block->norm_arrays);
  free(block);
}

const char *attn_block_kernel(const attn_block *block) {
  return block ? attn_mha_kernel(block->sublayers[0].attention) : "";
}

/* ---- Running ---- */

size_t attn_block_workspace(const attn_block *block) {
  return block ? (size_t)layout_of(block, block->rows, false).bytes : 0;
}

/* One run: its arguments, and the parts of its workspace. */
typedef struct block_run {
  const attn_block *block;
  const attn_block_args *args;
  int64_t rows;
  attn_kv_cache *cache; /* the cache of a step; NULL in a run */
  int64_t layer;
  void *stream, *normed, *step;
  float *out; /* rows that a sublayer gives */
  size_t step_bytes;
} block_run;

static attn_status run_feed_forward(const block_run *r, const sublayer *s, const void *x) {
  attn_block_profile *profile = r->args->profile;
  const double begin = attn_nn_now_ns(profile);
  const attn_status status = attn_feed_forward_run(s->feed_forward, r->rows, x, r->out, r->step, r->step_bytes);
  if (profile) profile->feed_forward_ns += attn_nn_now_ns(profile) - begin;
  return status;
}

static attn_status step_attention(const block_run *r, const sublayer *s, const void *x) {
  attn_block_profile *profile = r->args->profile;
  const double begin = attn_nn_now_ns(profile);
  const attn_status status = attn_mha_step(s->attention, r->cache, r->layer, x, r->out);
  if (profile) profile->attention_ns += attn_nn_now_ns(profile) - begin;
  return status;
}

static attn_status run_sublayer(const block_run *r, const sublayer *s, const void *x) {
  if (!s->attention) return run_feed_forward(r, s, x);
  if (r->cache && !s->cross) return step_attention(r, s, x);
  attn_block_profile *profile = r->args->profile;
  attn_mha_profile times = {0};
  const attn_mha_args args = {.struct_size = sizeof args,
                              .x = x,
                              .memory = s->cross ? r->args->memory : NULL,
                              .y = r->out,
                              .attention = s->cross ? r->args->cross : r->args->self,
                              .profile = profile ? &times : NULL,
                              .projected_k = s->cross ? r->args->projected_k : NULL,
                              .projected_v = s->cross ? r->args->projected_v : NULL};
  const attn_status status = attn_mha_run(s->attention, &args, r->step, r->step_bytes);
  if (profile) {
    profile->projections_ns += times.projections_ns;
    profile->attention_ns += times.attention_ns;
  }
  return status;
}

/* s = x + other; the norm, if the join has one, is of the block's kind. */
static attn_status join(const block_run *r, attn_row_join j, const attn_norm *norm) {
  const double begin = attn_nn_now_ns(r->args->profile);
  j.rows = r->rows;
  j.width = r->block->width;
  if (norm) {
    j.norm_kind = r->block->norm_kind;
    j.norm = *norm;
  }
  const attn_status status = attn_nn_join(&r->block->joins, j);
  if (r->args->profile) r->args->profile->norm_ns += attn_nn_now_ns(r->args->profile) - begin;
  return status;
}

static attn_status run_post_norm(const block_run *r) {
  const attn_dtype dtype = r->block->dtype;
  const void *stream = r->args->x;
  attn_status status = ATTN_OK;
  for (int i = 0; i < r->block->count && status == ATTN_OK; i++) {
    const sublayer *s = &r->block->sublayers[i];
    void *next = i + 1 < r->block->count ? r->stream : r->args->y;
    status = run_sublayer(r, s, stream);
    const attn_row_join j = {.x = r->out, .other = stream, .dtype_other = dtype, .y = next, .dtype_y = dtype};
    if (status == ATTN_OK) status = join(r, j, &s->norm);
    stream = next;
  }
  return status;
}

/* Adds what sublayer i gave to the stream, and norms it for the next one. The first stream is x. */
static attn_status join_pre_norm(const block_run *r, int i) {
  const attn_block *block = r->block;
  const sublayer *s = &block->sublayers[i];
  attn_row_join j = {.x = r->out, .other = r->stream, .sum = r->stream, .y = r->normed, .dtype_y = block->dtype};
  if (i == 0) j.other = r->args->x, j.dtype_other = block->dtype;
  attn_status status = ATTN_OK;
  if (block->post_norms) status = join(r, (attn_row_join){.x = r->out, .y = r->out}, &s->post_norm);
  if (status != ATTN_OK) return status;
  if (i + 1 < block->count) return join(r, j, &s[1].norm);
  j.sum = NULL;
  j.y = r->args->y;
  return join(r, j, NULL);
}

static attn_status run_pre_norm(const block_run *r) {
  const attn_block *block = r->block;
  const attn_row_join first = {.x = r->args->x, .dtype_x = block->dtype, .y = r->normed, .dtype_y = block->dtype};
  attn_status status = join(r, first, &block->sublayers[0].norm);
  for (int i = 0; i < block->count && status == ATTN_OK; i++) {
    status = run_sublayer(r, &block->sublayers[i], r->normed);
    if (status == ATTN_OK) status = join_pre_norm(r, i);
  }
  return status;
}

static attn_status read_args(const attn_block *block, const attn_block_args *theirs, attn_block_args *args) {
  REQUIRE(block, "block is NULL; it must come from attn_block_create");
  return attn_nn_read(&args_layout, "args", theirs, args);
}

static attn_status check_args(const attn_block *block, const attn_block_args *args) {
  REQUIRE(args->x, "attn_block_args.x is NULL; it must point to its elements");
  REQUIRE(args->y, "attn_block_args.y is NULL; it must point to its elements");
  REQUIRE(args->memory || args->projected_k || !has_cross(block),
          "attn_block_args.memory is NULL; a decoder block attends to it");
  return ATTN_OK;
}

/* Runs or steps (r has what to compute) in memory of the layout. */
static attn_status run_block(block_run r, const layout *l, void *workspace) {
  attn_block_profile *profile = r.args->profile;
  const double begin = attn_nn_now_ns(profile);
  char *memory = workspace;
  r.stream = memory + l->stream;
  r.normed = memory + l->normed;
  r.out = floats_at(memory, l->out);
  r.step = memory + l->step;
  r.step_bytes = l->step_bytes;
  const attn_status status = r.block->pre_norm ? run_pre_norm(&r) : run_post_norm(&r);
  if (profile) {
    profile->runs++;
    profile->total_ns += attn_nn_now_ns(profile) - begin;
  }
  return status;
}

attn_status attn_block_run(const attn_block *block, const attn_block_args *args, void *workspace, size_t bytes) {
  attn_block_args own;
  attn_status status = read_args(block, args, &own);
  if (status != ATTN_OK || block->rows == 0) return status;
  const layout l = layout_of(block, block->rows, false);
  status = check_args(block, &own);
  if (status == ATTN_OK) status = attn_check_workspace("attn_block", workspace, bytes, (size_t)l.bytes);
  return status == ATTN_OK ? run_block((block_run){.block = block, .args = &own, .rows = block->rows}, &l, workspace)
                           : status;
}

attn_status attn_block_project_memory(const attn_block *block, const attn_block_args *args, void *k, void *v,
                                      void *workspace, size_t bytes) {
  attn_block_args own;
  const attn_status status = read_args(block, args, &own);
  if (status != ATTN_OK) return status;
  REQUIRE(has_cross(block), "the block has no cross-attention; only a decoder block has a memory to project");
  REQUIRE(own.memory || block->rows == 0, "attn_block_args.memory is NULL; it must point to its elements");
  const attn_mha_args memory = ATTN_STRUCT(attn_mha_args, .memory = own.memory, .attention = own.cross);
  return attn_mha_project_memory(block->sublayers[1].attention, &memory, k, v, workspace, bytes);
}

/* ---- Steps ---- */

/* Refuses a cache that holds another number of tokens than the cross-attention was planned for. */
static attn_status check_cross_rows(const attn_block *block, const attn_kv_cache *cache) {
  if (!has_cross(block)) return ATTN_OK;
  attn_mha_problem p;
  const attn_status status = attn_mha_get_problem(block->sublayers[1].attention, &p);
  return status == ATTN_OK ? attn_kv_cache_check_even(cache, p.attention.batch, p.attention.seq_q,
                                                      "as the block's cross-attention, which was planned so")
                           : status;
}

attn_status attn_block_step(const attn_block *block, attn_kv_cache *cache, int64_t layer, const attn_block_args *args) {
  attn_block_args own;
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_status status = read_args(block, args, &own);
  const int64_t rows = attn_kv_cache_step_tokens(cache);
  if (status != ATTN_OK || rows == 0) return status;
  REQUIRE(!own.self, "attn_block_args.self is given; it must be NULL, because masks and lengths of a step are the cache's");
  status = check_args(block, &own);
  if (status == ATTN_OK) status = check_cross_rows(block, cache);
  const layout l = layout_of(block, rows, true);
  void *memory = NULL;
  if (status == ATTN_OK) status = attn_nn_check_fits("attn_block_step", l.fits);
  if (status == ATTN_OK) status = attn_kv_cache_block_rows(cache, (size_t)l.bytes, &memory);
  const block_run r = {.block = block, .args = &own, .rows = rows, .cache = cache, .layer = layer};
  return status == ATTN_OK ? run_block(r, &l, memory) : status;
}
