/* SPDX-License-Identifier: MIT */
/* Dense layers: Y = X W + bias (include/attn/product.h).
 *
 * W is packed once into panels of as many columns as a register tile is wide, [panel][depth][panel_columns] or in the
 * kernel's own form, with the bias beside it. A task is a block of rows times a strip of columns:
 *
 *     for each depth block: X of the rows, where it lies in dense rows or columns of float32, or gathered as such
 *       for each panel of the strip: the tier's register tiles (kernels/product.h), the panel's part in L1 or L2
 *     scatter the sums to Y, but where the last depth block could write them there: float32 in dense columns
 *
 * X and Y of 16 bits are converted there by the tier's row writer (kernels/kv_rows.h), unless the kernel multiplies bf16.
 *
 * Up to ATTN_PRODUCT_FEW_ROWS rows read each panel over the whole depth, in the type that it is kept in (run_few),
 * because W comes from memory. Kernels with a form of their own read rows of X and sum rows of Y where they lie, if
 * those are dense and evenly apart. Weights of int8 are multiplied as they are, and finished sums by their column's scale.
 * Rows that are to be int8 are rounded by the kernel that multiplies integers, or here, to multiples of their scale.
 *
 * Sums are kept between depth blocks, so every element is one chain of multiply-adds over depth, whatever the sizes of
 * blocks and strips. The bias is added last: in a chain that starts from a large bias every step would be rounded at the
 * bias's magnitude. */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "attn/product.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/int8_rows.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/convert.h"
#include "kernels/product.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/large_memory.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"
#include "src/api/strides.h"
#include "src/api/text.h"
#include "src/choice/dispatch.h"
#include "src/choice/machine_class.h"
#include "src/choice/paying_threads.h"
#include "src/plan/parallel.h"
#include "src/registry/cpu.h"
#include "src/registry/plugin.h"
#include "src/registry/registry.h"
#include "src/registry/tier_parts.h"

static const attn_struct_layout weights_layout = ATTN_LAYOUT_GROWN(attn_product_weights, relu, activate);
static const attn_struct_layout args_layout = ATTN_LAYOUT_GROWN(attn_product_args, y_head_dim, accumulate);

enum {
  BLOCK_ROWS = 96,         /* X of a depth block and the sums of a strip take 300 of the 512 KiB of a level 2 */
  STRIP_COLUMNS = 512,     /* X is gathered once per strip */
  MOST_COLUMNS = 256,      /* most columns of a panel */
  MOST_STEP_FLOATS = 2048, /* in a step that a form packs */
  FEW_DEPTH = 4096,        /* elements of few rows that are gathered at once: their part of X stays in L1 or L2 */
  SQUARE = 64,             /* columns of W are packed in squares */
  PAD = 16                 /* floats that keep rows off each other's cache sets */
};

struct attn_product {
  atomic_int owners;
  const attn_product_kernel *kernel;
  attn_options options; /* threads resolved */
  int64_t rows_worth;   /* fewer rows take one thread; 0 where the caller has named a number */
  int64_t depth, columns, panels;
  attn_row_function activate;  /* NULL = none */
  bool calls_back;             /* it is the caller's, who may run anything in it: not while a kernel has tiles in use */
  attn_dtype dtype;            /* type of W: int8, or as it is given */
  attn_dtype dtype_x, dtype_y; /* types of X and Y as they are given */
  attn_dtype x_kept;           /* type of X as the kernel has it: float32 or bf16 */
  bool int8_rows;
  attn_dtype rounds_x;             /* to bf16, or to i8 where the kernel does not; otherwise float32 */
  const attn_kv_rows_kernel *rows; /* converts rows of X and Y */
  attn_product_extent block;       /* rows of a block, in whole tiles, and depth */
  bool by_panel;                   /* the whole depth is one block of packed X: sums of a panel are finished at once */
  int64_t strip_panels;            /* panels of a strip at most */
  char *packed;                    /* [panels][steps], a step as the kernel's form has it */
  int64_t steps;                   /* in a panel; without a form a step is one element of depth */
  int64_t step_bytes;
  float *scale, *bias; /* [columns], or NULL */
};

/* ---- Which product ---- */

/* A product of another library is asked too, because that library chooses its instructions itself. */
static const char *unusable_below(const attn_product_kernel *kernel, const char *cap) {
  const char *reason = attn_tier_unusable(attn_tier_find(kernel->isa), cap);
  return !reason && kernel->unusable ? kernel->unusable(cap) : reason;
}

/* The type that W has from when it is packed on. */
static attn_dtype type_of(const attn_product_weights *w) { return w->int8_weights ? ATTN_I8 : w->dtype; }

static bool all_bf16(const attn_product_weights *w) {
  return type_of(w) == ATTN_BF16 && (w->dtype_x == ATTN_BF16 || w->bf16_rows);
}

static bool only_int8(const attn_product_kernel *kernel) { return kernel->form && kernel->form->only_int8; }

/* Why the kernel does not take these types, or NULL. */
static const char *refuses_types(const attn_product_kernel *kernel, const attn_product_weights *w) {
  const attn_product_form *form = kernel->form;
  if (form && form->only_bf16 && !all_bf16(w))
    return "it takes ATTN_BF16 alone: dtype, and dtype_x or bf16_rows, of attn_product_weights";
  if (only_int8(kernel) && !w->int8_rows) return "it takes attn_product_weights.int8_rows alone";
  if (only_int8(kernel) && w->depth > form->extent(w->dtype_x, w->depth).depth)
    return "attn_product_weights.depth is larger than its sums of integers allow";
  return NULL;
}

/* For the sentence: a product that a plug-in of libattn brings is called product_<plug-in>. */
static const char *hint_for(const char *name) {
  const size_t prefix = strlen("product_");
  const bool of_plugin = strncmp(name, "product_", prefix) == 0 && attn_registry_knows_plugin(name + prefix);
  return of_plugin ? ", unless its plug-in is loaded (attn_load_kernels)" : "";
}

static attn_status choose_named(const char *name, const char *cap, const attn_product_weights *w,
                                const attn_product_kernel **kernel) {
  char names[200] = "";
  const attn_product_kernel *k;
  for (int i = 0; (k = attn_registry_product(i)); i++) {
    const char *unusable = unusable_below(k, cap);
    if (!unusable) unusable = refuses_types(k, w);
    if (strcmp(k->name, name) == 0) {
      if (!unusable) unusable = attn_tier_claim(attn_tier_find(k->isa));
      if (unusable) return attn_fail(ATTN_UNSUPPORTED, "product '%s' cannot run: %s", name, unusable);
      *kernel = k;
      return ATTN_OK;
    }
    if (!unusable) attn_append(names, sizeof names, ", ", k->name);
  }
  return attn_fail(ATTN_UNKNOWN_KERNEL, "no product is called '%s'%s; those that run here: %s", name, hint_for(name), names);
}

static int64_t depth_step(const attn_product_kernel *kernel) { return kernel->form ? kernel->form->depth_step : 1; }

/* Panels keep the type of W, and are widened when they are read. */
static bool is_narrow(const attn_product_kernel *kernel, attn_dtype weights) { return kernel->widen && weights != ATTN_F32; }

