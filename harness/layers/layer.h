/* SPDX-License-Identifier: MIT */
/* Whole layers as cases: libattn's attention with what stands around it, and the rest of libattn_nn, checked against
 * float64 and timed like a kernel, with the share of the time that each part takes. layer_functions.h has what differs
 * between layers; everything here is the same for all of them. */
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H

#include "cases/layer_info.h"
#include "check/check.h"

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

/* The data of an open layer; tests spoil it. */
struct bench_layer_data *bench_layer_data_of(bench_layer *layer);

/* Makes the layer with this attention kernel (NULL: the automatic choice), and with the projections of the kernel's tier.
 * ATTN_UNSUPPORTED if the layer asks for what the kernel lacks; every failure leaves a sentence in attn_last_error(). */
attn_status bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_trial **trial);
void bench_layer_unmake(bench_layer_trial *trial); /* NULL is fine */
size_t bench_layer_workspace(const bench_layer_trial *trial);
const char *bench_layer_kernel(const bench_layer_trial *trial);  /* "" where there is none */
const char *bench_layer_product(const bench_layer_trial *trial); /* "" without dense layers */

/* Runs the layer on poisoned output, checks the chosen rows, and checks that two wrong answers would fail: zeros, and the
 * wrong answer of the layer, such as uniform attention. Negated inputs must give another output. */
bench_verdict bench_layer_check(bench_layer_trial *trial, const attn_numerics *numerics, void *workspace, size_t bytes);

/* What timing needs: one call, its input, and the output before and after it. bench_layer_negate() changes the sign of every
 * input (`positions` has none). The hash of an output on negated inputs is that of the checked output, if it is the output
 * that the check saw on negated inputs. */
void bench_layer_negate(bench_layer_trial *trial);
attn_status bench_layer_call(bench_layer_trial *trial, void *workspace, size_t bytes);
void bench_layer_poison(bench_layer_trial *trial);
uint64_t bench_layer_output_hash(const bench_layer_trial *trial);

/* Shares of the calls' time since the last reset, 0..1: dense layers, attention, and what is left. All 0 for layers without
 * projections, which report no parts. */
typedef struct bench_shares {
  double projections, attention, rest;
} bench_shares;
void bench_layer_reset_shares(bench_layer_trial *trial);
bench_shares bench_layer_shares(const bench_layer_trial *trial);

#endif
