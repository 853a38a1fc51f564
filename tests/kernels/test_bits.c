/* SPDX-License-Identifier: MIT */
/* Determinism: with a given kernel on one CPU, the bits of a row depend only on its own inputs. They must be the same for
 * all thread counts, pools, batches, neighbours, positions and workspaces. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "tests/support/pool.h"
#include "tests/support/support.h"

/* Several row blocks and key blocks of every kernel, with tails everywhere; two KV heads with three query heads each, two
 * where few cases are wanted. There are variants for kernels that take only few queries, no masks, only bf16, or only K and
 * V of integers. */
static attn_problem uneven_problem(const char *kernel) {
  static const struct {
    int64_t seq_q, seq_k;
    bool plain;
    attn_dtype dtype, dtype_kv;
  } kinds[] = {{131, 293, false, ATTN_F32, ATTN_F32},  {5, 2111, false, ATTN_F32, ATTN_F32},
               {131, 293, true, ATTN_F32, ATTN_F32},   {131, 293, false, ATTN_BF16, ATTN_BF16},
               {5, 2111, false, ATTN_BF16, ATTN_BF16}, {5, 2111, false, ATTN_F32, ATTN_I8}};
  attn_problem p;
  for (size_t i = 0; i < COUNT(kinds); i++) {
    if (test_few())
      attn_problem_init(&p, 2, 2, 1, kinds[i].seq_q, kinds[i].seq_k, 37, 29);
    else
      attn_problem_init(&p, 3, 6, 2, kinds[i].seq_q, kinds[i].seq_k, 37, 29);
    if (!kinds[i].plain) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
    p.uses = kinds[i].plain ? 0 : ATTN_USE_LSE;
    p.dtype_q = p.dtype_o = kinds[i].dtype;
    p.dtype_kv = kinds[i].dtype_kv;
    if (!attn_kernel_rejects(attn_kernel_find(kernel), &p)) return p;
  }
  fail_msg("%s takes none of the problems", kernel);
  return p;
}

/* Element `index` of q or o, which have one type in these problems, and of k or v. */
static void *element(const attn_problem *p, const void *tensor, int64_t index) {
  return (void *)(uintptr_t)attn_element_at(tensor, p->dtype_q, index);
}
static void *key_element(const attn_problem *p, const void *tensor, int64_t index) {
  return (void *)(uintptr_t)attn_element_at(tensor, p->dtype_kv, index);
}

static void assert_same_outputs(const char *kernel, const char *what, const test_data *a, const test_data *b) {
  if (memcmp(a->args.o, b->args.o, a->o_bytes) || memcmp(a->args.lse, b->args.lse, a->lse_bytes))
    fail_msg("%s: the bits differ with %s", kernel, what);
}

/* ---- Threads and pools ---- */

static void same_bits_with(const char *kernel, const attn_problem *p, const test_data *serial, attn_options options,
                           const char *what) {
  test_data data = test_data_share_inputs(p, serial);
  options.kernel = kernel;
  test_ok(test_run(p, &data.args, &options));
  assert_same_outputs(kernel, what, serial, &data);
  test_data_destroy_outputs(&data);
}