/* X comes in any number of rows, and in any order that it lies in. */
static bool packs_x(const attn_product_kernel *kernel) { return kernel->form && kernel->form->pack_x; }

/* Bytes of a step of one panel. */
static int64_t step_bytes(const attn_product_kernel *kernel, attn_dtype weights) {
  if (kernel->form) return kernel->form->step_bytes(weights);
  return attn_elements_bytes(is_narrow(kernel, weights) ? weights : ATTN_F32, kernel->panel_columns);
}

/* Few rows take the time that W takes to come from memory. How many there will be is not known yet, so a form that needs
 * more bytes than float32 is taken by name only. */
static bool takes_more_bytes(const attn_product_kernel *kernel, attn_dtype weights) {
  return step_bytes(kernel, weights) > depth_step(kernel) * kernel->panel_columns * (int64_t)sizeof(float);
}

/* Our own product of the highest tier: libraries' products come after those of the tiers and are only taken by name. The c
 * tier always runs. */
static const attn_product_kernel *best_of_tiers(const char *cap, const attn_product_weights *w) {
  const attn_product_kernel *k, *pairs = NULL; /* pairs: of a tier that takes bf16 alone, whose rate is to be compared */
  for (int i = 0; (k = attn_registry_product(i)); i++) {
    if (unusable_below(k, cap) || refuses_types(k, w) || takes_more_bytes(k, type_of(w)) ||
        attn_tier_claim(attn_tier_find(k->isa)))
      continue;
    const bool only_bf16 = k->form && k->form->only_bf16;
    if (!only_bf16) break;
    if (!pairs) pairs = k;
  }
  return pairs && attn_bf16_products_pay(pairs->isa, k->isa) ? pairs : k;
}

/* The kernel, and what the tiers have beside it: their row writer, and `best` of them with its activations. */
static attn_status choose(const attn_options *options, const attn_product_weights *w, const attn_product_kernel **kernel,
                          const attn_product_kernel **best, const attn_kv_rows_kernel **rows) {
  const char *cap;
  attn_status status = attn_plugins_check_named();
  if (status == ATTN_OK) status = attn_dispatch_cap(options, &cap);
  if (status != ATTN_OK) return status;
  *kernel = *best = best_of_tiers(cap, w);
  *rows = attn_tier_parts_below(cap).kv_rows;
  return options->kernel ? choose_named(options->kernel, cap, w, kernel) : ATTN_OK;
}

static attn_activation_rows activation_of(attn_activation activation, const attn_options *options) {
  attn_options own;
  const char *cap;
  if ((unsigned)activation > ATTN_GELU_TANH) {
    (void)attn_fail(ATTN_INVALID_ARGUMENT, "activation is %d; it must be ATTN_RELU, _GELU, _SILU or _GELU_TANH",
                    (int)activation);
    return (attn_activation_rows){0};
  }
  if (attn_options_read(options, &own) != ATTN_OK || attn_dispatch_cap(&own, &cap) != ATTN_OK)
    return (attn_activation_rows){0};
  return best_of_tiers(cap, &(attn_product_weights){.dtype = ATTN_F32})->activations[activation];
}

attn_row_function attn_activation_function(attn_activation activation, const attn_options *options) {
  return activation_of(activation, options).run;
}

attn_row_slope_function attn_activation_slope(attn_activation activation, const attn_options *options) {
  return activation_of(activation, options).grad;
}

/* ---- Packing ---- */

/* Weights must not overlap, as they would be a matrix of another shape, unless a stride of 0 repeats them. */
static attn_status check_pitch(const attn_product_weights *w) {
  const int64_t down = llabs(w->stride_depth), across = llabs(w->stride_column);
  const bool by_rows = across <= down;
  const int64_t narrow = by_rows ? across * (w->columns - 1) : down * (w->depth - 1), wide = by_rows ? down : across;
  if (wide > narrow || wide == 0 || (by_rows ? w->depth : w->columns) == 1) return ATTN_OK;
  return attn_fail(ATTN_INVALID_ARGUMENT,
                   "attn_product_weights.stride_depth is %" PRId64 " with stride_column %" PRId64
                   "; weights would overlap: it must be %" PRId64 " and 1 for [in][out], 1 and %" PRId64 " for [out][in]",
                   w->stride_depth, w->stride_column, w->columns, w->depth);
}

static attn_status read_weights(const attn_product_weights *theirs, attn_product_weights *w) {
  REQUIRE(theirs, "weights is NULL; it must point to an attn_product_weights");
  const attn_status size = attn_struct_read(&weights_layout, theirs, w);
  if (size != ATTN_OK) return size;
  const struct {
    const char *field;
    int64_t value;
  } sizes[] = {{"depth", w->depth}, {"columns", w->columns}};
  for (int i = 0; i < 2; i++)
    if (sizes[i].value < 1 || sizes[i].value > ATTN_SIZE_LIMIT)
      return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.%s is %" PRId64 "; it must be in 1..2^31",
                       sizes[i].field, sizes[i].value);
  const struct {
    const char *field;
    attn_dtype value;
    const char *right;
  } types[] = {{"dtype", w->dtype == ATTN_I8 ? ATTN_F32 : w->dtype, ATTN_FLOAT_CONSTANTS ", or ATTN_I8 with a scale"},
               {"dtype_x", w->dtype_x, ATTN_FLOAT_CONSTANTS},
               {"dtype_y", w->dtype_y, ATTN_FLOAT_CONSTANTS}};
  for (int i = 0; i < 3; i++)
    if (!attn_dtype_is_float(types[i].value))
      return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.%s is %d; it must be %s", types[i].field,
                       (int)types[i].value, types[i].right);
  if (w->int8_weights && (w->bf16_rows || w->dtype == ATTN_I8))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.int8_weights is true with %s; it must be false",
                     w->bf16_rows ? "bf16_rows" : "dtype ATTN_I8");
  if ((w->dtype == ATTN_I8) != (w->scale != NULL) || (uintptr_t)w->scale % sizeof(float))
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "attn_product_weights.scale is %p with dtype %d; it must point to aligned floats with ATTN_I8, %d, and "
                     "be NULL with other types",
                     (const void *)w->scale, (int)w->dtype, (int)ATTN_I8);
  if (w->bf16_rows && w->dtype != ATTN_BF16)
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "attn_product_weights.bf16_rows is true with dtype %d; dtype must be ATTN_BF16, %d, or bf16_rows false",
                     (int)w->dtype, (int)ATTN_BF16);
  if (w->int8_rows && type_of(w) != ATTN_I8)
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "attn_product_weights.int8_rows is true with dtype %d; dtype must be ATTN_I8, %d, or int8_weights true",
                     (int)w->dtype, (int)ATTN_I8);
  if (!w->weight || (uintptr_t)w->weight % attn_dtype_alignment(w->dtype))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.weight is %p; it must point to aligned elements",
                     w->weight);
  if ((uintptr_t)w->bias % sizeof(float))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.bias is %p; it must be aligned to its element, 4 bytes",
                     (const void *)w->bias);
  if (w->relu && w->gelu)
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.relu and .gelu are both true; one of them must be false");
  if (w->activate && (w->relu || w->gelu))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_weights.activate is given beside .%s; one of them must not be",
                     w->relu ? "relu" : "gelu");
  const attn_tensor tensor = {.field = "attn_product_weights.stride",
                              .axes = {{'k', w->depth, w->stride_depth}, {'n', w->columns, w->stride_column}}};
  const attn_status status = attn_check_strides(&tensor);
  return status == ATTN_OK ? check_pitch(w) : status;
}

