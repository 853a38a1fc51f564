/* SPDX-License-Identifier: MIT */
/* The automatic choice. Terms of kernels have no gaps. Of the kernels that can run, the one with the smallest sum of terms
 * times costs is taken, with every class of CPUs. The sums are computed here again, from the text of the class. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/terms.h"
#include "src/choice/machine_class.h"
#include "src/choice/paying_threads.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "tests/support/support.h"

static uint64_t seed;

static int64_t draw(int64_t below) { return (int64_t)(bench_random(&seed) % (uint64_t)below); }

/* Any shape, type, mask and score that is legal. */
static attn_problem random_problem(void) {
  static const uint32_t uses[] = {0, 0, 0, ATTN_USE_MASK, ATTN_USE_BIAS, ATTN_USE_ALIBI, ATTN_USE_LSE | ATTN_USE_SINKS};
  attn_problem p;
  const int64_t heads = 1 + draw(9), keys = draw(9) ? draw(900) : 30000 + draw(9000), dim = 8 * (1 + draw(20));
  const bool odd = draw(3) == 0;
  attn_problem_init(&p, 1 + draw(3), heads * (1 + draw(4)), heads, draw(3) ? draw(12) : draw(300), keys,
                    odd ? 1 + draw(200) : dim, odd ? 1 + draw(200) : dim);
  p.dtype_q = p.dtype_kv = (attn_dtype)draw(3);
  if (draw(5) == 0) p.dtype_q = ATTN_F32;
  p.uses = uses[draw(COUNT(uses))];
  p.align = draw(2) ? ATTN_ALIGN_BOTTOM_RIGHT : ATTN_ALIGN_TOP_LEFT;
  if (draw(3) == 0) p.window_right = draw(3) ? 0 : draw(50);
  if (draw(4) == 0) p.window_left = draw(400);
  if (draw(6) == 0) p.softcap = 20;
  if (draw(9) == 0) p.score = (attn_score)draw(ATTN_SCORE_PRECOMPUTED + 1);
  if (p.score == ATTN_SCORE_ADDITIVE) p.uses |= ATTN_USE_SCORE_WEIGHT;
  return p;
}

/* ---- Terms ---- */

static bool can_run(const attn_kernel *kernel, const attn_problem *problem) {
  return !attn_kernel_unusable(&kernel->info) && !attn_kernel_rejects(&kernel->info, problem);
}

static void read_terms(const attn_kernel *kernel, const attn_problem *problem, double terms[ATTN_MAX_TERMS]) {
  for (int i = 0; i < ATTN_MAX_TERMS; i++) terms[i] = -1;
  kernel->terms.of(problem, terms);
  for (int i = 0; i < kernel->terms.count; i++)
    if (!(terms[i] >= 0) || isinf(terms[i])) fail_msg("%s: %s is %g", kernel->info.name, kernel->terms.names[i], terms[i]);
  for (int i = kernel->terms.count; i < ATTN_MAX_TERMS; i++) assert_true(terms[i] == -1);
}

static void expect_more(const attn_kernel *kernel, const attn_problem *more, const double terms[ATTN_MAX_TERMS]) {
  double larger[ATTN_MAX_TERMS];
  if (!can_run(kernel, more)) return;
  read_terms(kernel, more, larger);
  for (int i = 0; i < kernel->terms.count; i++)
    if (!(larger[i] >= terms[i]))
      fail_msg("%s: %s shrinks from %g to %g", kernel->info.name, kernel->terms.names[i], terms[i], larger[i]);
}

/* Terms of masks, biases and other parts of scores count where the problem has them, and only there. */
static void expect_used_alone(const attn_kernel *kernel, const attn_problem *p, const double terms[ATTN_MAX_TERMS]) {
  const struct {
    const char *name;
    bool used;
  } parts[] = {{"masked", p->uses & ATTN_USE_MASK},           {"biased", p->uses & ATTN_USE_BIAS},
               {"sloped", p->uses & ATTN_USE_ALIBI},          {"capped", p->softcap > 0},
               {"additive", p->score == ATTN_SCORE_ADDITIVE}, {"gaussian", p->score == ATTN_SCORE_GAUSSIAN},
               {"given", p->score == ATTN_SCORE_PRECOMPUTED}};
  const bool scores = p->seq_q > 0 && p->window_left < 0 && p->window_right < 0;
  for (int i = 0; i < kernel->terms.count; i++)
    for (size_t n = 0; n < COUNT(parts); n++)
      if (!strcmp(kernel->terms.names[i], parts[n].name) && (parts[n].used ? scores && terms[i] == 0 : terms[i] != 0))
        fail_msg("%s: %s is %g", kernel->info.name, parts[n].name, terms[i]);
}

