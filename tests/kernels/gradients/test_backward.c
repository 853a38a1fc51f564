/* SPDX-License-Identifier: MIT */
/* Gradients: each kernel against the float64 oracle over random problems; what must hold between several calls, to the bit
 * or within the limits of docs/numerics.md; and the oracle against central differences of the oracle of attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/operation.h"
#include "kernels/ref/oracle_f64.h"
#include "tests/support/pool.h"
#include "tests/support/support.h"

/* ---- Random numbers -------------------------------------------------------------------------------------------------- */

static uint64_t random_number;

static double uniform(void) {
  random_number = random_number * 6364136223846793005u + 1442695040888963407u;
  return (double)(random_number >> 11) * 0x1p-53;
}

static double normal(void) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += uniform();
  return sum;
}

static int64_t below(int64_t count) { return (int64_t)(uniform() * (double)count); }

static bool one_in(int64_t count) { return below(count) == 0; }

/* ---- The tensors of a problem ---------------------------------------------------------------------------------------- */

typedef struct call {
  attn_problem problem;
  attn_args args;
  struct {
    char *memory;
    size_t bytes;
  } tensor[ATTN_OPERANDS];
} call;

static const uint64_t NO_GRADIENTS =
    ATTN_USE_D_LSE | ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT | ATTN_USE_ACCUMULATE;

static attn_operand operand_of(const call *c, int which) { return attn_operand_of(&c->problem, (attn_operand_id)which); }

static int64_t place_of(const attn_operand *o, const int64_t *at) {
  return at[0] * o->stride[0] + at[1] * o->stride[1] + at[2] * o->stride[2] + at[3] * o->stride[3];
}

/* Moves `at` to the next element; false behind the last one. */
static bool next(const attn_operand *o, int64_t *at) {
  for (int i = 3; i >= 0; i--) {
    if (++at[i] < o->extent[i]) return true;
    at[i] = 0;
  }
  return false;
}

static bool is_empty(const attn_operand *o) {
  return !o->present || o->extent[0] < 1 || o->extent[1] < 1 || o->extent[2] < 1 || o->extent[3] < 1;
}

static void allocate(call *c, int which) {
  const attn_operand o = operand_of(c, which);
  int64_t low = 0, high = 0;
  if (!o.present) return;
  for (int i = 0; i < 4; i++) *(o.stride[i] < 0 ? &low : &high) += (o.extent[i] > 0 ? o.extent[i] - 1 : 0) * o.stride[i];
  c->tensor[which].bytes = (size_t)(high - low + 1) * o.element_bytes;
  c->tensor[which].memory = test_allocate(c->tensor[which].bytes);
  memset(c->tensor[which].memory, 0xff, c->tensor[which].bytes);
  attn_operand_point(&c->problem, (attn_operand_id)which, &c->args,
                     c->tensor[which].memory - low * (int64_t)o.element_bytes);
}

static void fill(call *c, int which, double size) {
  const attn_operand o = operand_of(c, which);
  int64_t at[4] = {0};
  if (is_empty(&o)) return;
  do attn_store_f32(attn_operand_at(&o, &c->args), o.dtype, place_of(&o, at), (float)(size * normal()));
  while (next(&o, at));
}

static void fill_integers(call *c, int which, int64_t least, int64_t most) {
  const attn_operand o = operand_of(c, which);
  int32_t *to = attn_operand_at(&o, &c->args);
  int64_t at[4] = {0};
  if (is_empty(&o)) return;
  do to[place_of(&o, at)] = (int32_t)(least + below(most - least + 1));
  while (next(&o, at));
}

/* Packed sequences of random lengths, one behind the other. */
static void fill_ends(const call *c, int32_t *ends, int64_t longest) {
  for (int64_t b = 0; ends && b <= c->problem.batch; b++) ends[b] = b ? ends[b - 1] + (int32_t)below(longest + 1) : 0;
}

static attn_problem forward_of(attn_problem p) {
  p.operation = ATTN_FORWARD;
  p.uses &= ~(uint32_t)NO_GRADIENTS;
  return p;
}

/* Only what the problem reads or writes. */
static attn_args args_for(const attn_problem *p, attn_args args) {
  for (int i = 0; i < ATTN_OPERANDS; i++)
    if (!attn_operand_of(p, (attn_operand_id)i).present) attn_operand_point(p, (attn_operand_id)i, &args, NULL);
  return args;
}

/* o and lse of the call's inputs. */
static void attend(call *c) {
  const attn_problem forward = forward_of(c->problem);
  const attn_args args = args_for(&forward, c->args);
  test_ok(test_run(&forward, &args, &ATTN_STRUCT(attn_options, .kernel = "naive_c", .threads = 1)));
}

static void fill_all(call *c) {
  static const struct {
    int which;
    double size;
  } floats[] = {{ATTN_OPERAND_Q, 1},      {ATTN_OPERAND_K, 1},
                {ATTN_OPERAND_V, 1},      {ATTN_OPERAND_D_O, 1},
                {ATTN_OPERAND_D_LSE, 1},  {ATTN_OPERAND_BIAS, 1},
                {ATTN_OPERAND_SCORES, 1}, {ATTN_OPERAND_SCORE_WEIGHT, 0.5},
                {ATTN_OPERAND_SINKS, 1},  {ATTN_OPERAND_ALIBI_SLOPES, 0.05}};
  const attn_problem *p = &c->problem;
  for (size_t i = 0; i < COUNT(floats); i++) fill(c, floats[i].which, floats[i].size);
  for (size_t n = 0; n < c->tensor[ATTN_OPERAND_MASK].bytes; n++) c->tensor[ATTN_OPERAND_MASK].memory[n] = !one_in(3);
  fill_integers(c, ATTN_OPERAND_KV_LEN, 0, p->seq_k);
  fill_integers(c, ATTN_OPERAND_Q_LEN, 0, p->seq_q);
  fill_integers(c, ATTN_OPERAND_ROW_LEN, 0, p->seq_k);
  fill_integers(c, ATTN_OPERAND_OFFSETS, -p->seq_k / 2, p->seq_k);
  fill_ends(c, (int32_t *)(uintptr_t)c->args.cu_seqlens_q, p->seq_q);
  fill_ends(c, (int32_t *)(uintptr_t)c->args.cu_seqlens_k, p->seq_k);
  attend(c);
}