static void bits_do_not_depend_on_threads(const char *kernel) {
  static const int counts[] = {3, 2, 7};
  const attn_problem p = uneven_problem(kernel);
  test_data serial = test_data_create(&p, 11);
  test_ok(test_run(&p, &serial.args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  same_bits_with(kernel, &p, &serial, ATTN_STRUCT(attn_options, .threads = 1), "a second serial run");
  same_bits_with(kernel, &p, &serial, ATTN_STRUCT(attn_options, .threads = 0), "the default number of threads");
  for (size_t i = 0; i < (test_few() ? 1 : COUNT(counts)); i++) {
    test_pool forwards = {0}, backwards = {.backwards = true};
    const int threads = counts[i];
    same_bits_with(kernel, &p, &serial, ATTN_STRUCT(attn_options, .threads = threads), "OpenMP threads");
    same_bits_with(kernel, &p, &serial,
                   ATTN_STRUCT(attn_options, .threads = threads, .parallel_for = test_parallel_for, .pool = &forwards),
                   "a pool");
    same_bits_with(kernel, &p, &serial,
                   ATTN_STRUCT(attn_options, .threads = threads, .parallel_for = test_parallel_for, .pool = &backwards),
                   "a pool that goes backwards");
    assert_true(forwards.calls > 0 && forwards.tasks > threads);
    assert_int_equal(forwards.tasks, backwards.tasks);
  }
  test_data_destroy(&serial);
}

/* ---- One plan, many threads at once ---- */

typedef struct runner {
  const attn_plan *plan;
  test_data data;
  attn_status status;
  pthread_t thread;
} runner;

static void *run_shared_plan(void *pointer) {
  runner *r = pointer;
  const size_t bytes = attn_plan_workspace(r->plan);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  r->status = workspace ? ATTN_OK : ATTN_OUT_OF_MEMORY;
  for (int repeat = 0; repeat < (test_few() ? 1 : 3) && r->status == ATTN_OK; repeat++)
    r->status = attn_plan_run(r->plan, &r->data.args, workspace, bytes);
  free(workspace);
  return NULL;
}

static void plan_can_be_shared_by_threads(const char *kernel) {
  enum { RUNNERS = 4 };
  const attn_problem p = uneven_problem(kernel);
  test_data alone = test_data_create(&p, 23);
  attn_plan *plan;
  test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1), &plan));
  runner runners[RUNNERS];
  for (int i = 0; i < RUNNERS; i++) {
    runners[i] = (runner){.plan = plan, .data = test_data_share_inputs(&p, &alone)};
    assert_int_equal(pthread_create(&runners[i].thread, NULL, run_shared_plan, &runners[i]), 0);
  }
  test_ok(test_run(&p, &alone.args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  for (int i = 0; i < RUNNERS; i++) {
    assert_int_equal(pthread_join(runners[i].thread, NULL), 0);
    test_ok(runners[i].status);
    assert_same_outputs(kernel, "several threads in one plan", &alone, &runners[i].data);
    test_data_destroy_outputs(&runners[i].data);
  }
  attn_plan_destroy(plan);
  test_data_destroy(&alone);
}

/* ---- Batch composition ---- */

/* Each sequence alone gives the bits that it gives in the batch. */
static void bits_do_not_depend_on_the_batch(const char *kernel) {
  const attn_problem p = uneven_problem(kernel);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data together = test_data_create(&p, 31);
  test_ok(test_run(&p, &together.args, &options));
  attn_problem one = p;
  one.batch = 1;
  for (int64_t b = 0; b < p.batch; b++) {
    test_data view = {.args = together.args};
    view.args.q = element(&p, together.args.q, b * p.q_stride.b);
    view.args.k = key_element(&p, together.args.k, b * p.k_stride.b);
    view.args.v = key_element(&p, together.args.v, b * p.v_stride.b);
    test_data alone = test_data_share_inputs(&one, &view);
    test_ok(test_run(&one, &alone.args, &options));
    if (memcmp(alone.args.o, element(&p, together.args.o, b * p.o_stride.b), alone.o_bytes) ||
        memcmp(alone.args.lse, together.args.lse + b * p.lse_stride.b, alone.lse_bytes))
      fail_msg("%s: the bits of sequence %d depend on its batch", kernel, (int)b);
    test_data_destroy_outputs(&alone);
  }
  test_data_destroy(&together);
}

/* A few queries alone give the bits that they give among all queries, whatever the tile borders are. With a large scale the
 * references of the exponentials move in some rows but not in their neighbours. Kernels may add a bias in different code for
 * full tiles. */
static void bits_do_not_depend_on_other_rows_at(const char *kernel, float scale, uint32_t uses) {
  attn_problem p = uneven_problem(kernel);
  p.scale *= scale;
  p.uses |= uses;
  p.bias_stride = (attn_score_strides){.q = p.seq_k, .k = 1};
  if (test_library_refuses(kernel, &p)) return;
  float *bias = malloc((size_t)(p.seq_q * p.seq_k) * sizeof *bias);
  assert_non_null(bias);
  for (int64_t i = 0; i < p.seq_q * p.seq_k; i++) bias[i] = (float)(i * 7919 % 1009) / 256 - 2;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data all = test_data_create(&p, 41);
  all.args.bias = uses & ATTN_USE_BIAS ? bias : NULL;
  test_ok(test_run(&p, &all.args, &options));
  static const int64_t starts[] = {0, 1, 15, 64, 100, 126}, counts[] = {1, 5, 4, 31, 7, 3};
  for (size_t i = 0; i < COUNT(starts); i++) {
    const int64_t start = starts[i] % p.seq_q, count = counts[i] < p.seq_q - start ? counts[i] : p.seq_q - start;
    attn_problem few = p; /* rows start .. start + count - 1, aligned with the keys as before */
    few.seq_q = count;
    few.align = ATTN_ALIGN_OFFSET;
    const int32_t offset = (int32_t)(p.seq_k - p.seq_q + start), offsets[] = {offset, offset, offset};
    test_data view = {.args = all.args};
    view.args.q = element(&p, all.args.q, start * p.q_stride.s);
    view.args.offsets = offsets;
    view.args.bias = uses & ATTN_USE_BIAS ? bias + start * p.bias_stride.q : NULL;
    test_data alone = test_data_share_inputs(&few, &view);
    test_ok(test_run(&few, &alone.args, &options));
    for (int64_t b = 0; b < p.batch; b++)
      for (int64_t h = 0; h < p.heads_q; h++) {
        const int64_t o = b * p.o_stride.b + h * p.o_stride.h, lse = b * p.lse_stride.b + h * p.lse_stride.h;
        if (memcmp(element(&p, alone.args.o, o), element(&p, all.args.o, o + start * p.o_stride.s),
                   (size_t)attn_elements_bytes(p.dtype_o, count * p.dim_v)) ||
            memcmp(alone.args.lse + lse, all.args.lse + lse + start, (size_t)count * sizeof(float)))
          fail_msg("%s: the bits of rows %d..+%d depend on other rows", kernel, (int)start, (int)count);
      }
    test_data_destroy_outputs(&alone);
  }
  test_data_destroy(&all);
  free(bias);
}

static void bits_do_not_depend_on_other_rows(const char *kernel) {
  if (!test_rows_stand_alone(kernel)) return;
  bits_do_not_depend_on_other_rows_at(kernel, 1, 0);
  bits_do_not_depend_on_other_rows_at(kernel, 30, 0);
  bits_do_not_depend_on_other_rows_at(kernel, 1, ATTN_USE_BIAS);
}

/* ---- Grouped heads, poison, strides ---- */

static void grouped_heads_equal_repeated_heads_at(const char *kernel, const attn_problem p) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data grouped = test_data_create(&p, 53);
  test_ok(test_run(&p, &grouped.args, &options));
  attn_problem repeated = p;
  repeated.heads_kv = p.heads_q;
  repeated.k_stride = (attn_strides){p.heads_q * p.seq_k * p.dim_qk, p.seq_k * p.dim_qk, p.dim_qk, 1};
  repeated.v_stride = (attn_strides){p.heads_q * p.seq_k * p.dim_v, p.seq_k * p.dim_v, p.dim_v, 1};
  test_data copies = test_data_create(&repeated, 0);
  const int64_t k_head = p.seq_k * p.dim_qk, v_head = p.seq_k * p.dim_v, group = p.heads_q / p.heads_kv;
  for (int64_t b = 0; b < p.batch; b++)
    for (int64_t h = 0; h < p.heads_q; h++) {
      const int64_t from = b * p.heads_kv + h / group, to = b * p.heads_q + h;
      memcpy(key_element(&p, copies.args.k, to * k_head), key_element(&p, grouped.args.k, from * k_head),
             (size_t)attn_elements_bytes(p.dtype_kv, k_head));
      memcpy(key_element(&p, copies.args.v, to * v_head), key_element(&p, grouped.args.v, from * v_head),
             (size_t)attn_elements_bytes(p.dtype_kv, v_head));
    }
  const void *own_q = copies.args.q;
  copies.args.q = grouped.args.q;
  test_ok(test_run(&repeated, &copies.args, &options));
  assert_same_outputs(kernel, "repeated instead of grouped KV heads", &grouped, &copies);
  copies.args.q = own_q;
  test_data_destroy(&copies);
  test_data_destroy(&grouped);
}

