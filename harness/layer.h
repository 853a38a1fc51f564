/* Whole layers as cases: projections around attention, checked against float64 and timed like a kernel, with the share of the time
 * that each part takes. layer_kinds.c has one entry per layer; everything here is the same for all of them. */
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H

#include "check.h"

/* Inputs, weights and the rows to check of one case. */
typedef struct bench_layer bench_layer;

/* The layer made with one kernel. */
typedef struct bench_layer_job bench_layer_job;

bool bench_layer_is(const bench_case *bench); /* false: plain attention */

/* NULL, or why the case is no layer that we have: it has options that layers lack, or dimensions that don't fit. */
const char *bench_layer_contradiction(const bench_case *bench);

/* The data of an open layer; tests spoil it. */
struct bench_layer_data *bench_layer_data_of(bench_layer *layer);

/* Floating-point operations of one call: projections (and, in a block, the feed-forward) plus attention; and bytes of input, output and
 * weights, each once. */
double bench_layer_flops(const bench_case *bench);
double bench_layer_bytes(const bench_case *bench);

/* NULL if memory is short. */
bench_layer *bench_layer_open(const bench_case *bench);
void bench_layer_close(bench_layer *layer); /* NULL is fine */

/* Makes the layer with this attention kernel (NULL: the automatic choice), and with the projections of the kernel's tier. NULL with
 * the reason in attn_last_error(). */
bench_layer_job *bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel);
void bench_layer_unmake(bench_layer_job *job); /* NULL is fine */
size_t bench_layer_workspace(const bench_layer_job *job);
const char *bench_layer_kernel(const bench_layer_job *job);
const char *bench_layer_product(const bench_layer_job *job);

/* Runs it on poisoned output and judges the chosen rows, and that wrong answers would be told apart: zeros, and the layer with uniform
 * attention. */
bench_verdict bench_layer_check(bench_layer_job *job, const attn_numerics *numerics, void *workspace, size_t bytes);

/* What timing needs: one call, and the output before and after it. */
attn_status bench_layer_call(bench_layer_job *job, void *workspace, size_t bytes);
void bench_layer_poison(bench_layer_job *job);
uint64_t bench_layer_output_hash(const bench_layer_job *job);

/* Shares of the calls' time since the last reset, 0..1: dense layers, attention, and what is left. */
typedef struct bench_shares {
  double projections, attention, rest;
} bench_shares;
void bench_layer_reset_shares(bench_layer_job *job);
bench_shares bench_layer_shares(const bench_layer_job *job);

#endif
