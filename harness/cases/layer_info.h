/* SPDX-License-Identifier: MIT */
/* Layers of libattn_nn as cases: which axes each has, which values it sets itself, and what contradicts it. layers.def
 * has one entry per layer; the room layers/ makes, checks and runs them. */
#ifndef BENCH_LAYER_INFO_H
#define BENCH_LAYER_INFO_H

#include "cases/case.h"

typedef enum bench_layer_id {
#define LAYER(constant, ...) LAYER_##constant,
#include "cases/layers.def"
  LAYER_COUNT
} bench_layer_id;

/* The properties of a layer. */
enum {
  BENCH_HAS_WIDTH = 1 << 0,       /* rows of `width` numbers are its input or its output */
  BENCH_HAS_HEADS = 1 << 1,       /* heads and head_dim mean something */
  BENCH_HAS_GROUPS = 1 << 2,      /* heads may share keys and values */
  BENCH_HAS_LENGTHS = 1 << 3,     /* seq_q and seq_k may differ */
  BENCH_HAS_CAUSAL = 1 << 4,      /* takes a causal mask, aligned top-left */
  BENCH_HAS_MASKS = 1 << 5,       /* takes any causal mask, and windows */
  BENCH_HAS_SCALE = 1 << 6,       /* takes a scale of dot scores */
  BENCH_HAS_ATTENTION = 1 << 7,   /* runs a kernel */
  BENCH_HAS_PROJECTIONS = 1 << 8, /* has dense layers, and a profile that separates their time from the rest */
  BENCH_HAS_PLAN = 1 << 9,        /* is made once and run many times */
  BENCH_HAS_WORKSPACE = 1 << 10,  /* works in the caller's memory; other layers allocate what a call needs */
  BENCH_HAS_PAST = 1 << 11,       /* seq_k counts the seq_q new tokens and those before them */
  BENCH_HAS_CACHE = 1 << 12,      /* its output is a cache, of any type, dense or in pages; it calculates next to nothing */
  BENCH_HAS_TYPES = 1 << 13,      /* rows and weights may be bf16 or f16, all alike */
  BENCH_HAS_RESHAPE = 1 << 14,    /* may be made for one shape, and reshaped for another */
  BENCH_HAS_WEIGHT_TYPES = 1 << 15, /* weights have a type of their own, that of K and V; also int8 */
  /* The layers of attn/mha.h and most of attn/nn.h have these in common. */
  BENCH_HAS_DENSE = BENCH_HAS_PROJECTIONS | BENCH_HAS_PLAN | BENCH_HAS_WORKSPACE,
};

/* The value that an axis has for a layer where none is given. fixed: no other value makes sense. */
typedef struct bench_layer_axis {
  bench_axis axis;
  const char *value;
  bool fixed;
} bench_layer_axis;

enum { BENCH_LAYER_MOST_AXES = 4 };

typedef struct bench_layer_info {
  const char *name;
  bench_layer_id id;
  unsigned has;                                     /* BENCH_HAS_... */
  bench_layer_axis axes[BENCH_LAYER_MOST_AXES + 1]; /* ended by value NULL */
} bench_layer_info;

/* Find the layer by its name, NULL if none has it, and the layer of a case, NULL for plain attention. */
const bench_layer_info *bench_layer_find(const char *name);
const bench_layer_info *bench_layer_of(const bench_case *bench);

/* ---- Properties of a case; plain attention has heads, attention, plan and workspace ---- */

bool bench_layer_is(const bench_case *bench);                       /* false: plain attention */
bool bench_layer_has(const bench_case *bench, unsigned properties); /* BENCH_HAS_...: any of them */

/* Sets the axes for which the layer has a value of its own, and drops the heads of layers without heads. Without a layer
 * it changes nothing. */
void bench_layer_settle(bench_spec *spec);

/* True, with a sentence, if the layer cannot be made for the case: it lacks an option that the case asks for, or the
 * sizes do not fit. */
bool bench_layer_contradicts(const bench_case *bench, char *reason, size_t bytes);

#endif