static call open_empty(const attn_problem *problem) {
  call c = {.problem = *problem, .args = {.struct_size = sizeof(attn_args), .seed = 0x123456789abcdef, .offset = 77}};
  for (int i = 0; i < ATTN_OPERANDS; i++) allocate(&c, i);
  return c;
}

/* The call of gradients of a problem, with random inputs. */
static call open_call(const attn_problem *problem) {
  call c = open_empty(problem);
  fill_all(&c);
  return c;
}

static void close_call(call *c) {
  for (int i = 0; i < ATTN_OPERANDS; i++) free(c->tensor[i].memory);
}

static void copy(call *to, const call *from, int which) {
  assert_int_equal(to->tensor[which].bytes, from->tensor[which].bytes);
  if (to->tensor[which].bytes) memcpy(to->tensor[which].memory, from->tensor[which].memory, to->tensor[which].bytes);
}

/* The same inputs, and outputs of its own. */
static call clone(const call *c) {
  call other = open_empty(&c->problem);
  for (int i = 0; i < ATTN_OPERANDS; i++) copy(&other, c, i);
  return other;
}

static void poison(call *c) {
  for (int i = 0; i < ATTN_OPERANDS; i++)
    if (attn_is_output(&c->problem, (attn_operand_id)i) && c->tensor[i].bytes)
      memset(c->tensor[i].memory, 0xff, c->tensor[i].bytes);
}

static void run(const char *kernel, call *c, int threads) {
  test_ok(test_run(&c->problem, &c->args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads)));
}

static void assert_same(const char *kernel, const char *what, const call *a, const call *b) {
  for (int i = 0; i < ATTN_OPERANDS; i++)
    if (attn_is_output(&a->problem, (attn_operand_id)i) && a->tensor[i].bytes &&
        memcmp(a->tensor[i].memory, b->tensor[i].memory, a->tensor[i].bytes))
      fail_msg("%s: %s has other bits %s", kernel, operand_of(a, i).name, what);
}

static double value_at(const call *c, int which, int64_t b, int64_t h, int64_t s, int64_t d) {
  const attn_operand o = operand_of(c, which);
  return (double)attn_load_f32((attn_storage){attn_operand_at(&o, &c->args), o.dtype},
                               place_of(&o, (int64_t[4]){b, h, s, d}));
}

/* ---- Error limits: docs/numerics.md, "Gradients" ---------------------------------------------------------------------- */

enum { PARTS = 5 };

typedef struct limits {
  attn_oracle_gradient gradient;
  attn_oracle_gradient_facts facts;
  double *memory;
} limits;

static limits open_limits(int64_t columns) {
  double *m = test_allocate((size_t)(PARTS * columns + 1) * sizeof *m);
  return (limits){{m, m + columns, m + 2 * columns, m + 3 * columns, m + 4 * columns}, {0}, m};
}

/* error / limit of column d, on generated data, which meets both limits. */
static double ratio_of(const limits *l, const attn_numerics *numerics, attn_dtype dtype, int64_t d, double got) {
  const attn_oracle_gradient *g = &l->gradient;
  const double u = 0x1p-24, e = numerics->exp_error, p = numerics->p_rounding, n = (double)l->facts.pairs;
  const attn_dtype_info type = attn_dtype_of(dtype);
  const double tail = type.roundoff * fabs(g->value[d]) + n * 0x1p-126 * l->facts.max_factor + type.least / 2;
  const double proven = (2 * e + 2 * p + u * (n + 8)) * g->m[d] + g->proven[d] + tail;
  const double sharp = (2 * e + u * (2 * sqrt(n) + 8)) * g->m[d] + 6 * p * g->w[d] + g->sharp[d] + tail;
  if (got == g->value[d]) return 0;
  return isnan(got) ? INFINITY : fabs(got - g->value[d]) / fmin(proven, sharp);
}

/* The right values of the row of an output. */
static void ask_oracle(const call *c, int which, attn_oracle_index at, limits *l) {
  static const int sums[] = {[ATTN_ORACLE_D_BIAS] = ATTN_OPERAND_D_BIAS,
                             [ATTN_ORACLE_D_SCORES] = ATTN_OPERAND_D_SCORES,
                             [ATTN_ORACLE_D_SCORE_WEIGHT] = ATTN_OPERAND_D_SCORE_WEIGHT,
                             [ATTN_ORACLE_D_ALIBI_SLOPES] = ATTN_OPERAND_D_ALIBI_SLOPES,
                             [ATTN_ORACLE_D_SINKS] = ATTN_OPERAND_D_SINKS};
  const attn_problem *p = &c->problem;
  if (which == ATTN_OPERAND_D_Q) {
    l->facts = attn_oracle_f64_query_gradient(p, &c->args, at, &l->gradient);
  } else if (which == ATTN_OPERAND_D_K || which == ATTN_OPERAND_D_V) {
    l->facts = attn_oracle_f64_key_gradient(p, &c->args, at.b, at.h, at.i, which == ATTN_OPERAND_D_V, &l->gradient);
  } else {
    for (size_t i = 0; i < COUNT(sums); i++)
      if (sums[i] == which) l->facts = attn_oracle_f64_sum_gradient(p, &c->args, (attn_oracle_sum)i, at, &l->gradient);
  }
}

static double worst; /* error / limit of a test so far */