/* Grouped KV heads give the same bits as KV heads that are repeated for each query head. Problems: one with tails, and those
 * for which decode has loops of its own, with scores large enough to move references. */
static void grouped_heads_equal_repeated_heads(const char *kernel) {
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  static const int64_t dims[][2] = {{64, 64}, {128, 128}, {32, 224}, {80, 112}, {40, 100}};
  grouped_heads_equal_repeated_heads_at(kernel, uneven_problem(kernel));
  for (size_t type = 0; type < COUNT(dtypes); type++)
    for (int64_t group = 2; group <= 20; group += group < 8 ? 1 : 4)
      for (size_t i = 0; i < COUNT(dims); i++) {
        attn_problem p;
        if (test_few() && (i + type + (size_t)group) % 3 != 0) continue; /* each two of them meet all the same */
        attn_problem_init(&p, 1, 2 * group, 2, 1, 203, dims[i][0], dims[i][1]);
        p.dtype_q = p.dtype_kv = p.dtype_o = dtypes[type];
        p.scale = 2;
        p.uses = ATTN_USE_LSE;
        if (!attn_kernel_rejects(attn_kernel_find(kernel), &p)) grouped_heads_equal_repeated_heads_at(kernel, p);
      }
}

/* NaN, infinities and huge values in keys that every row masks change no bit. */
static void masked_keys_change_no_bit(const char *kernel) {
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f};
  attn_problem p = uneven_problem(kernel);
  p.uses |= ATTN_USE_KV_LEN;
  if (test_library_refuses(kernel, &p)) return;
  const int32_t kv_len[] = {(int32_t)p.seq_k - 36, 0, 64};
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data clean = test_data_create(&p, 61);
  clean.args.kv_len = kv_len;
  test_ok(test_run(&p, &clean.args, &options));
  for (size_t i = 0; i < COUNT(poisons); i++) {
    for (int64_t b = 0; b < p.batch; b++)
      for (int64_t h = 0; h < p.heads_kv; h++)
        for (int64_t j = kv_len[b]; j < p.seq_k; j++) {
          const int64_t k = b * p.k_stride.b + h * p.k_stride.h + j * p.k_stride.s;
          const int64_t v = b * p.v_stride.b + h * p.v_stride.h + j * p.v_stride.s;
          for (int64_t d = 0; d < p.dim_qk; d++)
            attn_store_f32((void *)(uintptr_t)clean.args.k, p.dtype_kv, k + d, poisons[i]);
          for (int64_t d = 0; d < p.dim_v; d++)
            attn_store_f32((void *)(uintptr_t)clean.args.v, p.dtype_kv, v + d, poisons[i]);
        }
    test_data poisoned = test_data_share_inputs(&p, &clean);
    test_ok(test_run(&p, &poisoned.args, &options));
    assert_same_outputs(kernel, "poison in masked keys", &clean, &poisoned);
    test_data_destroy_outputs(&poisoned);
  }
  test_data_destroy(&clean);
}