/* 64 more keys do not change how many keys stand beside whole blocks. Where rows do not see the added keys, the whole
 * vectors of the other keys are an estimate. */
static void check_terms(const attn_kernel *kernel) {
  seed = 5;
  for (int i = 0; i < 500; i++) {
    double terms[ATTN_MAX_TERMS];
    const attn_problem problem = random_problem();
    attn_problem heads = problem, keys = problem;
    if (!can_run(kernel, &problem)) continue;
    read_terms(kernel, &problem, terms);
    expect_used_alone(kernel, &problem, terms);
    heads.heads_q *= 2, heads.heads_kv *= 2;
    expect_more(kernel, &heads, terms);
    keys.seq_k += 64;
    if (problem.window_left < 0 && problem.window_right < 0) expect_more(kernel, &keys, terms);
  }
}

TEST(terms_are_whole_and_grow_with_the_problem) {
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++)
    if (kernel->terms.count > 0 && !attn_kernel_unusable(&kernel->info)) check_terms(kernel);
}

TEST(terms_have_names_of_their_own) {
  const attn_kernel *kernel;
  for (int n = 0; (kernel = attn_registry_get(n)); n++)
    for (int i = 0; i < kernel->terms.count; i++) {
      const char *name = kernel->terms.names[i];
      assert_true(*name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name));
      assert_int_equal(attn_term_find(kernel, name), i);
    }
}

/* One term of a tier's kernel, for each of two KV heads. */
static double decode_term(const attn_problem *problem, int lanes, int values, const char *name) {
  double terms[DECODE_TERM_COUNT];
  attn_decode_terms(problem, (term_widths){lanes, values}, terms);
  return terms[attn_term_find(attn_registry_find("decode_portable"), name)] / 2;
}

static double flash_term(const attn_problem *problem, int lanes, const char *name) {
  double terms[FLASH_TERM_COUNT];
  attn_flash_terms(problem, (term_widths){lanes, lanes}, 16, terms);
  return terms[attn_term_find(attn_registry_find("flash_portable"), name)] / 2;
}

static attn_problem of_two_heads(int64_t group, int64_t queries, int64_t keys, int64_t dim) {
  attn_problem p;
  attn_problem_init(&p, 1, 2 * group, 2, queries, keys, dim, dim);
  return p;
}

/* The passes were counted by hand: 7 rows are decoded as 8, 11 as 8 and 4, 5 as 4 and 1. Whole blocks of 32 keys have terms
 * of their own, but not with a single row left, since no block takes 40 dimensions. */
TEST(decode_counts_passes_and_blocks) {
  static const struct {
    int64_t rows;
    double passes[4];
  } cases[] = {{1, {0, 0, 0, 1}}, {2, {0, 0, 1, 0}},  {3, {0, 1, 0, 0}},  {5, {0, 1, 0, 1}},  {6, {0, 1, 1, 0}},
               {7, {1, 0, 0, 0}}, {11, {1, 1, 0, 0}}, {15, {2, 0, 0, 0}}, {32, {4, 0, 0, 0}}, {30, {3, 1, 1, 0}}};
  static const char *const by[] = {"8", "4", "2", "1"};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const double *passes = cases[i].passes, blocks = passes[3] > 0 ? 0 : 96, rest = 100 - blocks;
    const double all = passes[0] + passes[1] + passes[2] + passes[3];
    const attn_problem p = of_two_heads(1, cases[i].rows, 100, 40);
    for (int j = 0; j < 4; j++) {
      char pass[20], key[20], block[20];
      snprintf(pass, sizeof pass, "pass_%s", by[j]), snprintf(key, sizeof key, "key_%s", by[j]);
      snprintf(block, sizeof block, "block_%s", by[j]);
      assert_true(decode_term(&p, 4, 4, pass) == passes[j]);
      assert_true(decode_term(&p, 4, 4, key) == passes[j] * rest * 40);
      assert_true(decode_term(&p, 4, 4, block) == passes[j] * blocks * 40);
    }
    const double sums = 4 * (passes[0] * rest + passes[1] * rest + passes[2] * rest / 2 + passes[3] * rest / 4);
    assert_true(decode_term(&p, 4, 4, "key") == rest && decode_term(&p, 4, 4, "score") == sums * 40);
    assert_true(decode_term(&p, 4, 4, "block_key") == all * blocks);
    assert_true(decode_term(&p, 4, 4, "block_joins") == (blocks > 0 ? all : 0));
    assert_true(decode_term(&p, 4, 4, "row") == (double)cases[i].rows && decode_term(&p, 4, 4, "call") == 0.5);
  }
  attn_problem p = of_two_heads(1, 1, 100, 64); /* three blocks of 32 keys stream, */
  assert_true(decode_term(&p, 4, 4, "block_1") == 96 * 64 && decode_term(&p, 4, 4, "key") == 4);
  assert_true(decode_term(&p, 4, 8, "block_1") == 0 && decode_term(&p, 4, 8, "key") == 100); /* but not as pairs, */
  p.softcap = 5;
  assert_true(decode_term(&p, 4, 4, "block_1") == 0 && decode_term(&p, 4, 4, "capped") == 25); /* nor with a softcap */
  p = of_two_heads(1, 8, 100, 64); /* 93 keys are seen by all 8 rows: two blocks */
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  assert_true(decode_term(&p, 4, 4, "block_8") == 64 * 64 && decode_term(&p, 4, 4, "key") == 36);
  attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT); /* the first row sees one key, the last row 8 */
  assert_true(decode_term(&p, 4, 4, "block_8") == 0 && decode_term(&p, 4, 4, "key") == 8);
}