/* Rows k .. of W, as many as a step has, [depth_step][width]; 0 beyond W. */
static void load_step(const attn_product_weights *w, int64_t first_k, int64_t depth, int64_t first, int64_t width,
                      float *step) {
  for (int64_t i = 0; i < depth; i++)
    for (int64_t c = 0; c < width; c++) {
      const int64_t k = first_k + i, column = first + c;
      const bool within = k < w->depth && column < w->columns;
      step[i * width + c] =
          within ? attn_load_f32((attn_storage){w->weight, w->dtype}, k * w->stride_depth + column * w->stride_column)
                 : 0.0f;
    }
}

/* W from this step and panel on. */
static char *packed_at(const attn_product *product, int64_t panel, int64_t step) {
  return product->packed + (panel * product->steps + step) * product->step_bytes;
}

/* x rounded to the nearest integer, ties to even, for |x| < 2^22. */
static float nearest(float x) { return x + 0x1.8p23f - 0x1.8p23f; }

/* Scales of a panel's columns by which the largest weight of each is 127; NaN where it is not finite. */
static void find_scales(const attn_product_weights *w, attn_product *product, int64_t panel) {
  const int64_t width = product->kernel->panel_columns, first = panel * width, count = min64(width, w->columns - first);
  float floats[MOST_COLUMNS], *scale = product->scale + first;
  memset(scale, 0, (size_t)count * sizeof *scale);
  for (int64_t k = 0; k < w->depth; k++) {
    load_step(w, k, 1, first, width, floats);
    for (int64_t c = 0; c < count; c++) {
      const float magnitude = fabsf(floats[c]);
      scale[c] = magnitude > scale[c] || isnan(magnitude) ? magnitude : scale[c];
    }
  }
  for (int64_t c = 0; c < count; c++) scale[c] = isfinite(scale[c]) ? scale[c] / 127 : NAN;
}

/* Weights of a step as integers of a scale; 0 where that is 0 or NaN. Columns beyond W are 0. */
static void round_step(const attn_product *product, int64_t panel, int64_t depth, float *step) {
  const int64_t width = product->kernel->panel_columns, first = panel * width,
                count = min64(width, product->columns - first);
  const float *scale = product->scale + first;
  for (int64_t i = 0; i < depth; i++, step += width)
    for (int64_t c = 0; c < count; c++) {
      const float x = step[c] / scale[c], most = x > 127 ? 127 : x; /* beyond it where the scale is denormal */
      step[c] = scale[c] > 0 ? nearest(most < -127 ? -127 : most) : 0;
    }
}

/* Columns of W, whose elements lie side by side, into steps `begin` .. `end` of a panel: the tier transposes squares. */
static void copy_columns(const attn_product *product, const float *from, int64_t across, int64_t columns, int64_t steps,
                         float *to) {
  int64_t from_at[MOST_COLUMNS], to_at[MOST_COLUMNS];
  for (int64_t c = 0; c < columns; c++) from_at[c] = c * across, to_at[c] = c;
  product->rows->write(&(attn_kv_rows){.tokens = columns,
                                       .heads = 1,
                                       .dim = steps,
                                       .from = {from, ATTN_F32},
                                       .from_at = from_at,
                                       .from_element = 1,
                                       .to = to,
                                       .to_dtype = ATTN_F32,
                                       .to_at = to_at,
                                       .to_element = product->kernel->panel_columns});
}

/* W of float32 as it is: rows begin .. end, as rows or by columns. Panels are innermost, because W then comes from memory as
 * it lies. */
static void copy_weights(const attn_product_weights *w, const attn_product *product, int64_t begin, int64_t end) {
  const int64_t width = product->kernel->panel_columns, down = w->stride_depth, across = w->stride_column;
  for (int64_t p = 0; p < product->panels; p++) {
    const int64_t count = min64(width, w->columns - p * width);
    const float *from = (const float *)w->weight + begin * down + p * width * across;
    float *to = (float *)(void *)packed_at(product, p, begin);
    if (down == 1 && across != 1) copy_columns(product, from, across, count, end - begin, to);
    for (int64_t k = 0; k < end - begin; k++, to += width) {
      if (across == 1) memcpy(to, from + k * down, (size_t)count * sizeof *to);
      for (int64_t c = 0; across != 1 && down != 1 && c < count; c++) to[c] = from[k * down + c * across];
      memset(to + count, 0, (size_t)(width - count) * sizeof *to);
    }
  }
}

static void pack_panel(const attn_product_weights *w, attn_product *product, int64_t panel) {
  const attn_product_kernel *kernel = product->kernel;
  const int64_t width = kernel->panel_columns, depth = depth_step(kernel);
  const bool narrow = is_narrow(kernel, product->dtype);
  float own[MOST_STEP_FLOATS];
  assert(depth * width <= MOST_STEP_FLOATS);
  if (w->int8_weights) find_scales(w, product, panel);
  for (int64_t step = 0; step < product->steps; step++) {
    char *to = packed_at(product, panel, step);
    float *floats = kernel->form || narrow ? own : (float *)(void *)to;
    load_step(w, step * depth, depth, panel * width, width, floats);
    if (w->int8_weights) round_step(product, panel, depth, floats);
    if (kernel->form) kernel->form->pack_step(floats, product->dtype, to);
    if (narrow) kernel->narrow(floats, product->dtype, to);
  }
}

typedef struct packing {
  const attn_product_weights *w;
  attn_product *product;
  bool copies;
} packing;

static void pack_task(void *context, int64_t i, int worker) {
  const packing *p = context;
  (void)worker;
  const uint64_t mode = attn_float_mode_enter(); /* scales are rounded, and the caller may have traps for that */
  if (p->copies)
    copy_weights(p->w, p->product, i * SQUARE, min64((i + 1) * SQUARE, p->w->depth));
  else
    pack_panel(p->w, p->product, i);
  attn_float_mode_leave(mode);
}

/* Threads are started only where the caller has named a number: a program may create layers and then fork. */
static void pack(const attn_product_weights *w, attn_product *product, bool named) {
  attn_options options = product->options;
  if (!named) options.threads = 1;
  packing p = {w, product, product->dtype == ATTN_F32 && !product->kernel->form};
  attn_parallel_run_near(&options, p.copies ? ceil_div(w->depth, SQUARE) : product->panels, pack_task, &p);
  if (w->scale) memcpy(product->scale, w->scale, (size_t)w->columns * sizeof(float));
  if (w->bias) memcpy(product->bias, w->bias, (size_t)w->columns * sizeof(float));
}

/* The type to which rows are rounded here. */
static attn_dtype rounding_of_x(const attn_product_kernel *kernel, const attn_product_weights *w) {
  if (w->int8_rows) return only_int8(kernel) ? ATTN_F32 : ATTN_I8;
  return w->bf16_rows ? ATTN_BF16 : ATTN_F32;
}