static void check_row(const char *kernel, const call *c, int which, attn_oracle_index at, int64_t place) {
  const attn_operand o = operand_of(c, which);
  limits l = open_limits(o.extent[3]);
  ask_oracle(c, which, at, &l);
  for (int64_t d = 0; d < o.extent[3]; d++) {
    const double got =
        (double)attn_load_f32((attn_storage){attn_operand_at(&o, &c->args), o.dtype}, place + d * o.stride[3]);
    const double ratio = ratio_of(&l, &attn_kernel_find(kernel)->numerics, o.dtype, d, got);
    if (ratio > 1)
      fail_msg("%s: %s[%d, %d, %d, %d] is %.9g, should be %.9g: %.3g times the limit", kernel, o.name, (int)at.b, (int)at.h,
               (int)at.i, (int)d, got, l.gradient.value[d], ratio);
    worst = fmax(worst, ratio);
  }
  free(l.memory);
}

/* Every element of every output of a finished call. */
static void check_outputs(const char *kernel, const call *c) {
  const attn_problem *p = &c->problem;
  for (int which = 0; which < ATTN_OPERANDS; which++) {
    const attn_operand o = operand_of(c, which);
    const bool rows = which < ATTN_ROW_OPERANDS, packed = rows && (p->uses & ATTN_USE_VARLEN);
    if (!attn_is_output(p, (attn_operand_id)which) || is_empty(&o) || !attn_operand_at(&o, &c->args)) continue;
    if (which == ATTN_OPERAND_D_ALIBI_SLOPES || which == ATTN_OPERAND_D_SINKS) {
      call one = *c; /* a list of heads: a row of one element for each */
      for (int64_t h = 0; h < p->heads_q; h++) {
        limits l = open_limits(1);
        ask_oracle(&one, which, (attn_oracle_index){0, h, 0}, &l);
        const double got = value_at(c, which, 0, 0, 0, h);
        const double ratio = ratio_of(&l, &attn_kernel_find(kernel)->numerics, o.dtype, 0, got);
        if (ratio > 1) fail_msg("%s: %s[%d] is %.9g, should be %.9g", kernel, o.name, (int)h, got, l.gradient.value[0]);
        worst = fmax(worst, ratio);
        free(l.memory);
      }
      continue;
    }
    for (int64_t b = 0; b < (packed ? p->batch : o.extent[0]); b++) {
      const attn_sequence seq = attn_sequence_of(p, &c->args, b);
      const int64_t first = !packed ? 0 : o.of_keys ? seq.first_k : seq.first_q;
      const int64_t tokens = !packed ? o.extent[2] : o.of_keys ? seq.len_k : seq.rows;
      for (int64_t h = 0; h < o.extent[1]; h++)
        for (int64_t i = 0; i < tokens; i++) {
          const bool weight = which == ATTN_OPERAND_D_SCORE_WEIGHT; /* its rows are heads */
          check_row(kernel, c, which, weight ? (attn_oracle_index){0, i, 0} : (attn_oracle_index){b, h, i},
                    place_of(&o, (int64_t[4]){packed ? 0 : b, h, first + i, 0}));
        }
    }
  }
}

/* ---- Random problems ------------------------------------------------------------------------------------------------- */

static void draw_types(attn_problem *p) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_F32, ATTN_F32, ATTN_BF16, ATTN_F16};
  p->dtype_kv = types[below(COUNT(types))];
  p->dtype_q = one_in(2) ? p->dtype_kv : ATTN_F32;
  p->dtype_o = one_in(2) ? p->dtype_q : ATTN_F32;
}

static void draw_score(attn_problem *p) {
  switch (below(8)) {
    case 0: p->score = ATTN_SCORE_ADDITIVE, p->uses |= ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT; break;
    case 1:
      p->score = ATTN_SCORE_GAUSSIAN, p->uses |= one_in(2) ? ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT : 0;
      break;
    case 2: p->score = ATTN_SCORE_PRECOMPUTED; break;
    default: break;
  }
  p->score_weight_stride_h = one_in(2) ? p->dim_qk : 0;
  if (one_in(4)) p->softcap = 1.5f + (float)below(4);
  if (one_in(4)) p->scale = -0.3f;
}

static void draw_masks(attn_problem *p, bool varlen) {
  p->align = (attn_align)below(3);
  switch (below(5)) {
    case 0: p->window_right = 0; break;
    case 1: p->window_left = below(20), p->window_right = below(5); break;
    case 2: p->window_left = below(60); break;
    case 3: p->key_begin = below(p->seq_k), p->key_end = one_in(2) ? 0 : p->seq_k; break;
    default: break;
  }
  if (one_in(3)) p->uses |= ATTN_USE_MASK;
  if (varlen) return;
  if (one_in(3)) p->uses |= ATTN_USE_KV_LEN;
  if (one_in(3)) p->uses |= ATTN_USE_Q_LEN;
  if (p->align != ATTN_ALIGN_BOTTOM_RIGHT && one_in(6)) p->uses |= ATTN_USE_ROW_LEN;
}

static void draw_options(attn_problem *p) {
  if (one_in(3)) p->uses |= ATTN_USE_BIAS | (one_in(2) ? ATTN_USE_D_BIAS : 0);
  if (one_in(4)) p->uses |= ATTN_USE_ALIBI | (one_in(2) ? ATTN_USE_D_ALIBI : 0);
  if (one_in(4)) p->uses |= ATTN_USE_SINKS | (one_in(2) ? ATTN_USE_D_SINKS : 0);
  if (one_in(3)) p->uses |= ATTN_USE_D_LSE;
  if (one_in(4)) p->dropout = one_in(2) ? 0.1f : 0.5f;
}

/* Gaps between elements and rows, and rows backwards. */
static void spread(attn_strides *s) { *s = (attn_strides){3 * s->b, 3 * s->h, -3 * s->s, 2 * s->d}; }

