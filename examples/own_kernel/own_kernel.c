/* SPDX-License-Identifier: MIT */
/* own_kernel: the textbook's attention, written outside of libattn. Plain float32 attention, one query head a task.
 *
 *     cc -O3 -fPIC -shared own_kernel.c $(pkg-config --cflags attn) -lm -o libown_kernel.so
 *     attnbench check --load ./libown_kernel.so -k own_kernel -a seq=64,1000 -a heads=4 -a heads_kv=2
 *     attnbench run -k own_kernel=./libown_kernel.so -k 'flash_*'
 *     attnbench run -k own_kernel=./libown_kernel.so:attn_plugin_entry    (the symbol, for a file that has several)
 *
 * A program loads it by attn_load_kernels("./libown_kernel.so") and names it in attn_options.kernel. */
#include <attn/kernel.h>
#include <math.h>

/* NULL, or why the kernel does not take the problem: what it does not compute it must refuse. */
static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32 || p->dtype_o != ATTN_F32) return "it takes float32 only";
  if (p->score != ATTN_SCORE_DOT || p->softcap > 0) return "it takes plain dot scores only";
  if (p->uses || p->window_left >= 0 || p->window_right >= 0 || p->key_begin || p->key_end)
    return "it takes no masks, no lengths and no LSE";
  return NULL;
}

/* A task is one query head; it needs room for the scores of one row. */
static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  schedule->phases = 1;
  schedule->items[0] = p->heads_q / p->heads_kv;
  schedule->row_block = p->seq_q;
  schedule->key_block = p->seq_k;
  schedule->scratch_bytes = (size_t)p->seq_k * sizeof(float); /* a size is at most 2^31 */
  return true;
}

static float dot(const float *a, int64_t stride_a, const float *b, int64_t stride_b, int64_t count) {
  float sum = 0;
  for (int64_t d = 0; d < count; d++) sum += a[d * stride_a] * b[d * stride_b];
  return sum;
}

/* Turns scores into weights; returns their sum. */
static float weigh(float *score, int64_t keys) {
  float largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; j++) largest = fmaxf(largest, score[j]);
  for (int64_t j = 0; j < keys; j++) sum += score[j] = expf(score[j] - largest);
  return sum;
}

static void attend(const attn_problem *p, const float *q, const float *k, const float *v, float *o, float *score) {
  for (int64_t j = 0; j < p->seq_k; j++)
    score[j] = p->scale * dot(q, p->q_stride.d, k + j * p->k_stride.s, p->k_stride.d, p->dim_qk);
  const float sum = weigh(score, p->seq_k);
  for (int64_t d = 0; d < p->dim_v; d++)
    o[d * p->o_stride.d] = p->seq_k ? dot(score, 1, v + d * p->v_stride.d, p->v_stride.s, p->seq_k) / sum : 0;
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = task.unit / p->heads_kv, head_kv = task.unit % p->heads_kv;
  const int64_t head = head_kv * schedule->items[0] + task.item;
  const float *q = (const float *)args->q + b * p->q_stride.b + head * p->q_stride.h;
  const float *k = (const float *)args->k + b * p->k_stride.b + head_kv * p->k_stride.h;
  const float *v = (const float *)args->v + b * p->v_stride.b + head_kv * p->v_stride.h;
  float *o = (float *)args->o + b * p->o_stride.b + head * p->o_stride.h;
  (void)unit_memory;
  for (int64_t i = 0; i < p->seq_q; i++) attend(p, q + i * p->q_stride.s, k, v, o + i * p->o_stride.s, scratch);
}

static const attn_kernel own_kernel = {
    .info = {.name = "own_kernel",
             .algorithm = "naive",
             .isa = "c",
             .library = "",
             .summary = "the textbook, one row of scores at a time, from examples/own_kernel",
             .numerics = {.exp_error = 0x1p-22}}, /* error of expf, on which attnbench's error limit stands */
    .rejects = rejects,
    .plan = plan,
    .run = run,
};

ATTN_EXPORT_KERNELS(&own_kernel);