/* One allocation: the product, scale, bias, panels. Each of these parts begins on a cache line. */
static attn_status allocate(const attn_product_kernel *kernel, const attn_product_weights *w, attn_product **result) {
  const int64_t panels = ceil_div(w->columns, kernel->panel_columns);
  const size_t vector = (size_t)round_up(w->columns, 16) * sizeof(float);
  const size_t scale_at = (size_t)round_up(sizeof(attn_product), ATTN_MEMORY_ALIGN);
  const bool scaled = type_of(w) == ATTN_I8;
  const size_t bias_at = scale_at + (scaled ? vector : 0), head = bias_at + (w->bias ? vector : 0);
  const int64_t steps = ceil_div(w->depth, depth_step(kernel));
  const int64_t bytes = step_bytes(kernel, type_of(w));
  const size_t count = (size_t)panels * (size_t)steps; /* <= 2^62 */
  attn_product *product = NULL;
  if (count <= (SIZE_MAX / 2 - head) / (size_t)bytes) product = attn_large_alloc(head + count * (size_t)bytes);
  if (!product)
    return attn_fail(ATTN_OUT_OF_MEMORY,
                     "out of memory: weights of %" PRId64 " x %" PRId64 " need %zu times %" PRId64 " bytes packed", w->depth,
                     w->columns, count, bytes);
  *product = (attn_product){.owners = 1,
                            .kernel = kernel,
                            .depth = w->depth,
                            .columns = w->columns,
                            .panels = panels,
                            .dtype = type_of(w),
                            .dtype_x = w->dtype_x,
                            .dtype_y = w->dtype_y,
                            .x_kept = kernel->form && kernel->form->takes_bf16 && all_bf16(w) ? ATTN_BF16 : ATTN_F32,
                            .int8_rows = w->int8_rows,
                            .rounds_x = rounding_of_x(kernel, w),
                            .steps = steps,
                            .step_bytes = bytes};
  if (scaled) product->scale = (float *)(void *)((char *)product + scale_at);
  if (w->bias) product->bias = (float *)(void *)((char *)product + bias_at);
  product->packed = (char *)product + head;
  *result = product;
  return ATTN_OK;
}

/* How much larger than these blocks and strips are where level 2 is: W is read once for each block, X for each strip. */
static double scale_of_blocks(const attn_product_kernel *kernel, attn_caches caches) {
  if (kernel->form || kernel->rows_by_place) return 1;
  return fmin(fmax(sqrt((double)caches.level2 / (512 << 10)), 1), 4);
}

/* The size of parts of `whole`, none above `most`, which is a multiple of 16 where there are several. */
static int64_t equal_parts(int64_t whole, int64_t most) {
  return whole <= most ? whole : min64(round_up(ceil_div(whole, ceil_div(whole, most)), 16), most);
}

/* The rows of a block, in whole tiles, and its depth. */
static attn_product_extent block_of(const attn_product *product, double scale) {
  const attn_product_kernel *kernel = product->kernel;
  if (kernel->form) return kernel->form->extent(product->x_kept, product->depth);
  const int64_t depth = is_narrow(kernel, product->dtype) ? kernel->widened_depth : kernel->depth_block;
  return (attn_product_extent){(int64_t)(scale * BLOCK_ROWS) / kernel->tile_rows * kernel->tile_rows,
                               equal_parts(product->depth, depth)};
}

/* How rows, depth and columns are cut. */
static void set_blocks(attn_product *product, attn_caches caches) {
  const attn_product_kernel *kernel = product->kernel;
  const double scale = scale_of_blocks(kernel, caches);
  product->block = block_of(product, scale);
  product->by_panel = packs_x(kernel) && product->depth <= product->block.depth;
  product->strip_panels =
      product->by_panel ? product->panels : max64((int64_t)(scale * STRIP_COLUMNS) / kernel->panel_columns, 1);
}

attn_status attn_product_create(const attn_product_weights *weights, const attn_options *options, attn_product **product) {
  if (!product)
    return attn_fail(ATTN_INVALID_ARGUMENT, "product is NULL; it must point to where the product's address goes");
  *product = NULL;
  attn_product_weights own;
  attn_options wanted, resolved;
  const attn_product_kernel *kernel, *best;
  const attn_kv_rows_kernel *rows;
  const attn_class *class;
  attn_status status = read_weights(weights, &own);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, &resolved);
  if (status == ATTN_OK) status = choose(&wanted, &own, &kernel, &best, &rows);
  if (status == ATTN_OK) status = attn_class_here(&class); /* its caches; and its costs, which say how many threads pay */
  if (status == ATTN_OK) status = allocate(kernel, &own, product);
  if (status != ATTN_OK) return status;
  (*product)->options = resolved;
  (*product)->rows = rows;
  const int64_t multiplied = only_int8(kernel) ? ceil_div(own.depth, depth_step(kernel)) : own.depth;
  if (wanted.threads == 0) (*product)->rows_worth = attn_product_rows_worth(kernel->isa, multiplied, own.columns);
  const attn_activation_rows *activations = (kernel->activations ? kernel : best)->activations;
  (*product)->calls_back = own.activate != NULL;
  (*product)->activate = own.relu ? activations[ATTN_RELU].run : own.gelu ? activations[ATTN_GELU].run : own.activate;
  if (kernel->most_threads && kernel->most_threads() < resolved.threads)
    (*product)->options.threads = kernel->most_threads();
  const uint64_t mode = attn_float_mode_enter(); /* scales are rounded, and the caller may have traps for that */
  set_blocks(*product, attn_tuning_caches(class->costs));
  pack(&own, *product, wanted.threads > 0);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

attn_product *attn_product_share(attn_product *product) {
  if (product) atomic_fetch_add(&product->owners, 1);
  return product;
}

void attn_product_destroy(attn_product *product) {
  if (product && atomic_fetch_sub(&product->owners, 1) == 1) attn_aligned_free(product);
}

const char *attn_product_name(const attn_product *product) { return product ? product->kernel->name : ""; }

/* ---- Tasks and memory ---- */

/* The memory of one thread: [X of a depth block][sums][the form's, or a widened panel][largest elements of rows that are
 * rounded to int8], for blocks of `rows` and strips of `columns`. */
typedef struct thread_memory {
  int64_t x_at, sum_at, own_at, most_at, bytes;
  int64_t x_stride, few_stride, sum_stride; /* floats from row to row; few_stride: of few rows of X */
} thread_memory;

static thread_memory memory_of(const attn_product *product, int64_t rows, int64_t columns) {
  const attn_product_form *form = product->kernel->form;
  const int64_t step = depth_step(product->kernel), depth = min64(product->depth, product->block.depth);
  thread_memory m = {.x_stride = round_up(depth, step) + PAD,
                     .few_stride = round_up(min64(product->depth, FEW_DEPTH), step) + PAD,
                     .sum_stride = (product->by_panel ? product->kernel->panel_columns : columns) + PAD};
  const int64_t few = product->kernel->run_few ? ATTN_PRODUCT_FEW_ROWS * m.few_stride : 0;
  const int64_t panel = is_narrow(product->kernel, product->dtype) ? float_bytes(depth * product->kernel->panel_columns) : 0;
  const memory_part parts[] = {
      {&m.x_at, 1, float_bytes(max64(rows * m.x_stride, few))},
      {&m.sum_at, rows, float_bytes(m.sum_stride)},
      {&m.own_at, 1, form && form->pack_x ? form->memory_bytes(product->x_kept, rows, depth) : panel},
      {&m.most_at, product->rounds_x == ATTN_I8 ? rows : 0, sizeof(float)}};
  const bool fits = LAY_OUT(parts, &m.bytes);
  assert(fits); /* blocks and strips are small */
  (void)fits;
  return m;
}