static void draw_strides(attn_problem *p) {
  if (one_in(3)) spread(&p->d_q_stride), spread(&p->d_v_stride);
  if (one_in(3)) spread(&p->d_k_stride), spread(&p->d_o_stride);
  if (one_in(4)) p->d_o_stride = (attn_strides){0, 0, 0, 0};
  if (one_in(3)) p->d_bias_stride.b = 0;
  if (one_in(3)) p->d_bias_stride.h = p->d_scores_stride.h = 0;
  if (one_in(4)) p->d_bias_stride.q = 0;
  if (one_in(6)) p->d_bias_stride.k = 0;
}

/* Problem n of the tests: the same on every machine. */
static attn_problem draw_problem(int n) {
  static const int64_t dims[] = {1, 5, 8, 16, 24, 32, 40, 64, 65, 80, 100};
  random_number = (uint64_t)n * 7919 + 12345;
  for (int i = 0; i < 5; i++) (void)uniform();
  attn_problem p;
  const int64_t group = 1 + below(3), heads_kv = 1 + below(2), dim = dims[below(COUNT(dims))];
  const int64_t least = n % 8 == 0 ? 250 : 1, most_k = n % 8 == 1 ? 290 : 50; /* some beyond 256 rows, which tasks have */
  attn_problem_init(&p, 1 + below(3), group * heads_kv, heads_kv, least + below(40), 1 + below(most_k), dim,
                    one_in(2) ? dim : dims[below(COUNT(dims))]);
  draw_types(&p);
  const int64_t layout = below(4);
  if (layout == 1) attn_problem_set_bshd(&p);
  if (layout == 2) attn_problem_set_varlen(&p, p.batch * p.seq_q, p.batch * p.seq_k);
  draw_score(&p);
  draw_masks(&p, layout == 2);
  draw_options(&p);
  attn_problem_set_backward(&p);
  if (layout != 2) draw_strides(&p);
  return p;
}

static bool takes(const char *kernel, const attn_problem *p) {
  assert_int_equal(attn_problem_validate(p), ATTN_OK);
  return !attn_kernel_rejects(attn_kernel_find(kernel), p);
}

/* The same of bf16 tensors, without gradients of what is added to scores. */
static attn_problem as_bf16(attn_problem p) {
  p.dtype_q = p.dtype_kv = p.dtype_o = ATTN_BF16;
  p.uses &= ~(uint32_t)(ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS);
  return p;
}

static void kernel_is_right_on_random_problems(const char *kernel) {
  int taken = 0;
  worst = 0;
  for (int n = 0; n < (test_few() ? 30 : 120); n++) {
    attn_problem p = draw_problem(n);
    if (!takes(kernel, &p)) p = as_bf16(p);
    if (!takes(kernel, &p)) continue;
    call c = open_call(&p);
    run(kernel, &c, 1);
    check_outputs(kernel, &c);
    close_call(&c);
    taken++;
  }
  print_message("%s: %d problems, error / limit %.3f\n", kernel, taken, worst);
  assert_true(taken > 5);
}

#define BACKWARD_TEST(check) \
  TEST(each_##check) { test_each_kernel_of(ATTN_BACKWARD, check); }

BACKWARD_TEST(kernel_is_right_on_random_problems)

/* ---- The same bits --------------------------------------------------------------------------------------------------- */

typedef struct sizes {
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v;
} sizes;

/* The types are the first that the kernel takes. */
static attn_problem causal_problem(const char *kernel, const sizes *n) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  attn_problem p;
  for (size_t i = 0; i < COUNT(types); i++) {
    attn_problem_init(&p, n->batch, n->heads_q, n->heads_kv, n->seq_q, n->seq_k, n->dim_qk, n->dim_v);
    p.dtype_q = p.dtype_kv = p.dtype_o = types[i];
    attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
    attn_problem_set_backward(&p);
    if (takes(kernel, &p)) return p;
  }
  fail_msg("%s takes none of the problems", kernel);
  return p;
}

/* Several blocks of queries and keys with tails. */
static attn_problem uneven_problem(const char *kernel) {
  return causal_problem(kernel, &(sizes){3, 4, 2, test_few() ? 41 : 131, test_few() ? 70 : 293, 40, 24});
}

/* Four parts of the queries, whose borders are within heads, and two ranges of keys (backward/layout.h). */
static attn_problem long_problem(const char *kernel) {
  return causal_problem(kernel, &(sizes){2, 3, 1, 1367, test_few() ? 70 : 530, 8, 5});
}

static void parts_and_ranges_are_added_up(const char *kernel) {
  const attn_problem p = long_problem(kernel);
  random_number = 12;
  call c = open_call(&p);
  run(kernel, &c, 2);
  check_outputs(kernel, &c);
  close_call(&c);
}

BACKWARD_TEST(parts_and_ranges_are_added_up)

static void compare_threads(const char *kernel, attn_problem p) {
  static const int counts[] = {1, 2, 4};
  random_number = 1;
  call one = open_call(&p), other = clone(&one);
  run(kernel, &one, 1);
  for (size_t i = 0; i < COUNT(counts); i++)
    for (int how = 0; how < 3; how++) { /* OpenMP, a pool, and a pool that goes backwards */
      test_pool pool = {.backwards = how == 2};
      attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = counts[i]);
      if (how) options.parallel_for = test_parallel_for, options.pool = &pool;
      poison(&other);
      test_ok(test_run(&p, &other.args, &options));
      assert_same(kernel, "with other threads", &one, &other);
    }
  close_call(&one), close_call(&other);
}

static void bits_do_not_depend_on_threads(const char *kernel) {
  compare_threads(kernel, uneven_problem(kernel));
  compare_threads(kernel, long_problem(kernel));
}

BACKWARD_TEST(bits_do_not_depend_on_threads)