/* 3 rows, which decode takes as 4, of 50 keys: whole vectors of dimensions and of keys, and rows that wait for a part of a
 * vector. Pairs of values fill the 32 of a vector of K. */
TEST(terms_count_whole_vectors_of_the_tier) {
  static const struct {
    int lanes, values;
    int64_t dim;
    double decode_wide, wide, rest, keys;
    bool decode_parts, parts;
  } cases[] = {{16, 16, 40, 48, 48, 32, 64, true, true},
               {16, 32, 48, 56, 48, 32, 64, true, false},
               {8, 8, 40, 40, 40, 24, 56, false, false},
               {4, 4, 42, 44, 44, 20, 52, true, true}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const int lanes = cases[i].lanes, values = cases[i].values;
    const attn_problem p = of_two_heads(1, 3, 50, cases[i].dim);
    assert_true(decode_term(&p, lanes, values, "key_4") == 18 * cases[i].decode_wide);
    assert_true(decode_term(&p, lanes, values, "block_4") == 32 * cases[i].decode_wide);
    assert_true(decode_term(&p, lanes, values, "row_key") == 3 * cases[i].rest);
    assert_true(decode_term(&p, lanes, values, "row_key_tail") == 4 * 18 * cases[i].decode_parts);
    assert_true(flash_term(&p, lanes, "pack_key") == cases[i].keys);
    assert_true(flash_term(&p, lanes, "pack_width") == cases[i].keys * cases[i].wide);
    assert_true(flash_term(&p, lanes, "row_key_tail") == 150 * cases[i].parts);
  }
}

/* Three tiles of 13 queries of a head see 93, 99 and 100 keys of a causal problem, and 6, 12 and 13 at the other end. */
TEST(flash_counts_tiles) {
  attn_problem p = of_two_heads(4, 13, 100, 64);
  assert_true(flash_term(&p, 4, "task") == 4 && flash_term(&p, 4, "tile") == 12 && flash_term(&p, 4, "row") == 52);
  assert_true(flash_term(&p, 4, "tile_key_width") == 12 * 100 * 64 && flash_term(&p, 4, "tile_ragged") == 0);
  p.uses = ATTN_USE_MASK;
  assert_true(flash_term(&p, 4, "masked") == 12 * 6 * 112 / 4 && flash_term(&p, 4, "biased") == 0);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  assert_true(fabs(flash_term(&p, 4, "tile_key_width") - 4 * (93 + 99 + 100) * 64) < 1e-6);
  assert_true(flash_term(&p, 4, "tile_ragged") == 12);
  attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT);
  assert_true(fabs(flash_term(&p, 4, "tile_key_width") - 4 * (6 + 12 + 13) * 64) < 1e-6);
}