/* How the rows and columns of one run are cut. */
typedef struct layout {
  int64_t rows_per_block, blocks, panels_per_strip, strips;
  int64_t near_blocks; /* with which a thread begins */
  int64_t rows;        /* rows that are cut into blocks together: all, or those of one sequence */
  thread_memory memory;
} layout;

/* Equal blocks of whole tiles, of at least one row. Where few rows leave threads idle, the columns are cut finer. */
static layout layout_of(const attn_product *product, int64_t batch, int64_t rows_each, int64_t threads) {
  const attn_product_kernel *kernel = product->kernel;
  const bool by_place = kernel->rows_by_place;
  const int64_t rows =
      by_place ? rows_each
               : batch * rows_each; /* rows that are cut into blocks together; with `by_place` each sequence by itself */
  const int64_t tasks = threads > 1 ? 2 * threads : 1; /* wanted */
  layout l = {.blocks = ceil_div(rows, product->block.rows)};
  if (!kernel->form && !by_place) /* blocks are no smaller than with a small level 2 */
    l.blocks = max64(l.blocks, min64(ceil_div(tasks, product->panels), ceil_div(rows, BLOCK_ROWS)));
  l.rows_per_block = round_up(ceil_div(rows, l.blocks), kernel->tile_rows);
  l.blocks = ceil_div(rows, l.rows_per_block) * (by_place ? batch : 1);
  l.rows = rows;
  l.strips = min64(max64(ceil_div(product->panels, product->strip_panels), ceil_div(tasks, l.blocks)), product->panels);
  l.panels_per_strip = ceil_div(product->panels, l.strips);
  l.strips = ceil_div(product->panels, l.panels_per_strip);
  l.near_blocks = ceil_div(l.blocks, threads);
  l.memory = memory_of(product, l.rows_per_block, l.panels_per_strip * kernel->panel_columns);
  return l;
}

/* One for a small call, or all: programs alternate layers, and OpenMP ends the threads that the next smaller team lacks. */
static int paying_threads(const attn_product *product, int64_t rows) {
  return rows < product->rows_worth ? 1 : product->options.threads;
}

/* Blocks are of equal size, so fewer rows can make larger blocks and need more memory. The result is the memory of the
 * largest block and strip: enough for any number of rows up to `rows`. */
size_t attn_product_workspace(const attn_product *product, int64_t rows) {
  if (!product || rows <= 0) return 0;
  const attn_product_kernel *kernel = product->kernel;
  const int64_t block = round_up(min64(rows, product->block.rows), kernel->tile_rows);
  const int64_t strip = min64(product->strip_panels, product->panels) * kernel->panel_columns;
  const int64_t uncut = kernel->rows_by_place ? 1 : kernel->form ? block : min64(block, BLOCK_ROWS); /* see layout_of() */
  const bool one_task = product->panels == 1 && rows <= uncut;                                       /* run serially */
  const int64_t threads = one_task ? 1 : product->options.threads;
  return (size_t)(threads * memory_of(product, block, strip).bytes);
}

/* ---- Running ---- */

typedef struct run_context {
  const attn_product *product;
  const attn_product_args *args;
  layout at;
  bool x_transposed; /* X is gathered as it lies, the rows side by side */
  char *workspace;
} run_context;

static int64_t row_offset(const attn_product_args *args, const attn_strides *stride, int64_t row) {
  return row / args->rows * stride->b + row % args->rows * stride->s;
}

/* Elements that follow each other within one head. */
typedef struct segment {
  int64_t offset, count;
} segment;

static segment segment_at(const attn_strides *stride, int64_t head_dim, int64_t column, int64_t end) {
  if (head_dim == 0) return (segment){column * stride->d, end - column};
  const int64_t within = column % head_dim;
  return (segment){column / head_dim * stride->h + within * stride->d, min64(end - column, head_dim - within)};
}

/* Elements that are `stride` apart. */
typedef struct elements {
  attn_storage in;
  int64_t at, stride;
} elements;

static elements dense(const void *data, attn_dtype dtype) { return (elements){{data, dtype}, 0, 1}; }

/* The address of the first one. */
static char *address_of(const elements *e) {
  return (char *)(uintptr_t)e->in.data + attn_elements_bytes(e->in.dtype, e->at);
}

static void copy(const attn_product *product, elements from, elements to, int64_t count) {
  if (from.in.dtype == to.in.dtype && from.stride == 1 && to.stride == 1)
    memcpy(address_of(&to), address_of(&from), (size_t)attn_elements_bytes(to.in.dtype, count));
  else
    product->rows->write(&(attn_kv_rows){.tokens = 1,
                                         .heads = 1,
                                         .dim = count,
                                         .from = from.in,
                                         .from_at = &from.at,
                                         .from_element = from.stride,
                                         .to = (void *)(uintptr_t)to.in.data,
                                         .to_dtype = to.in.dtype,
                                         .to_at = &to.at,
                                         .to_element = to.stride});
}

/* Element `column` of a row of X, and those that follow it. */
static elements x_elements(const run_context *c, int64_t row, const segment *s) {
  const attn_product_args *args = c->args;
  return (elements){{args->x, c->product->dtype_x}, row_offset(args, &args->x_stride, row) + s->offset, args->x_stride.d};
}

static elements y_elements(const run_context *c, int64_t row, const segment *s) {
  const attn_product_args *args = c->args;
  return (elements){{args->y, c->product->dtype_y}, row_offset(args, &args->y_stride, row) + s->offset, args->y_stride.d};
}

/* The same of X, which a kernel that multiplies float32 gets rounded to bf16. */
static void copy_x(const attn_product *product, elements from, elements to, int64_t count) {
  copy(product, from, to, count);
  if (product->rounds_x != ATTN_BF16 || to.in.dtype == ATTN_BF16) return;
  float *x = (float *)(void *)address_of(&to);
  for (int64_t i = 0; i < count; i++) x[i] = attn_f32_of_bf16(attn_bf16_of_f32(x[i]));
}

static void gather_row(const run_context *c, int64_t row, int64_t begin, int64_t end, void *to) {
  elements out = dense(to, c->product->x_kept);
  for (segment s; begin < end; begin += s.count, out.at += s.count) {
    s = segment_at(&c->args->x_stride, c->args->x_head_dim, begin, end);
    copy_x(c->product, x_elements(c, row, &s), out, s.count);
  }
}

static void scatter_row(const run_context *c, int64_t row, int64_t begin, int64_t end, const float *sums) {
  elements from = dense(sums, ATTN_F32);
  for (segment s; begin < end; begin += s.count, from.at += s.count) {
    s = segment_at(&c->args->y_stride, c->args->y_head_dim, begin, end);
    copy(c->product, from, y_elements(c, row, &s), s.count);
  }
}