/* Copies sequence b of every tensor of rows from a padded batch. */
static void copy_sequence(call *to, int64_t to_b, int64_t to_token, const call *from, int64_t b, int64_t from_token,
                          int64_t tokens, bool of_keys) {
  for (int which = 0; which < ATTN_ROW_OPERANDS; which++) {
    const attn_operand o = operand_of(from, which), t = operand_of(to, which);
    if (!o.present || !t.present || o.of_keys != of_keys) continue;
    for (int64_t h = 0; h < o.extent[1]; h++)
      for (int64_t i = 0; i < tokens; i++)
        for (int64_t d = 0; d < o.extent[3]; d++)
          memcpy((char *)attn_operand_at(&t, &to->args) +
                     place_of(&t, (int64_t[4]){to_b, h, to_token + i, d}) * (int64_t)t.element_bytes,
                 (char *)attn_operand_at(&o, &from->args) +
                     place_of(&o, (int64_t[4]){b, h, from_token + i, d}) * (int64_t)o.element_bytes,
                 o.element_bytes);
  }
}

/* Row by row, as far as both have it; the bytes of one element. */
static void assert_same_rows(const char *kernel, const char *what, const call *a, int64_t a_b, const call *b, int64_t b_b,
                             int64_t q_token, int64_t k_token, int64_t queries, int64_t keys) {
  for (int which = 0; which < ATTN_ROW_OPERANDS; which++) {
    const attn_operand o = operand_of(a, which);
    if (!attn_is_output(&a->problem, (attn_operand_id)which) || is_empty(&o)) continue;
    for (int64_t h = 0; h < o.extent[1]; h++)
      for (int64_t i = 0; i < (o.of_keys ? keys : queries); i++)
        for (int64_t d = 0; d < o.extent[3]; d++) {
          const double x = value_at(a, which, a_b, h, i, d);
          const double y = value_at(b, which, b_b, h, (o.of_keys ? k_token : q_token) + i, d);
          if (memcmp(&x, &y, sizeof x)) fail_msg("%s: %s has other bits %s: %.9g, %.9g", kernel, o.name, what, x, y);
        }
  }
}

static void compare_batches(const char *kernel, attn_problem p) {
  attn_problem alone;
  attn_problem_init(&alone, 1, p.heads_q, p.heads_kv, p.seq_q, p.seq_k, p.dim_qk, p.dim_v);
  alone.dtype_q = p.dtype_q, alone.dtype_kv = p.dtype_kv, alone.dtype_o = p.dtype_o;
  attn_problem_set_causal(&alone, ATTN_ALIGN_BOTTOM_RIGHT);
  attn_problem_set_backward(&alone);
  random_number = 2;
  call all = open_call(&p), one = open_empty(&alone);
  run(kernel, &all, 2);
  copy_sequence(&one, 0, 0, &all, 1, 0, p.seq_q, false);
  copy_sequence(&one, 0, 0, &all, 1, 0, p.seq_k, true);
  poison(&one);
  run(kernel, &one, 1);
  assert_same_rows(kernel, "as a batch of its own", &one, 0, &all, 1, 0, 0, p.seq_q, p.seq_k);
  close_call(&all), close_call(&one);
}

static void bits_do_not_depend_on_the_batch(const char *kernel) {
  compare_batches(kernel, uneven_problem(kernel));
  compare_batches(kernel, long_problem(kernel));
}

BACKWARD_TEST(bits_do_not_depend_on_the_batch)

/* Sequences of a padded batch, packed. */
static void compare_packed(const char *kernel, attn_problem p) {
  p.uses |= ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
  attn_problem packed = forward_of(p);
  packed.uses &= ~(uint32_t)(ATTN_USE_KV_LEN | ATTN_USE_Q_LEN);
  attn_problem_set_varlen(&packed, p.batch * p.seq_q, p.batch * p.seq_k);
  attn_problem_set_backward(&packed);
  if (!takes(kernel, &p) || !takes(kernel, &packed)) return;
  random_number = 3;
  call padded = open_call(&p), other = open_empty(&packed);
  run(kernel, &padded, 1);
  int32_t *end_q = (int32_t *)(uintptr_t)other.args.cu_seqlens_q, *end_k = (int32_t *)(uintptr_t)other.args.cu_seqlens_k;
  end_q[0] = end_k[0] = 0;
  for (int64_t b = 0; b < p.batch; b++) {
    copy_sequence(&other, 0, end_q[b], &padded, b, 0, padded.args.q_len[b], false);
    copy_sequence(&other, 0, end_k[b], &padded, b, 0, padded.args.kv_len[b], true);
    end_q[b + 1] = end_q[b] + padded.args.q_len[b];
    end_k[b + 1] = end_k[b] + padded.args.kv_len[b];
  }
  poison(&other);
  run(kernel, &other, 2);
  for (int64_t b = 0; b < p.batch; b++)
    assert_same_rows(kernel, "packed", &padded, b, &other, 0, end_q[b], end_k[b], padded.args.q_len[b],
                     padded.args.kv_len[b]);
  close_call(&padded), close_call(&other);
}

static void packed_sequences_give_the_bits_of_padded_ones(const char *kernel) {
  compare_packed(kernel, uneven_problem(kernel));
  compare_packed(kernel, long_problem(kernel));
}

BACKWARD_TEST(packed_sequences_give_the_bits_of_padded_ones)

/* ---- Outputs --------------------------------------------------------------------------------------------------------- */

/* A problem with every gradient. */
static attn_problem rich_problem(const char *kernel) {
  attn_problem p = forward_of(uneven_problem(kernel));
  p.uses |= ATTN_USE_BIAS | ATTN_USE_ALIBI | ATTN_USE_SINKS | ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS;
  p.batch = 2, p.seq_q = 23, p.seq_k = 37;
  attn_problem_set_backward(&p);
  return p;
}