/* ---- Which keys ---- */

enum { KEYS = 61 };

/* A problem that masks keys in one of three ways, and which keys it must allow. */
typedef struct probe {
  attn_problem problem;
  uint8_t mask[KEYS * KEYS];
  float bias[KEYS * KEYS];
  bool allowed[KEYS][KEYS];
} probe;

static void probe_window(probe *p) {
  p->problem.window_left = 9;
  p->problem.window_right = 3;
  for (int i = 0; i < KEYS; i++)
    for (int j = 0; j < KEYS; j++) p->allowed[i][j] = i - 9 <= j && j <= i + 3;
}

static void allow_some(probe *p) {
  for (int i = 0; i < KEYS; i++)
    for (int j = 0; j < KEYS; j++) p->allowed[i][j] = i != 7 && (i * 31 + j * 17) % 5 < 2; /* row 7 sees nothing */
}

static void probe_mask(probe *p) {
  p->problem.uses = ATTN_USE_MASK;
  allow_some(p);
  for (int n = 0; n < KEYS * KEYS; n++) p->mask[n] = (uint8_t)(p->allowed[n / KEYS][n % KEYS] ? 1 + n % 255 : 0);
}

static void probe_infinite_bias(probe *p) {
  p->problem.uses = ATTN_USE_BIAS;
  allow_some(p);
  for (int n = 0; n < KEYS * KEYS; n++) p->bias[n] = p->allowed[n / KEYS][n % KEYS] ? 0 : -INFINITY;
}