/* The scale and the bias (NULL: run() has applied them) and the function of finished sums. */
static void finish_row(const attn_product *product, const float *scale, const float *bias, int64_t first_column,
                       int64_t count, float *row) {
  for (int64_t c = 0; scale && c < count; c++) row[c] *= scale[first_column + c];
  for (int64_t c = 0; bias && c < count; c++) row[c] += bias[first_column + c];
  if (product->activate) product->activate(row, count);
}

/* The work of a task: a block of rows times a strip of panels, one depth block [begin, end) at a time. */
typedef struct strip {
  int64_t first_row, rows, first_panel, panels, begin, end;
  int64_t capacity;            /* rows up to whole tiles; of few rows as run_few() takes them */
  int64_t x_stride;            /* elements from row to row of x, if that is not transposed */
  bool few;                    /* for run_few() */
  char *x;                     /* [capacity][stride]: X of the depth block; transposed [depth][capacity] */
  float *sum;                  /* [capacity][stride] */
  bool x_in_place, y_in_place; /* not in this memory but where the caller has them */
  void *own;                   /* memory of the kernel's form, or a widened panel */
  float *most;                 /* the largest magnitude of each row, if they are rounded to int8 */
} strip;

/* Floats from row to row, if it is the same for all rows of the block. */
static bool even_rows(const attn_product_args *args, const attn_strides *stride, const strip *s, int64_t *step) {
  *step = args->rows == 1 ? stride->b : stride->s;
  return s->first_row / args->rows == (s->first_row + s->rows - 1) / args->rows || stride->b == args->rows * *step;
}

/* A block of so many rows needs none of 0 up to a whole tile. */
static bool rows_fit(const attn_product_kernel *kernel, const strip *s) {
  return kernel->form ? s->capacity == s->rows : s->rows >= kernel->tile_rows && !kernel->rows_by_place;
}

/* Columns of X that are FAR or more apart share few sets of level 1, so that many panels read them sooner from a copy. */
static bool columns_near(const attn_product_args *args, int64_t panels) {
  enum { FAR = 2048, PAGE = 4096, FEW_PANELS = 4 };
  const int64_t apart = float_bytes(llabs(args->x_stride.d));
  return apart < FAR || (apart < PAGE && panels <= FEW_PANELS);
}

/* X of the depth block serves where it lies, for a kernel that packs it or has no form: dense rows, or without a form dense
 * columns. */
static bool x_in_place(const run_context *c, const strip *s) {
  const attn_strides *stride = &c->args->x_stride;
  const attn_product_kernel *kernel = c->product->kernel;
  const bool takes_rows = packs_x(kernel) ? !c->x_transposed : !kernel->form && !s->few;
  int64_t step;
  return takes_rows && rows_fit(kernel, s) && c->product->dtype_x == c->product->x_kept &&
         (c->product->rounds_x == ATTN_F32 || c->product->x_kept == ATTN_BF16) && !c->args->x_head_dim &&
         (c->x_transposed ? columns_near(c->args, s->panels) : stride->d == 1) && even_rows(c->args, stride, s, &step);
}

/* So does Y, for the sums of the last depth block and, with a form, of all: the columns of every panel are dense and all
 * there. */
static bool y_in_place(const run_context *c, const strip *s) {
  const attn_strides *stride = &c->args->y_stride;
  const attn_product_kernel *kernel = c->product->kernel;
  const int64_t width = kernel->panel_columns;
  int64_t step;
  return rows_fit(kernel, s) && !s->few && c->product->dtype_y == ATTN_F32 && c->args->y_head_dim % width == 0 &&
         (s->first_panel + s->panels) * width <= c->product->columns && stride->d == 1 &&
         even_rows(c->args, stride, s, &step);
}

static size_t kept_bytes(const run_context *c, int64_t count) {
  return (size_t)attn_elements_bytes(c->product->x_kept, count);
}

/* Column k of X at `to`. Rows of one sequence follow each other. */
static void gather_column(const run_context *c, const strip *s, int64_t k, char *to) {
  const attn_product_args *args = c->args;
  const segment column = segment_at(&args->x_stride, args->x_head_dim, k, k + 1);
  elements out = dense(to, c->product->x_kept);
  for (int64_t count; out.at < s->rows; out.at += count) {
    const int64_t row = s->first_row + out.at;
    elements from = x_elements(c, row, &column);
    from.stride = 1;
    count = min64(s->rows - out.at, args->rows - row % args->rows);
    copy_x(c->product, from, out, count);
  }
  memset(address_of(&out), 0, kept_bytes(c, s->capacity - s->rows));
}