static void outputs_may_be_left_out(const char *kernel) {
  const attn_problem p = rich_problem(kernel);
  if (!takes(kernel, &p)) return;
  random_number = 4;
  call all = open_call(&p);
  run(kernel, &all, 1);
  for (int which = 0; which < ATTN_OPERANDS; which++) {
    if (!attn_is_output(&p, (attn_operand_id)which) || !all.tensor[which].bytes) continue;
    call less = clone(&all);
    poison(&less);
    attn_operand_point(&p, (attn_operand_id)which, &less.args, NULL);
    run(kernel, &less, 1);
    copy(&less, &all, which);
    assert_same(kernel, "beside an output that is left out", &all, &less);
    close_call(&less);
  }
  close_call(&all);
}

BACKWARD_TEST(outputs_may_be_left_out)

/* Accumulated into float32: what was there, plus the gradient, each rounded once or, in sums, once a term. */
static void gradients_are_added_to_what_is_there(const char *kernel) {
  const attn_problem p = rich_problem(kernel);
  if (!takes(kernel, &p)) return;
  random_number = 5;
  call fresh = open_call(&p);
  run(kernel, &fresh, 1);
  call added = clone(&fresh);
  added.problem.uses |= ATTN_USE_ACCUMULATE;
  for (int which = 0; which < ATTN_OPERANDS; which++)
    if (attn_is_output(&p, (attn_operand_id)which)) fill(&added, which, 4);
  call before = clone(&added);
  run(kernel, &added, 2);
  for (int which = 0; which < ATTN_OPERANDS; which++) {
    const attn_operand o = operand_of(&fresh, which);
    int64_t at[4] = {0};
    if (!attn_is_output(&p, (attn_operand_id)which) || is_empty(&o)) continue;
    do {
      const double was = value_at(&before, which, at[0], at[1], at[2], at[3]);
      const double gradient = value_at(&fresh, which, at[0], at[1], at[2], at[3]);
      const double got = value_at(&added, which, at[0], at[1], at[2], at[3]);
      const double limit = 4 * (attn_dtype_of(o.dtype).roundoff + 0x1p-21) * (fabs(was) + fabs(gradient)) + 1e-5;
      if (!(fabs(got - (was + gradient)) <= limit))
        fail_msg("%s: %s is %.9g, should be %.9g + %.9g", kernel, o.name, got, was, gradient);
    } while (next(&o, at));
  }
  close_call(&fresh), close_call(&added), close_call(&before);
}

BACKWARD_TEST(gradients_are_added_to_what_is_there)

/* ---- Zeros and poison ------------------------------------------------------------------------------------------------ */

/* Rows beyond q_len, rows without keys, keys beyond kv_len and keys that the mask hides from all: exact zeros, whatever
 * stands there. The mask hides every fifth key from all, and all keys from every fourth query. */
static bool hidden_key(int64_t j) { return j % 5 == 2; }
static bool empty_row(int64_t i) { return i % 4 == 1; }

static void poison_row(call *c, int which, int64_t b, int64_t h, int64_t i) {
  const attn_operand o = operand_of(c, which);
  for (int64_t d = 0; d < o.extent[3]; d++)
    attn_store_f32(attn_operand_at(&o, &c->args), o.dtype, place_of(&o, (int64_t[4]){b, h, i, d}), NAN);
}

static void assert_zeros(const char *kernel, const call *c, int which, int64_t b, int64_t h, int64_t i) {
  const attn_operand o = operand_of(c, which);
  for (int64_t d = 0; d < o.extent[3]; d++)
    if (value_at(c, which, b, h, i, d) != 0)
      fail_msg("%s: %s[%d, %d, %d, %d] is %g, should be 0", kernel, o.name, (int)b, (int)h, (int)i, (int)d,
               value_at(c, which, b, h, i, d));
}

static void poison_what_is_masked(const char *kernel, int64_t queries_of_all) {
  attn_problem p = causal_problem(kernel, &(sizes){3, 4, 2, queries_of_all, 70, 40, 24});
  p.window_right = -1;
  p.uses |= ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_MASK;
  if (!takes(kernel, &p)) return;
  random_number = 6;
  call clean = open_call(&p);
  int32_t *kv_len = (int32_t *)(uintptr_t)clean.args.kv_len, *q_len = (int32_t *)(uintptr_t)clean.args.q_len;
  kv_len[0] = 64, kv_len[1] = 0, kv_len[2] = 70;
  q_len[0] = 30, q_len[1] = (int32_t)queries_of_all, q_len[2] = 0;
  const attn_operand mask = operand_of(&clean, ATTN_OPERAND_MASK);
  int64_t at[4] = {0};
  do ((uint8_t *)attn_operand_at(&mask, &clean.args))[place_of(&mask, at)] = !hidden_key(at[3]) && !empty_row(at[2]);
  while (next(&mask, at));
  attend(&clean);
  run(kernel, &clean, 1);
  check_outputs(kernel, &clean);
  call bad = clone(&clean);
  poison(&bad);
  for (int64_t b = 0; b < p.batch; b++) {
    const int64_t queries = kv_len[b] ? q_len[b] : 0, keys = q_len[b] ? kv_len[b] : 0;
    for (int64_t h = 0; h < p.heads_q; h++)
      for (int64_t i = 0; i < p.seq_q; i++) {
        if (i < queries && !empty_row(i)) continue;
        poison_row(&bad, ATTN_OPERAND_Q, b, h, i);
        poison_row(&bad, ATTN_OPERAND_D_O, b, h, i);
        assert_zeros(kernel, &clean, ATTN_OPERAND_D_Q, b, h, i);
      }
    for (int64_t h = 0; h < p.heads_kv; h++)
      for (int64_t j = 0; j < p.seq_k; j++) {
        if (j < keys && !hidden_key(j)) continue;
        poison_row(&bad, ATTN_OPERAND_K, b, h, j);
        poison_row(&bad, ATTN_OPERAND_V, b, h, j);
        assert_zeros(kernel, &clean, ATTN_OPERAND_D_K, b, h, j);
        assert_zeros(kernel, &clean, ATTN_OPERAND_D_V, b, h, j);
      }
  }
  run(kernel, &bad, 1);
  check_outputs(kernel, &bad);
  close_call(&clean), close_call(&bad);
}