/* K and V have 1 MiB as floats. What flash packs of a head, K alone or, of 16 bits, K and V as floats, counts as well. */
TEST(bytes_count_around_level_2) {
  static const double all = 1024 * 64;
  for (int narrow = 0; narrow < 2; narrow++) {
    attn_problem p = of_two_heads(1, 1, 1024, 64);
    p.dtype_q = p.dtype_kv = p.dtype_o = narrow ? ATTN_BF16 : ATTN_F32;
    assert_true(decode_term(&p, 4, 4, "beyond_64k") == all && decode_term(&p, 4, 4, "beyond_8m") == 0);
    assert_true(decode_term(&p, 4, 4, "beyond_512k") == (narrow ? 0 : all / 2));
    assert_true(decode_term(&p, 4, 4, "pass_512k") == (narrow ? 0 : all) && decode_term(&p, 4, 4, "pass_1m") == 0);
    assert_true(flash_term(&p, 4, "pass_512k") == all && flash_term(&p, 4, "pass_2m") == 0);
    assert_true(fabs(flash_term(&p, 4, "pass_1m") / all - (narrow ? 0 : log2(1.25))) < 1e-9);
  }
}

/* ---- Costs of classes ---- */

static const char *denied_tier; /* the operating system refuses it the registers */

/* The linker's --wrap sends requests for registers here. */
const char *__real_attn_tier_claim(int tier);
const char *__wrap_attn_tier_claim(int tier);
const char *__wrap_attn_tier_claim(int tier) {
  if (denied_tier && strcmp(attn_tier_isa(tier), denied_tier) == 0) return "refused by the test";
  return __real_attn_tier_claim(tier);
}

static char class_text[1 << 17];

static void load_class(const char *name) {
  char path[400];
  snprintf(path, sizeof path, "%s/kernels/machines/%s.tuning", TEST_SOURCE_DIR, name);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  class_text[fread(class_text, 1, sizeof class_text - 1, file)] = 0;
  fclose(file);
}

static bool takes(const attn_kernel *kernel, const attn_problem *problem) {
  return can_run(kernel, problem) && !(denied_tier && strcmp(kernel->info.isa, denied_tier) == 0);
}

/* The time of the problem on the kernel: each of its terms times the cost that the words "term=ns ..." give. */
static double time_of(const attn_kernel *kernel, char *words, const attn_problem *problem) {
  double terms[ATTN_MAX_TERMS], sum = 0;
  char *rest = NULL;
  read_terms(kernel, problem, terms);
  for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(word, '=');
    *value = 0;
    sum += atof(value + 1) * terms[attn_term_find(kernel, word)];
  }
  return sum;
}

typedef struct expected {
  const attn_kernel *kernel;
  double ns;
} expected;

/* Lists the times that the lines "cost kernel=NAME DTYPE error=X term=ns ..." predict; returns how many there are. */
static int expect_times(const attn_problem *problem, expected list[]) {
  static char copy[sizeof class_text];
  char *rest = NULL;
  int count = 0;
  memcpy(copy, class_text, sizeof copy);
  for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char name[60], dtype[10];
    int words = 0;
    if (sscanf(line, "cost kernel=%59s %9s error=%*s %n", name, dtype, &words) < 2) continue;
    const attn_kernel *kernel = attn_registry_find(name);
    if (!kernel || strcmp(dtype, attn_dtype_of(problem->dtype_kv).name) != 0 || !takes(kernel, problem)) continue;
    list[count++] = (expected){kernel, time_of(kernel, line + words, problem)};
  }
  return count;
}

static int by_time(const void *a, const void *b) {
  const double one = ((const expected *)a)->ns, two = ((const expected *)b)->ns;
  return (one > two) - (one < two);
}

static const attn_kernel *first_that_takes(const attn_problem *problem) {
  int i = 0;
  while (!takes(attn_registry_get(i), problem)) i++;
  return attn_registry_get(i);
}

/* The number behind "takes " in the description is how much longer the second takes. */
static void check_margin(const char *text, const expected list[]) {
  const char *at = strstr(text, " takes ");
  const double margin = list[0].ns > 0 ? list[1].ns / list[0].ns : 1;
  assert_non_null(at);
  if (list[0].ns > 0 && fabs(atof(at + 7) - margin) > 0.006) fail_msg("%g is not %s", margin, text);
}