/* A NaN is the largest. */
static float largest_magnitude(const float *x, int64_t count) {
  uint32_t most = 0;
  for (int64_t k = 0; k < count; k++) {
    const uint32_t bits = attn_bits_of_f32(x[k]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return attn_f32_of_bits(most);
}

/* The largest magnitudes of whole rows, which come through the memory of X a part at a time. */
static void find_most(const run_context *c, const strip *s, int64_t part) {
  float *x = (float *)(void *)s->x;
  for (int64_t i = 0; i < s->rows; i++) {
    float largest = 0;
    for (int64_t begin = 0; begin < c->product->depth; begin += part) {
      const int64_t end = min64(begin + part, c->product->depth);
      gather_row(c, s->first_row + i, begin, end, x);
      const float here = largest_magnitude(x, end - begin);
      largest = here > largest || isnan(here) ? here : largest;
    }
    s->most[i] = largest;
  }
}

/* To integers, times their scale. */
static void round_to_int8(float most, int64_t count, float *x) {
  const float steps = int8_steps(most), scale = int8_scale(most);
  for (int64_t k = 0; k < count; k++) x[k] = nearest(x[k] * steps) * scale;
}

/* X of the depth block; rows up to the next whole tile are 0, and depth is up to the next whole step. */
static void gather(const run_context *c, const strip *s) {
  for (int64_t k = s->begin; c->x_transposed && k < s->end; k++)
    gather_column(c, s, k, s->x + kept_bytes(c, (k - s->begin) * s->capacity));
  const int64_t depth = s->end - s->begin, whole = round_up(depth, depth_step(c->product->kernel));
  for (int64_t i = 0; !c->x_transposed && i < s->capacity; i++) {
    char *row = s->x + kept_bytes(c, i * s->x_stride);
    const int64_t there = i < s->rows ? depth : 0;
    if (there) gather_row(c, s->first_row + i, s->begin, s->end, row);
    if (there && c->product->rounds_x == ATTN_I8) round_to_int8(s->most[i], there, (float *)(void *)row);
    memset(row + kept_bytes(c, there), 0, kept_bytes(c, whole - there));
  }
}

/* X of the depth block for the kernel, which finds it where it lies or in the strip's memory. */
static void set_x(const run_context *c, const strip *s, attn_product_block *block) {
  block->x = s->x;
  block->x_stride = c->x_transposed ? s->capacity : s->x_stride;
  if (!s->x_in_place) return gather(c, s);
  const elements first = x_elements(c, s->first_row, &(segment){.offset = s->begin * c->args->x_stride.d});
  block->x = address_of(&first);
  if (c->x_transposed)
    block->x_stride = c->args->x_stride.d;
  else
    (void)even_rows(c->args, &c->args->x_stride, s, &block->x_stride);
}

/* In a Y of float32. */
static float *y_at(const run_context *c, int64_t row, int64_t column) {
  const segment s = segment_at(&c->args->y_stride, c->args->y_head_dim, column, column + 1);
  const elements y = y_elements(c, row, &s);
  return (float *)(void *)address_of(&y);
}

/* The kernel multiplies the last sums by their scale and adds the bias. */
static bool finished_in_kernel(const attn_product *product, const strip *s) { return product->kernel->finishes && !s->few; }

static const float *scale_left(const attn_product *product, const strip *s) {
  return finished_in_kernel(product, s) ? NULL : product->scale;
}

static const float *bias_left(const attn_product *product, const strip *s) {
  return finished_in_kernel(product, s) ? NULL : product->bias;
}

/* Rows of Y that were summed in place. */
static void finish_rows(const run_context *c, const strip *s, int64_t begin, int64_t end) {
  const attn_product *product = c->product;
  const float *scale = scale_left(product, s), *bias = bias_left(product, s);
  if (!scale && !bias && !product->activate) return;
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t column = begin, count; column < end; column += count) {
      count = segment_at(&c->args->y_stride, c->args->y_head_dim, column, end).count;
      finish_row(product, scale, bias, column, count, y_at(c, s->first_row + i, column));
    }
}

/* Panels first .. of the strip, whose sums are all there. */
static void scatter(const run_context *c, const strip *s, int64_t first, int64_t panels) {
  const int64_t width = c->product->kernel->panel_columns, begin = (s->first_panel + first) * width;
  const int64_t end = min64(begin + panels * width, c->product->columns);
  if (s->y_in_place) return finish_rows(c, s, begin, end);
  for (int64_t i = 0; i < s->rows; i++) {
    float *row = s->sum + i * c->at.memory.sum_stride;
    finish_row(c->product, scale_left(c->product, s), bias_left(c->product, s), begin, end - begin, row);
    scatter_row(c, s->first_row + i, begin, end, row);
  }
}

/* Loads Y, where sums are elsewhere: panels first .. of the strip. */
static void load_y(const run_context *c, const strip *s, int64_t first, int64_t panels) {
  const int64_t width = c->product->kernel->panel_columns, begin = (s->first_panel + first) * width;
  const int64_t end = min64(begin + panels * width, c->product->columns);
  for (int64_t i = 0; i < s->rows; i++) {
    elements to = dense(s->sum + i * c->at.memory.sum_stride, ATTN_F32);
    int64_t column = begin;
    for (segment part; column < end; column += part.count, to.at += part.count) {
      part = segment_at(&c->args->y_stride, c->args->y_head_dim, column, end);
      copy(c->product, y_elements(c, s->first_row + i, &part), to, part.count);
    }
  }
}

/* The kernel stores finished columns itself, where the form can: as bf16, dense, in rows evenly apart. */
static bool y_of_kernel(const run_context *c, const strip *s, int64_t column, int64_t count, attn_product_y *y) {
  const attn_product *product = c->product;
  const segment columns = segment_at(&c->args->y_stride, c->args->y_head_dim, column, column + count);
  const elements first = y_elements(c, s->first_row, &columns);
  if (product->x_kept != ATTN_BF16 || !product->by_panel || product->calls_back || first.in.dtype != ATTN_BF16 ||
      first.stride != 1 || columns.count != count || !even_rows(c->args, &c->args->y_stride, s, &y->stride))
    return false;
  y->at = (uint16_t *)(void *)address_of(&first);
  y->bias = product->bias ? product->bias + column : NULL;
  y->activate = product->activate;
  return true;
}

/* The part of a panel that is multiplied after this one. */
static const void *panel_after(const attn_product *product, const strip *s, int64_t panel) {
  const int64_t step = depth_step(product->kernel);
  if (panel + 1 < s->panels) return packed_at(product, s->first_panel + panel + 1, s->begin / step);
  return s->end < product->depth ? packed_at(product, s->first_panel, s->end / step) : NULL;
}

/* sum += X W over the depth block; the first one starts from 0, or from Y. */
static void multiply(const run_context *c, const strip *s) {
  static const float zeros[MOST_COLUMNS];
  const attn_product *product = c->product;
  const int64_t width = product->kernel->panel_columns, sum_stride = c->at.memory.sum_stride;
  const bool begins = s->begin == 0, zero = begins && !c->args->accumulate;
  const bool from_y = s->y_in_place && (product->kernel->form || begins) && !zero;
  const bool to_y = s->y_in_place && (product->kernel->form || s->end == product->depth);
  int64_t y_stride;
  (void)even_rows(c->args, &c->args->y_stride, s, &y_stride);
  attn_product_block block = {.rows = to_y || s->x_in_place ? s->rows : s->capacity,
                              .depth = s->end - s->begin,
                              .x_transposed = c->x_transposed,
                              .start_stride = zero     ? 0
                                              : from_y ? y_stride
                                                       : sum_stride,
                              .out_stride = to_y ? y_stride : sum_stride,
                              .weights = product->dtype,
                              .x_dtype = product->x_kept,
                              .next_bytes = ceil_div(s->end - s->begin, depth_step(product->kernel)) * product->step_bytes,
                              .memory = s->own};
  if (begins && !zero && !s->y_in_place && !product->by_panel) load_y(c, s, 0, s->panels);
  set_x(c, s, &block);
  if (packs_x(product->kernel)) product->kernel->form->pack_x(&block);
  if (s->few) {
    block.panel = packed_at(product, s->first_panel, s->begin / depth_step(product->kernel));
    block.out = s->sum;
    block.start = zero ? zeros : block.out;
    product->kernel->run_few(&block, s->panels, product->steps * product->step_bytes);
    return;
  }
  for (int64_t p = 0; p < s->panels; p++) {
    const int64_t column = (s->first_panel + p) * width;
    block.columns = min64(product->columns - column, width);
    block.panel = packed_at(product, s->first_panel + p, s->begin / depth_step(product->kernel));
    if (is_narrow(product->kernel, product->dtype)) {
      product->kernel->widen(block.panel, product->dtype, block.depth * width, s->own);
      block.panel = s->own;
    }
    block.next_panel = panel_after(product, s, p);
    const bool finishes = s->end == product->depth && finished_in_kernel(product, s);
    block.scale = product->scale && finishes ? product->scale + column : NULL;
    block.bias = product->bias && finishes ? product->bias + column : NULL;
    float *sum = s->sum + (product->by_panel ? 0 : p * width), *in_y = s->y_in_place ? y_at(c, s->first_row, column) : NULL;
    block.out = to_y ? in_y : sum;
    if (!zero && product->by_panel && !from_y) load_y(c, s, p, 1);
    block.start = zero ? zeros : from_y ? in_y : sum;
    attn_product_y y;
    block.y = y_of_kernel(c, s, column, block.columns, &y) ? &y : NULL;
    product->kernel->run(&block);
    if (product->by_panel && !block.y) scatter(c, s, p, 1);
  }
}

/* The rows of a block, counted through all sequences. */
typedef struct row_range {
  int64_t first, count;
} row_range;

static row_range rows_of_block(const layout *at, int64_t block) {
  const int64_t each = ceil_div(at->rows, at->rows_per_block), within = block % each * at->rows_per_block;
  return (row_range){block / each * at->rows + within, min64(at->rows_per_block, at->rows - within)};
}

typedef struct place {
  int64_t block, strip;
} place;

/* Near blocks follow each other, so that loops over rows leave them with their threads. Within these strips are outermost,
 * so that neighbouring tasks share W. */
static place place_of(const layout *at, int64_t task) {
  const int64_t first = task / (at->near_blocks * at->strips) * at->near_blocks, within = task - first * at->strips;
  const int64_t blocks = min64(at->near_blocks, at->blocks - first);
  return (place){first + within % blocks, within / blocks};
}

static void run_task(void *pointer, int64_t task, int worker) {
  const run_context *c = pointer;
  const attn_product *product = c->product;
  assert(task >= 0 && task < c->at.blocks * c->at.strips && worker >= 0 && worker < product->options.threads);
  const place at = place_of(&c->at, task);
  const row_range block = rows_of_block(&c->at, at.block);
  char *memory = c->workspace + worker * c->at.memory.bytes;
  strip s = {.first_row = block.first, .rows = block.count, .first_panel = at.strip * c->at.panels_per_strip};
  s.panels = min64(c->at.panels_per_strip, product->panels - s.first_panel);
  s.few = product->kernel->run_few && s.rows <= ATTN_PRODUCT_FEW_ROWS && !c->x_transposed;
  s.capacity = packs_x(product->kernel) ? s.rows : round_up(s.rows, product->kernel->tile_rows);
  if (s.few) s.capacity = s.rows + (s.rows % 4 == 3); /* 3 as 4, 7 as 8 */
  assert(s.capacity <= c->at.rows_per_block);
  s.x_stride = s.few ? c->at.memory.few_stride : c->at.memory.x_stride;
  s.x = memory + c->at.memory.x_at;
  s.sum = floats_at(memory, c->at.memory.sum_at);
  s.own = memory + c->at.memory.own_at;
  s.most = floats_at(memory, c->at.memory.most_at);
  s.x_in_place = x_in_place(c, &s);
  s.y_in_place = y_in_place(c, &s);
  const int64_t depth = s.few ? FEW_DEPTH : product->block.depth;
  const uint64_t mode = attn_float_mode_enter();
  if (product->rounds_x == ATTN_I8) find_most(c, &s, depth);
  for (; s.begin < product->depth; s.begin = s.end) {
    s.end = s.begin + min64(depth, product->depth - s.begin);
    multiply(c, &s);
  }
  if (!product->by_panel) scatter(c, &s, 0, s.panels);
  attn_float_mode_leave(mode);
}

/* X or Y as the arguments give it. */
typedef struct side {
  const char *name, *stride_name;
  const void *data;
  attn_dtype dtype;
  attn_strides stride;
  int64_t head_dim, columns;
  bool output;
} side;

static attn_status check_side(const attn_product_args *args, const side *s) {
  if (s->head_dim < 0 || (s->head_dim > 0 && s->columns % s->head_dim))
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "attn_product_args.%s_head_dim is %" PRId64 "; it must be 0 or a divisor of the %" PRId64 " columns",
                     s->name, s->head_dim, s->columns);
  if (!s->data || (uintptr_t)s->data % attn_dtype_alignment(s->dtype))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_args.%s is %p; it must point to aligned elements", s->name,
                     s->data);
  const int64_t width = s->head_dim ? s->head_dim : s->columns;
  const attn_tensor tensor = {.field = s->stride_name,
                              .axes = {{'b', args->batch, s->stride.b},
                                       {'h', s->columns / width, s->head_dim ? s->stride.h : 0},
                                       {'s', args->rows, s->stride.s},
                                       {'d', width, s->stride.d}},
                              .output = s->output};
  return attn_check_strides(&tensor);
}