static void what_is_masked_has_exact_zeros_and_is_not_read(const char *kernel) {
  poison_what_is_masked(kernel, 37);
  poison_what_is_masked(kernel, 1030); /* two heads' are two parts */
}

BACKWARD_TEST(what_is_masked_has_exact_zeros_and_is_not_read)

/* ---- Within the limits ----------------------------------------------------------------------------------------------- */

/* The sum over the keys of dS is 0 without sinks and d_lse: with every key alike, d_q is 0. */
static void the_gradients_of_a_row_of_scores_sum_to_zero(const char *kernel) {
  attn_problem p = forward_of(uneven_problem(kernel));
  p.window_right = -1;
  p.uses |= ATTN_USE_BIAS | ATTN_USE_D_BIAS;
  p.seq_q = 9;
  attn_problem_set_backward(&p);
  p.d_bias_stride.k = 0; /* sums over the keys */
  p.d_bias_stride.q = 1;
  p.d_bias_stride.h = 9;
  p.d_bias_stride.b = 9 * p.heads_q;
  if (!takes(kernel, &p)) return;
  random_number = 7;
  call c = open_call(&p);
  run(kernel, &c, 1);
  const attn_operand o = operand_of(&c, ATTN_OPERAND_D_BIAS);
  int64_t at[4] = {0};
  const double rounded = attn_dtype_of(p.dtype_o).roundoff; /* o is as it is stored */
  do assert_true(fabs(value_at(&c, ATTN_OPERAND_D_BIAS, at[0], at[1], at[2], at[3])) < 32 * (rounded + 0x1p-20));
  while (next(&o, at));
  check_outputs(kernel, &c);
  close_call(&c);
}

BACKWARD_TEST(the_gradients_of_a_row_of_scores_sum_to_zero)

/* Twice d_o and d_lse give twice the gradients, to the bit: powers of two round alike. */
static void gradients_are_linear_in_d_o(const char *kernel) {
  attn_problem p = uneven_problem(kernel);
  p.uses |= ATTN_USE_D_LSE;
  if (!takes(kernel, &p)) return;
  random_number = 8;
  call one = open_call(&p), two = clone(&one);
  for (int which = ATTN_OPERAND_D_O; which <= ATTN_OPERAND_D_LSE; which++) {
    const attn_operand o = operand_of(&two, which);
    int64_t at[4] = {0};
    do
      attn_store_f32(attn_operand_at(&o, &two.args), o.dtype, place_of(&o, at),
                     (float)(2 * value_at(&one, which, at[0], at[1], at[2], at[3])));
    while (next(&o, at));
  }
  run(kernel, &one, 1), run(kernel, &two, 1);
  for (int which = ATTN_OPERAND_D_Q; which <= ATTN_OPERAND_D_V; which++) {
    const attn_operand o = operand_of(&one, which);
    int64_t at[4] = {0};
    do {
      const double x = value_at(&one, which, at[0], at[1], at[2], at[3]);
      const double y = value_at(&two, which, at[0], at[1], at[2], at[3]);
      if (y != 2 * x && fabs(x) > 0x1p-100) fail_msg("%s: %s is %.9g, and %.9g of twice d_o", kernel, o.name, x, y);
    } while (next(&o, at));
  }
  close_call(&one), close_call(&two);
}

BACKWARD_TEST(gradients_are_linear_in_d_o)

/* d_k and d_v of grouped heads are the sums of those of repeated ones. */
static void grouped_heads_sum_repeated_ones(const char *kernel) {
  const attn_problem p = uneven_problem(kernel);
  attn_problem repeated = forward_of(p);
  repeated.heads_kv = p.heads_q;
  attn_problem_set_backward(&repeated);
  repeated.batch = 1;
  attn_operand_set_dense(&repeated, ATTN_OPERAND_K), attn_operand_set_dense(&repeated, ATTN_OPERAND_V);
  attn_operand_set_dense(&repeated, ATTN_OPERAND_D_K), attn_operand_set_dense(&repeated, ATTN_OPERAND_D_V);
  attn_problem grouped = p;
  grouped.batch = 1;
  random_number = 9;
  call few = open_call(&grouped), many = open_empty(&repeated);
  const int64_t group = p.heads_q / p.heads_kv;
  copy_sequence(&many, 0, 0, &few, 0, 0, p.seq_q, false);
  for (int which = ATTN_OPERAND_K; which <= ATTN_OPERAND_V; which++) {
    const attn_operand o = operand_of(&many, which);
    int64_t at[4] = {0};
    do
      attn_store_f32(attn_operand_at(&o, &many.args), o.dtype, place_of(&o, at),
                     (float)value_at(&few, which, 0, at[1] / group, at[2], at[3]));
    while (next(&o, at));
  }
  run(kernel, &few, 1), run(kernel, &many, 1);
  const double u = attn_dtype_of(p.dtype_kv).roundoff + 0x1p-20;
  for (int which = ATTN_OPERAND_D_K; which <= ATTN_OPERAND_D_V; which++) {
    const attn_operand o = operand_of(&few, which);
    int64_t at[4] = {0};
    do {
      double sum = 0, size = 0;
      for (int64_t h = at[1] * group; h < (at[1] + 1) * group; h++) {
        const double x = value_at(&many, which, 0, h, at[2], at[3]);
        sum += x, size += fabs(x);
      }
      const double got = value_at(&few, which, 0, at[1], at[2], at[3]);
      if (!(fabs(got - sum) <= 8 * u * (1 + size))) fail_msg("%s: %s is %.9g, should be %.9g", kernel, o.name, got, sum);
    } while (next(&o, at));
  }
  close_call(&few), close_call(&many);
}

