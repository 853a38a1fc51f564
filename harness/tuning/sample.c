/* SPDX-License-Identifier: MIT */
/* Random problems, and what their times say of costs. */
#include <math.h>
#include <string.h>

#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "timing/core_share.h"
#include "tuning/tuning.h"

static const double POINT_S = 0.016;       /* three samples of each quick kernel fit, even for the longest call */
static const double SHORT_POINT_S = 0.006; /* where few kernels are timed */
static const double CALLS_OF_POINT = 64;   /* calls of the quickest kernel, at least: three rounds of all that are near it */
static const double CLEARLY = 1.03;        /* times as long takes the next kernel */
static const double UNCLEAR = 1.15;        /* and may be expected to take, where it may as well be the quickest */
enum {
  FEWEST_POINTS = 200,   /* problems in all, where time is short */
  FEWEST_ROUNDS = 3,     /* rounds of a time that costs are fitted to */
  POINTS_OF_ALL = 300,   /* problems of a type that all kernels are timed on */
  FEWEST_NEAR = 3,       /* such problems for a kernel that is timed on more */
  POINTS_OF_NEAR = 1500, /* until so many are */
  MOST_DRAWS = 200,      /* for a problem whose quickest kernel is not clear, or a large one */
  TURNS_OF_LARGE = 16    /* one of so many problems is a large one */
};

/* A shape of the regret's distribution, but of the line. */
static bench_tune_shape random_shape(const bench_tune_line *line, uint64_t *seed) {
  bench_tune_shape s;
  do {
    s = bench_regret_shape(seed);
    s.dtype = line->dtype, s.dim = line->dim, s.backward = line->backward;
  } while (line->causal != (s.mask == TUNE_CAUSAL || s.mask == TUNE_WINDOW) || bench_tune_work(&s) > BENCH_REGRET_WORK);
  return s;
}

int bench_tune_kernel(const char *kernel) {
  for (int i = 0; i < TUNE_KERNELS && attn_kernel_get(i); i++)
    if (strcmp(attn_kernel_get(i)->name, kernel) == 0) return i;
  return -1;
}

static double share_of_core(const bench_tune_source *source) {
  return source->core_share ? source->core_share(source->context) : 0;
}

bool bench_tune_look_at(const bench_tune_source *source, const bench_tune_shape *shape, bench_tune_set kernels,
                        double seconds, attn_tune_report *report, bool *undisturbed) {
  const double before = share_of_core(source);
  if (!source->measure(source->context, shape, kernels, seconds, report)) return false;
  *undisturbed = before == 0 /* nothing is known */ || fmin(before, share_of_core(source)) >= BENCH_UNDISTURBED;
  return true;
}

/* Times a kernel's time over the quickest's, and over the next one's: of all, or, for a class, of kernels of no higher tier.
 */
typedef struct standing {
  double over_best, of_next;
} standing;

static standing standing_of(const attn_tune_report *report, int index, bool by_tier) {
  const attn_tune_entry *e = report->entry;
  standing s = {.over_best = 1, .of_next = INFINITY};
  const int tier = attn_tier_find(attn_kernel_find(e[index].kernel)->isa);
  for (int i = report->timed - 1; i >= 0; i--) {
    if (i == index || (by_tier && attn_tier_find(attn_kernel_find(e[i].kernel)->isa) > tier)) continue;
    if (i < index)
      s.over_best = e[index].ratio / e[i].ratio;
    else
      s.of_next = e[i].ratio / e[index].ratio;
  }
  return s;
}

static bool has_terms(int kernel) { return kernel >= 0 && attn_registry_get(kernel)->terms.count > 0; }

/* A problem that was drawn because it is unclear, or large, says nothing of how often a kernel leads. */
static void add_look(const bench_tune_shape *shape, const attn_tune_report *report, bool is_random, bool undisturbed,
                     bench_tune_result *result) {
  const attn_tune_entry *e = report->entry;
  bench_tune_look look = {.shape = *shape, .undisturbed = undisturbed};
  for (int i = 0; i < report->timed && look.count < TUNE_NEAR; i++) {
    const int kernel = bench_tune_kernel(e[i].kernel);
    if (!has_terms(kernel) || e[i].rounds < FEWEST_ROUNDS) continue;
    look.kernel[look.count] = kernel;
    look.time_ns[look.count++] = e[0].time_ns * e[i].ratio;
    bench_tune_cost *cost = &result->costs[kernel][bench_tune_type(shape)];
    const standing s = standing_of(report, i, result->class);
    cost->leads += is_random && s.over_best <= 1 && s.of_next > CLEARLY;
    cost->near += result->points[bench_tune_type(shape)] < POINTS_OF_ALL && s.over_best <= CLEARLY;
  }
  result->points[bench_tune_type(shape)]++;
  result->random[bench_tune_type(shape)] += is_random;
  result->look[result->looks++] = look;
}

/* ---- What is expected ---- */