static attn_status read_args(const attn_product *product, const attn_product_args *theirs, attn_product_args *args) {
  REQUIRE(product, "product is NULL; it must come from attn_product_create");
  REQUIRE(theirs, "args is NULL; it must point to an attn_product_args");
  const attn_status size = attn_struct_read(&args_layout, theirs, args);
  if (size != ATTN_OK) return size;
  const struct {
    const char *field;
    int64_t value;
  } sizes[] = {{"batch", args->batch}, {"rows", args->rows}};
  for (int i = 0; i < 2; i++)
    if (sizes[i].value < 0 || sizes[i].value > ATTN_SIZE_LIMIT)
      return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_args.%s is %" PRId64 "; it must be in 0..2^31", sizes[i].field,
                       sizes[i].value);
  if (args->batch == 0 || args->rows == 0) return ATTN_OK;
  const side x = {.name = "x",
                  .stride_name = "attn_product_args.x_stride",
                  .data = args->x,
                  .dtype = product->dtype_x,
                  .stride = args->x_stride,
                  .head_dim = args->x_head_dim,
                  .columns = product->depth};
  const side y = {.name = "y",
                  .stride_name = "attn_product_args.y_stride",
                  .data = args->y,
                  .dtype = product->dtype_y,
                  .stride = args->y_stride,
                  .head_dim = args->y_head_dim,
                  .columns = product->columns,
                  .output = true};
  REQUIRE(
      !args->accumulate || (product->dtype_y == ATTN_F32 && product->dtype != ATTN_I8),
      "attn_product_args.accumulate is true with dtype_y %d and weights of %d; it must be false, or dtype_y ATTN_F32 and "
      "weights of floats",
      (int)product->dtype_y, (int)product->dtype);
  attn_status status = check_side(args, &x);
  if (status == ATTN_OK) status = check_side(args, &y);
  if (status != ATTN_OK || x.data != y.data) return status;
  return attn_fail(ATTN_INVALID_ARGUMENT, "attn_product_args.y is x; it must be memory of its own");
}

/* Columns shorter than a cache line are gathered as quickly by rows. A library always gets rows, so that its bits do not
 * depend on how X lies. So do forms of several elements of depth that leave X to the gathering, and rows that are rounded as
 * a whole. */
static bool lies_transposed(const attn_product *product, const attn_product_args *args) {
  const attn_product_kernel *kernel = product->kernel;
  const int64_t line_floats = ATTN_MEMORY_ALIGN / sizeof(float);
  return args->x_stride.s == 1 && args->rows >= line_floats && !kernel->rows_by_place && !product->int8_rows &&
         (!kernel->form || packs_x(kernel));
}

attn_status attn_product_run(const attn_product *product, const attn_product_args *args, void *workspace,
                             size_t workspace_bytes) {
  attn_product_args own;
  attn_status status = read_args(product, args, &own);
  if (status != ATTN_OK || own.batch == 0 || own.rows == 0) return status;
  const int64_t rows = own.batch * own.rows;
  attn_options options = product->options;
  options.threads = paying_threads(product, rows);
  run_context context = {.product = product,
                         .args = &own,
                         .at = layout_of(product, own.batch, own.rows, options.threads),
                         .x_transposed = lies_transposed(product, &own),
                         .workspace = workspace};
  status = attn_check_workspace("attn_product", workspace, workspace_bytes, attn_product_workspace(product, rows));
  if (status != ATTN_OK) return status;
  if (product->kernel->begin_run) product->kernel->begin_run();
  attn_parallel_run_near(&options, context.at.blocks * context.at.strips, run_task, &context);
  if (product->kernel->end_run) product->kernel->end_run();
  return ATTN_OK;
}