BACKWARD_TEST(grouped_heads_sum_repeated_ones)

/* ---- The oracle ------------------------------------------------------------------------------------------------------ */

/* sum of d_o o + d_lse lse, by the float64 oracle of attention. */
static double loss(const call *c) {
  const attn_problem forward = forward_of(c->problem);
  const attn_args args = args_for(&forward, c->args);
  const int64_t dim = forward.dim_v;
  double *memory = test_allocate((size_t)(3 * dim + forward.seq_k + 1) * sizeof *memory), sum = 0;
  const attn_oracle_output out = {memory, memory + dim, memory + 2 * dim, memory + 3 * dim};
  for (int64_t b = 0; b < forward.batch; b++)
    for (int64_t h = 0; h < forward.heads_q; h++)
      for (int64_t i = 0; i < attn_oracle_f64_rows(&forward, &args, b); i++) {
        const attn_oracle_row row = attn_oracle_f64_row(&forward, &args, (attn_oracle_index){b, h, i}, &out);
        for (int64_t d = 0; d < dim; d++) sum += out.o[d] * value_at(c, ATTN_OPERAND_D_O, b, h, i, d);
        if ((c->problem.uses & ATTN_USE_D_LSE) && row.lse > -INFINITY)
          sum += row.lse * value_at(c, ATTN_OPERAND_D_LSE, b, h, i, 0);
      }
  free(memory);
  return sum;
}

/* d loss / d x by central differences, where x is an element of a float32 input. */
static double difference(call *c, int input, const int64_t *at) {
  const attn_operand o = operand_of(c, input);
  float *x = (float *)attn_operand_at(&o, &c->args) + place_of(&o, at);
  const float middle = *x, step = 0x1p-8f * fmaxf(1, fabsf(middle)), high = middle + step, low = middle - step;
  *x = high;
  const double above = loss(c);
  *x = low;
  const double below_it = loss(c);
  *x = middle;
  return (above - below_it) / ((double)high - (double)low);
}

static void compare_difference(call *c, int input, int output) {
  const attn_operand o = operand_of(c, output);
  if (is_empty(&o)) return;
  for (int n = 0; n < 6; n++) {
    int64_t at[4];
    for (int i = 0; i < 4; i++) at[i] = below(o.extent[i]);
    const double right = difference(c, input, at);
    const bool list = output == ATTN_OPERAND_D_ALIBI_SLOPES || output == ATTN_OPERAND_D_SINKS;
    const bool weight = output == ATTN_OPERAND_D_SCORE_WEIGHT;
    limits l = open_limits(o.extent[3]);
    const attn_oracle_index row = list     ? (attn_oracle_index){0, at[3], 0}
                                  : weight ? (attn_oracle_index){0, at[2], 0}
                                           : (attn_oracle_index){at[0], at[1], at[2]};
    ask_oracle(c, output, row, &l);
    const double got = l.gradient.value[list ? 0 : at[3]];
    if (!(fabs(got - right) <= 2e-3 * (1 + fabs(right))))
      fail_msg("problem 0x%x, score %d: %s[%d, %d, %d, %d] of the oracle is %.9g, differences give %.9g", c->problem.uses,
               (int)c->problem.score, o.name, (int)at[0], (int)at[1], (int)at[2], (int)at[3], got, right);
    free(l.memory);
  }
}

/* o and lse as the oracle of attention has them, rounded to float32. */
TEST(the_oracle_agrees_with_central_differences) {
  static const int pairs[][2] = {{ATTN_OPERAND_Q, ATTN_OPERAND_D_Q},
                                 {ATTN_OPERAND_K, ATTN_OPERAND_D_K},
                                 {ATTN_OPERAND_V, ATTN_OPERAND_D_V},
                                 {ATTN_OPERAND_BIAS, ATTN_OPERAND_D_BIAS},
                                 {ATTN_OPERAND_SCORES, ATTN_OPERAND_D_SCORES},
                                 {ATTN_OPERAND_SCORE_WEIGHT, ATTN_OPERAND_D_SCORE_WEIGHT},
                                 {ATTN_OPERAND_ALIBI_SLOPES, ATTN_OPERAND_D_ALIBI_SLOPES},
                                 {ATTN_OPERAND_SINKS, ATTN_OPERAND_D_SINKS}};
  for (int n = 0; n < 48; n++) {
    attn_problem p;
    random_number = 100 + (uint64_t)n;
    attn_problem_init(&p, 2, 4, 2, 5, 7, 3, 2);
    p.score = (attn_score)(n % 4);
    if (n % 4 == ATTN_SCORE_ADDITIVE || n % 8 == ATTN_SCORE_GAUSSIAN)
      p.uses |= ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT;
    p.score_weight_stride_h = n % 3 ? 3 : 0;
    if (n % 5 == 1) p.softcap = 1.5f;
    draw_masks(&p, false);
    p.uses |= ATTN_USE_BIAS | ATTN_USE_D_BIAS | ATTN_USE_ALIBI | ATTN_USE_D_ALIBI;
    if (n % 3) p.uses |= ATTN_USE_SINKS | ATTN_USE_D_SINKS;
    if (n % 2) p.bias_stride.b = 0;
    attn_problem_set_backward(&p);
    if (n % 4 > 1) p.uses |= ATTN_USE_D_LSE;
    call c = open_call(&p);
    for (size_t i = 0; i < COUNT(pairs); i++) compare_difference(&c, pairs[i][0], pairs[i][1]);
    close_call(&c);
  }
}