/* With q = 0 and one-hot V, row i of o holds the weight of each key: 1/count if allowed, exactly 0 if masked. */
static void assert_weights(const char *kernel, const char *kind, const probe *p, const float *o) {
  for (int i = 0; i < KEYS; i++) {
    int count = 0;
    for (int j = 0; j < KEYS; j++) count += p->allowed[i][j];
    for (int j = 0; j < KEYS; j++) {
      const float weight = o[i * KEYS + j], expected = p->allowed[i][j] ? 1.0f / (float)count : 0;
      if (!(fabsf(weight - expected) <= 0x1p-22f * expected))
        fail_msg("%s, %s: query %d gives key %d the weight %.9g instead of %.9g", kernel, kind, i, j, (double)weight,
                 (double)expected);
    }
  }
}

static void index_probe_finds_exactly_the_allowed_keys(const char *kernel) {
  static const struct {
    const char *kind;
    void (*set)(probe *);
  } kinds[] = {{"window", probe_window}, {"mask", probe_mask}, {"infinite bias", probe_infinite_bias}};
  for (size_t n = 0; n < COUNT(kinds); n++) {
    static probe p;
    p = (probe){0};
    attn_problem_init(&p.problem, 1, 1, 1, KEYS, KEYS, 8, KEYS);
    kinds[n].set(&p);
    if (attn_kernel_rejects(attn_kernel_find(kernel), &p.problem)) continue;
    test_data data = test_data_create(&p.problem, 71);
    memset((float *)data.args.q, 0, sizeof(float) * KEYS * 8);
    for (int i = 0; i < KEYS * KEYS; i++) ((float *)data.args.v)[i] = i / KEYS == i % KEYS;
    data.args.mask = p.problem.uses & ATTN_USE_MASK ? p.mask : NULL;
    data.args.bias = p.problem.uses & ATTN_USE_BIAS ? p.bias : NULL;
    test_ok(test_run(&p.problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
    assert_weights(kernel, kinds[n].kind, &p, data.args.o);
    test_data_destroy(&data);
  }
}

KERNEL_TEST(bits_do_not_depend_on_threads)
KERNEL_TEST(plan_can_be_shared_by_threads)
KERNEL_TEST(bits_do_not_depend_on_the_batch)
KERNEL_TEST(bits_do_not_depend_on_other_rows)
KERNEL_TEST(grouped_heads_equal_repeated_heads)
KERNEL_TEST(masked_keys_change_no_bit)
KERNEL_TEST(index_probe_finds_exactly_the_allowed_keys)