static void check_choice(const attn_problem *problem, const char *class) {
  expected list[ATTN_MAX_TERMS];
  attn_plan *plan;
  test_ok(attn_plan_create(problem, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  const char *text = attn_plan_describe(plan), *chosen = attn_plan_kernel(plan);
  const int count = expect_times(problem, list);
  qsort(list, (size_t)count, sizeof *list, by_time);
  int place = 0;
  while (place < count && strcmp(list[place].kernel->info.name, chosen) != 0) place++;
  if (count == 0) {
    assert_string_equal(chosen, first_that_takes(problem)->info.name);
    test_contains(text, "the first in rank: none that can run it has costs");
  } else {
    assert_true(place < count && list[place].ns <= list[0].ns * (1 + 1e-12));
    test_contains(text, class);
    if (count > 1 && !denied_tier) check_margin(text, list); /* the second may be of a tier that is denied */
    if (count == 1 && !denied_tier) test_contains(text, "no other kernel with costs can run");
  }
  attn_plan_destroy(plan);
}

/* The class that ATTN_MACHINE names, or the nearest. */
static const char *class_here(void) {
  const char *name = getenv("ATTN_MACHINE");
  const attn_class *class;
  test_ok(attn_class_here(&class));
  assert_int_equal(class->named, name != NULL);
  assert_true(class->distance >= 0 && class->distance < 3);
  if (name) assert_string_equal(attn_tuning_class(class->costs), name);
  return attn_tuning_class(class->costs);
}

static void check_choices(int count) {
  const char *class = class_here();
  load_class(class);
  seed = 8;
  for (int i = 0; i < count; i++) {
    const attn_problem problem = random_problem();
    check_choice(&problem, class);
  }
}

TEST(the_choice_is_the_least_sum) { check_choices(test_few() ? 100 : 500); }

/* The system may deny a tier that the CPU has, such as AMX: then the next kernel is taken. */
TEST(tiers_that_are_denied_are_left_out) {
  for (int tier = 1; (denied_tier = attn_tier_isa(tier)); tier++)
    if (!attn_tier_unusable(tier, getenv("ATTN_MAX_ISA"))) check_choices(50);
}

TEST(a_problem_that_no_kernel_takes_has_all_reasons) {
  attn_plan *plan;
  const attn_problem problem = of_two_heads(1, 3, 50, 40);
  denied_tier = "c";
  const attn_status status = attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .max_isa = "c"), &plan);
  denied_tier = NULL;
  test_refused(status, ATTN_UNSUPPORTED,
               "no kernel takes this problem here: ", "decode_portable (tier portable is above the cap",
               "flash_c (refused by the test)");
}

/* Batch and threads do not move the choice. */
TEST(the_choice_sees_one_sequence) {
  seed = 9;
  for (int i = 0; i < 100; i++) {
    attn_problem problem = random_problem();
    const char *kernel[2];
    for (int threads = 1; threads <= 7; threads += 6, problem.batch += 5) {
      attn_plan *plan;
      test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .threads = threads), &plan));
      kernel[threads > 1] = attn_plan_kernel(plan);
      attn_plan_destroy(plan);
    }
    assert_string_equal(kernel[0], kernel[1]);
  }
}

/* Whether a class has a line of prefetches, and its values. */
TEST(prefetches_are_those_of_the_class) {
  attn_prefetch wanted = {0};
  load_class(class_here());
  const char *line = strstr(class_text, "\nprefetch ");
  if (line)
    assert_int_equal(sscanf(line, " prefetch none_up_to=%lf twice_beyond=%lf", &wanted.none_up_to, &wanted.twice_beyond), 2);
  const attn_prefetch here = attn_class_prefetch();
  assert_true(here.none_up_to == wanted.none_up_to && here.twice_beyond == wanted.twice_beyond);
}

/* A kernel without costs is compared with others: those that this CPU has, whatever class is named. */
TEST(every_call_has_an_estimate) {
  seed = 10;
  for (int i = 0; i < 100; i++) {
    const attn_problem problem = random_problem();
    const double ns = attn_call_ns(NULL, attn_registry_find("naive_c"), &problem);
    if (!(ns >= 0 && (ns > 0 || problem.seq_q * problem.seq_k == 0) && !isinf(ns)))
      fail_msg("%g ns for %d queries and %d keys", ns, (int)problem.seq_q, (int)problem.seq_k);
  }
}

TEST(another_class_is_found_without_the_nearest) {
  const char *here = class_here();
  attn_class other;
  test_ok(attn_class_nearest(here, &other));
  assert_true(!other.named && other.distance >= 0);
  if (strcmp(here, "generic") != 0) assert_string_not_equal(attn_tuning_class(other.costs), here);
}