/* The two shortest times by the costs that the last fit found. */
static void expect_two(const bench_tune_result *result, const bench_tune_shape *shape, double least[2]) {
  attn_problem problem;
  bench_tune_problem(shape, &problem);
  least[0] = least[1] = INFINITY;
  for (int k = 0; k < TUNE_KERNELS; k++) {
    if (!bench_tune_has_line(result, k, bench_tune_type(shape))) continue;
    if (attn_registry_get(k)->operation != problem.operation) continue;
    const double ns = attn_expected_ns(attn_registry_get(k), result->costs[k][bench_tune_type(shape)].ns, &problem);
    least[1] = fmin(least[1], fmax(ns, least[0]));
    least[0] = fmin(least[0], ns);
  }
}

static bool is_unclear(const bench_tune_result *result, const bench_tune_shape *shape) {
  double least[2];
  expect_two(result, shape, least);
  return least[1] < UNCLEAR * least[0];
}

static bench_tune_shape unclear_shape(const bench_tune_result *result, const bench_tune_line *line, uint64_t *seed) {
  bench_tune_shape s = random_shape(line, seed);
  for (int i = 1; i < MOST_DRAWS && !is_unclear(result, &s); i++) s = random_shape(line, seed);
  return s;
}

/* K and V leave the caches. Few random problems are like that, and what memory costs has to come from them. */
static const double LARGE_ELEMENTS = 6e5; /* K has so many at least, and V */

static bool is_large(const bench_tune_shape *s) { return (double)(s->heads_kv * s->seq_k * s->dim) >= LARGE_ELEMENTS; }

static bench_tune_shape large_shape(const bench_tune_line *line, uint64_t *seed) {
  bench_tune_shape s = random_shape(line, seed);
  for (int i = 1; i < MOST_DRAWS && !is_large(&s); i++) s = random_shape(line, seed);
  return s;
}

/* Long enough for some rounds of the kernels that are near the quickest. */
static double length_of(const bench_tune_result *result, const bench_tune_shape *shape) {
  double least[2];
  expect_two(result, shape, least);
  if (result->points[bench_tune_type(shape)] < POINTS_OF_ALL || isinf(least[0])) return POINT_S;
  return fmax(SHORT_POINT_S, 1e-9 * CALLS_OF_POINT * least[0]);
}

/* Once enough problems were timed by all: those that were near the quickest of some, of which a few may lead rarely, and at
 * last those that led any: whether they lead often enough for a line shows in the end. */
static bench_tune_set candidates(const bench_tune_result *result, attn_dtype dtype) {
  bench_tune_set set = 0;
  if (result->points[dtype] < POINTS_OF_ALL) return TUNE_ALL;
  for (int k = 0; k < TUNE_KERNELS; k++) {
    const bench_tune_cost *cost = &result->costs[k][dtype];
    const bool near = result->points[dtype] < POINTS_OF_NEAR && cost->near >= FEWEST_NEAR;
    set |= (bench_tune_set)(near || cost->leads > 0) << k;
  }
  return set;
}

/* ---- The sample ---- */

typedef struct sampler {
  const bench_tune_source *source;
  const bench_tune_lines *lines;
  bench_tune_result *result;
  uint64_t seed;
  int drawn;
  double most_s; /* for a problem */
} sampler;

/* Every second problem is one that is not clear, or a large one, if these are asked for. */
static void time_one(sampler *s, bool unclear) {
  const bench_tune_line *line = &s->lines->item[s->drawn % s->lines->count];
  const int turn = s->drawn++ / s->lines->count % TURNS_OF_LARGE;
  const bool is_random = !(turn % 2 && unclear);
  const bench_tune_shape shape = is_random   ? random_shape(line, &s->seed)
                                 : turn == 1 ? large_shape(line, &s->seed)
                                             : unclear_shape(s->result, line, &s->seed);
  const double seconds = fmin(length_of(s->result, &shape), s->most_s);
  attn_tune_report report;
  bool undisturbed;
  if (bench_tune_look_at(s->source, &shape, candidates(s->result, bench_tune_type(&shape)), seconds, &report, &undisturbed))
    add_look(&shape, &report, is_random, undisturbed, s->result);
}

/* Whether any kernel can have been timed often enough for a line. */
static bool is_worth_a_fit(const bench_tune_result *result) {
  for (int dtype = 0; dtype < TUNE_TYPES; dtype++)
    if (result->points[dtype] >= TUNE_FEWEST_TIMES) return true;
  return false;
}

void bench_tune_sample(const bench_tune_source *source, const bench_tune_lines *lines, double seconds,
                       bench_tune_result *result) {
  static const double until[] = {0.4, 0.7, 1}; /* shares of the time, or of all looks, after which costs are fitted */
  const int most = source->most_looks > 0 ? source->most_looks : TUNE_LOOKS;
  const double start = source->now_s(source->context);
  sampler s = {.source = source,
               .lines = lines,
               .result = result,
               .seed = 0x74756e65, /* --check takes small ones */
               .most_s = seconds / FEWEST_POINTS};
  for (size_t i = 0; i < sizeof until / sizeof *until; i++) {
    const bool unclear = bench_tune_has_costs(result);
    while (source->now_s(source->context) < start + until[i] * seconds && result->looks < until[i] * most)
      time_one(&s, unclear);
    if (is_worth_a_fit(result)) bench_tune_fit(result);
  }
}
