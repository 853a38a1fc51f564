/* SPDX-License-Identifier: MIT */
/* The automatic choice. Of the kernels that can run, the one with the smallest sum of terms
 * times costs is taken, with every class of CPUs. The sums are computed here again, from the text of the class. */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "kernels/common/problem/dtypes.h"
#include "src/api/text.h"
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
  if (draw(4) == 0) attn_problem_set_backward(&p);
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

TEST(kernels_count_their_terms_of_any_problem) {
  const attn_kernel *kernel;
  seed = 5;
  for (int i = 0; i < 500; i++) {
    const attn_problem problem = random_problem();
    double terms[ATTN_MAX_TERMS];
    for (int n = 0; (kernel = attn_registry_get(n)); n++)
      if (kernel->terms.count > 0 && can_run(kernel, &problem)) read_terms(kernel, &problem, terms);
  }
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

static attn_problem of_two_heads(int64_t group, int64_t queries, int64_t keys, int64_t dim) {
  attn_problem p;
  attn_problem_init(&p, 1, 2 * group, 2, queries, keys, dim, dim);
  return p;
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

static void load_class_file(const char *path) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  class_text[fread(class_text, 1, sizeof class_text - 1, file)] = 0;
  fclose(file);
}

static void load_class(const char *name) {
  char path[400];
  snprintf(path, sizeof path, "%s/kernels/machines/%s.tuning", TEST_SOURCE_DIR, name);
  load_class_file(path);
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
  double ns, error; /* relative error of the line's times */
} expected;

/* Lists the times that the lines "cost kernel=NAME DTYPE error=X term=ns ..." predict; returns how many there are. */
static int expect_times(const attn_problem *problem, expected list[]) {
  static char copy[sizeof class_text];
  char *rest = NULL;
  int count = 0;
  memcpy(copy, class_text, sizeof copy);
  for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char name[60], dtype[10];
    double error = 0;
    int words = 0;
    if (sscanf(line, "cost kernel=%59s %9s error=%lf %n", name, dtype, &error, &words) < 3) continue;
    const attn_kernel *kernel = attn_registry_find(name);
    if (!kernel || strcmp(dtype, attn_dtype_of(problem->dtype_kv).name) != 0 || !takes(kernel, problem)) continue;
    list[count++] = (expected){kernel, time_of(kernel, line + words, problem), error};
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

/* The tiers of the class that was loaded: its second line. */
static const char *class_tiers(void) {
  char *line = strchr(class_text, '\n') + 1;
  *strchr(line, '\n') = 0;
  return line;
}

/* The highest tier here that has costs anywhere; generic has those of all kernels that are not run by name alone. */
static const char *best_tier_with_costs(void) {
  load_class("generic");
  const char *tiers = class_tiers(), *best = "c";
  for (int i = 0; attn_tier_isa(i); i++)
    if (!attn_tier_unusable(i, NULL) && attn_has_word(tiers, attn_tier_isa(i))) best = attn_tier_isa(i);
  return best;
}

/* Names of tiers begin alike: of every third set of them, each is found or not. */
TEST(words_are_whole) {
  for (int set = 0; set < 1 << 9; set += 3) {
    char text[160] = "";
    for (int i = 0; attn_tier_isa(i); i++)
      if (set >> i & 1) attn_append(text, sizeof text, " ", attn_tier_isa(i));
    for (int i = 0; attn_tier_isa(i); i++) assert_int_equal(attn_has_word(text, attn_tier_isa(i)), set >> i & 1);
  }
}

/* It serves the CPUs whose highest tier with costs no other class knows. Where several know it, kernels are timed. */
TEST(the_last_resort_is_the_last) {
  const attn_class *class;
  const char *best = best_tier_with_costs();
  int known = 0;
  glob_t files;
  assert_int_equal(glob(TEST_SOURCE_DIR "/kernels/machines/*-*.tuning", 0, NULL, &files), 0); /* all but generic.tuning */
  for (size_t i = 0; i < files.gl_pathc; i++) {
    load_class_file(files.gl_pathv[i]);
    known += attn_has_word(class_tiers(), best);
  }
  globfree(&files);
  assert_string_not_equal(best, "avx512vnni"); /* an Ice Lake's highest tier, which every class of 512 bits serves */
  if (!getenv("ATTN_MACHINE")) assert_int_equal(known > 0, strcmp(class_here(), "generic") != 0);
  test_ok(attn_class_here(&class));
  assert_true(class->named || (known > 1) == (class->distance > 0));
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

static attn_problem gradients_of(attn_dtype dtype, int64_t heads, int64_t tokens, bool causal) {
  attn_problem p;
  attn_problem_init(&p, 2, heads, heads, tokens, tokens, 64, 64);
  p.dtype_q = p.dtype_kv = p.dtype_o = dtype;
  if (causal) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  attn_problem_set_backward(&p);
  return p;
}

/* The registry names the quickest kernel of gradients in float32 first. Costs may find a quicker one for bf16 or 16 tokens,
 * and never one that keeps score matrices or has shorter vectors. A class whose costs were scaled from another CPU's, with
 * an error of 50 %, may name another tier: a Zen 4 has the same peak in two of them. */
TEST(gradients_are_chosen_by_costs_as_well_as_by_rank) {
  static const int64_t tokens[] = {64, 128, 384, 512, 1024, 2048};
  if (strcmp(attn_tier_best(), "c") == 0) return; /* plain C has no costs */
  load_class(class_here());
  for (int n = 0; n < 2 * (int)(2 * COUNT(tokens)); n++) {
    const attn_dtype dtype = n % 2 ? ATTN_BF16 : ATTN_F32;
    const attn_problem p = gradients_of(dtype, 4, tokens[n / 4], n / 2 % 2);
    expected list[ATTN_MAX_TERMS];
    const int count = expect_times(&p, list);
    const attn_kernel *first = NULL; /* in rank, of those with costs */
    attn_plan *plan;
    double error = 0;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) error = fmax(error, list[i].error);
    for (int rank = 0; !first; rank++)
      for (int i = 0; i < count; i++)
        if (list[i].kernel == attn_registry_get(rank)) first = list[i].kernel;
    test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
    const attn_kernel_info *chosen = attn_kernel_find(attn_plan_kernel(plan));
    test_contains(attn_plan_describe(plan), "automatic, by costs of");
    assert_string_equal(chosen->algorithm, "flash_backward");
    if (error < 0.5) {
      if (dtype == ATTN_F32) assert_string_equal(chosen->name, first->info.name);
      assert_true(attn_tier_find(chosen->isa) >= attn_tier_find(first->info.isa));
    }
    attn_plan_destroy(plan);
  }
}

/* The system may deny a tier that the CPU has, such as AMX: then the next kernel is taken. */
TEST(tiers_that_are_denied_are_left_out) {
  for (int tier = 1; (denied_tier = attn_tier_isa(tier)); tier++)
    if (!attn_tier_unusable(tier, getenv("ATTN_MAX_ISA"))) check_choices(50);
}

/* A file that has costs of such a tier alone says nothing. */
TEST(a_denied_tier_may_be_all_that_has_costs) {
  const attn_kernel *kernel = attn_registry_find("flash_portable");
  const attn_problem problem = of_two_heads(1, 3, 50, 40);
  char text[16384];
  attn_tuning *file;
  const size_t head = attn_tuning_head(text, sizeof text);
  snprintf(text + head, sizeof text - head, "cost kernel=flash_portable f32 error=0.1 %s=1\n", kernel->terms.names[0]);
  test_ok(attn_tuning_read("a.tuning", text, strlen(text), &file));
  for (int denied = 0; denied < 2; denied++) {
    attn_plan *plan;
    denied_tier = denied ? "portable" : NULL;
    test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .tuning = file), &plan));
    assert_int_equal(strcmp(attn_plan_kernel(plan), "flash_portable") == 0, !denied);
    attn_plan_destroy(plan);
  }
  denied_tier = NULL;
  attn_tuning_destroy(file);
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

TEST(caches_are_those_of_the_class) {
  load_class(class_here());
  const attn_caches here = attn_class_caches();
  char line[80];
  snprintf(line, sizeof line, "\ncaches level1=%d level2=%d\n", (int)here.level1, (int)here.level2);
  test_contains(class_text, line);
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
