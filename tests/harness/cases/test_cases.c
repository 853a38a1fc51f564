/* SPDX-License-Identifier: MIT */
/* Grids, presets and names of cases as a reader of `attnbench list axes` would make them: ranges, every combination,
 * covering selections, texts of presets, layouts; and every case is the one that its name says. */
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "tests/support/layer_support.h"

static char error[400];

/* ---- Ranges ---------------------------------------------------------------------------------------------------------- */

/* FIRST:LAST with a step or a factor gives each value from first to last. It is refused if there are none, or the step does
 * not lead to the last. */
static void expect_range(int64_t first, int64_t last, int64_t step, char how) {
  char text[80];
  bench_grid grid = {.pick = 0};
  const bool fine = first <= last && step >= 1 && (how != '*' || (step >= 2 && first >= 1)) && first >= 0;
  const int length = snprintf(text, sizeof text, "seq=%lld:%lld", (long long)first, (long long)last);
  if (how != ' ') snprintf(text + length, sizeof text - (size_t)length, ":%.*s%lld", how != ':', &how, (long long)step);
  if (bench_grid_set(&grid, text, error, sizeof error) != fine) fail_msg("%s is %s", text, fine ? error : "taken");
  int count = 0;
  for (int64_t value = first; fine && value <= last; value = how == '*' ? value * step : value + step)
    assert_int_equal(strtoll(grid.axes[AXIS_SEQ].value[count++], NULL, 10), value);
  if (fine) assert_int_equal(grid.axes[AXIS_SEQ].count, count);
  if (!fine) test_contains(error, "axis seq: range");
  bench_grid_clear(&grid);
}

TEST(ranges_have_both_ends) {
  for (int64_t first = -1; first < 4; first++)
    for (int64_t last = first - 1; last < 12; last++) {
      expect_range(first, last, 1, ' ');
      for (int64_t step = 0; step < 4; step++)
        for (int how = 0; how < 3; how++) expect_range(first, last, step, ":+*"[how]);
    }
  expect_range(INT32_MAX - 1, INT32_MAX, 1, '+');
  expect_range(1, 4096, 1, ' ');
  bench_grid grid = {.pick = 0};
  assert_false(bench_grid_set(&grid, "seq=0:4096", error, sizeof error)); /* one value too many */
  bench_grid_clear(&grid);
}

/* ---- Names ----------------------------------------------------------------------------------------------------------- */

/* The bytes from one member to another, with both. There is padding behind dtype_o and behind uses. */
#define SAME_MEMBERS(a, b, first, last)                                                                                     \
  assert_memory_equal((const char *)(a) + offsetof(attn_problem, first), (const char *)(b) + offsetof(attn_problem, first), \
                      offsetof(attn_problem, last) + sizeof((a)->last) - offsetof(attn_problem, first))

static void expect_same_problem(const attn_problem *a, const attn_problem *b) {
  SAME_MEMBERS(a, b, struct_size, dtype_o);
  SAME_MEMBERS(a, b, q_stride, uses);
  SAME_MEMBERS(a, b, total_q, score_weight_stride_h);
}

/* A case that is built from its name again is the same, with the same data. */
static void expect_its_name(const bench_case *bench, uint64_t seed) {
  bench_spec spec;
  bench_case again;
  assert_true(bench_spec_from_id(bench->case_id, &spec, error, sizeof error));
  bench_case_build(&spec, seed, &again);
  assert_string_equal(again.case_id, bench->case_id);
  assert_string_equal(again.layout, bench->layout);
  assert_string_equal(again.layer, bench->layer);
  assert_string_equal(again.invalid, bench->invalid);
  expect_same_problem(&again.problem, &bench->problem);
  assert_true(again.seed == bench->seed && again.threads == bench->threads && again.cache == bench->cache);
  assert_true(again.width == bench->width);
}

/* Every case of a list stands once, and is valid if it was selected. */
static void expect_list(const bench_case_list *list, const bench_grid *grid, uint64_t seed) {
  for (int i = 0; i < list->count; i++) {
    expect_its_name(&list->item[i], seed);
    if (grid->pick && list->item[i].invalid[0]) fail_msg("%s: %s", list->item[i].case_id, list->item[i].invalid);
    if (grid->work > 0) assert_true(bench_multiply_adds(&list->item[i].problem) <= grid->work);
    for (int k = 0; k < i; k++) assert_string_not_equal(list->item[i].case_id, list->item[k].case_id);
  }
}

/* How often a value of an axis stands in the cases. */
static int count_value(const bench_case_list *list, bench_axis axis, const char *value) {
  int count = 0;
  for (int i = 0; i < list->count; i++) count += !strcmp(list->item[i].spec.value[axis], value);
  return count;
}

/* A selection varies every axis; alignments and offsets may be tidied away. */
static void expect_cover(const bench_case_list *list, const bench_grid *grid) {
  for (int axis = 0; axis < AXIS_COUNT; axis++)
    for (int v = 0; v < grid->axes[axis].count; v++)
      if (axis != AXIS_ALIGN && axis != AXIS_OFFSET && !count_value(list, (bench_axis)axis, grid->axes[axis].value[v]))
        fail_msg("%s=%s does not occur", bench_axis_get((bench_axis)axis)->name, grid->axes[axis].value[v]);
}

TEST(cases_of_every_preset_are_what_their_names_say) {
  for (const bench_preset *preset = bench_presets; preset->name; preset++) {
    static bench_grids grids;
    char summary[200];
    assert_ptr_equal(bench_preset_find(preset->name), preset);
    if (!bench_preset_read(preset->text, &grids, error, sizeof error)) fail_msg("%s: %s", preset->name, error);
    bench_preset_summary(preset, summary, sizeof summary);
    assert_true(strlen(summary) > 10 && summary[0] != '#' && !strchr(summary, '\n'));
    for (int g = 0; g < grids.count; g++) {
      bench_case_list list = {.count = 0};
      bench_grid *grid = &grids.grid[g];
      if (grid->pick > 300) grid->pick = 300;
      if (!bench_cases_add(&list, grid, 7, error, sizeof error)) fail_msg("%s: %s", preset->name, error);
      assert_true(list.count > 0);
      expect_list(&list, grid, 7);
      if (grid->pick) expect_cover(&list, grid);
      bench_cases_clear(&list);
    }
    bench_grids_clear(&grids);
  }
}

TEST(preset_quantised_has_every_type_of_keys_and_values) {
  static bench_grids grids;
  int calls[ATTN_DTYPE_COUNT][4] = {{0}}; /* decode, a chunk, pages, writing */
  assert_true(bench_preset_read(bench_preset_find("quantised")->text, &grids, error, sizeof error));
  for (int g = 0; g < grids.count; g++) {
    bench_case_list list = {.count = 0};
    assert_true(bench_cases_add(&list, &grids.grid[g], 1, error, sizeof error));
    for (int i = 0; i < list.count; i++) {
      const attn_problem *p = &list.item[i].problem;
      assert_string_equal(list.item[i].invalid, "");
      calls[p->dtype_kv][list.item[i].layer[0] ? 3 : p->uses & ATTN_USE_PAGES ? 2 : p->seq_q > 1]++;
    }
    bench_cases_clear(&list);
  }
  bench_grids_clear(&grids);
  for (attn_dtype dtype = ATTN_BF16; attn_dtype_exists(dtype); dtype++)
    for (int call = 0; call < 4; call++)
      if (!calls[dtype][call]) fail_msg("%s lacks call %d", bench_dtype_name(dtype), call);
}

/* ---- Grids ----------------------------------------------------------------------------------------------------------- */

static const char preset_text[] =
    "# What it is for\n"
    "seq_q = 1,2 # queries\n"
    "\n"
    "  [ a title ]\n"
    "pick=3\nwork = 2e5\n"
    "\tcausal = none , top-left\n"
    "[b]\n"
    "dtype=f16\nheads=1,3:5";

TEST(presets_are_read_line_by_line) {
  static bench_grids grids;
  bench_case_list list = {.count = 0};
  assert_true(bench_preset_read(preset_text, &grids, error, sizeof error));
  assert_int_equal(grids.count, 3);
  assert_string_equal(grids.grid[0].title, "");
  assert_string_equal(grids.grid[1].title, " a title ");
  assert_string_equal(grids.grid[2].title, "b");
  assert_true(grids.grid[0].pick == 0 && grids.grid[1].pick == 3 && grids.grid[1].work == 2e5 && grids.grid[2].pick == 0);
  assert_true(grids.grid[1].axes[AXIS_CAUSAL].count == 2 && grids.grid[0].axes[AXIS_SEQ_Q].count == 2);
  assert_string_equal(grids.grid[1].axes[AXIS_CAUSAL].value[1], "top-left");
  assert_true(bench_cases_add(&list, &grids.grid[2], 1, error, sizeof error));
  assert_int_equal(list.count, 4);
  for (int i = 0; i < 4; i++) assert_int_equal(list.item[i].problem.heads_q, i ? 2 + i : 1);
  assert_true(bench_cases_add(&list, &grids.grid[2], 1, error, sizeof error)); /* again: each stands there already */
  assert_int_equal(list.count, 4);
  bench_cases_clear(&list);
  bench_grids_clear(&grids);
}

TEST(wrong_presets_name_the_line) {
  static const char *const bad[][2] = {{"seq=1\n\npick=0", "line 3: pick '0'"},
                                       {"[a]\nwork=0", "line 2: work '0'"},
                                       {"# c\nseqs=1", "line 2: unknown axis 'seqs'; did you mean seq?"},
                                       {"seq=1\nheads", "line 2: 'heads' should be AXIS=VALUES"},
                                       {"causal=top", "line 1: axis causal: 'top' should be none, top-left"}};
  for (size_t i = 0; i < COUNT(bad); i++) {
    static bench_grids grids;
    assert_false(bench_preset_read(bad[i][0], &grids, error, sizeof error));
    test_contains(error, bad[i][1]);
    bench_grids_clear(&grids);
  }
}

/* The last axis varies fastest; an axis for two replaces both. */
TEST(grids_have_every_combination_in_order) {
  static const char *const assignments[] = {"seq_q=9", "heads=1,2", "seq=3,4", "seq_k=5,6,7"};
  bench_grid grid = {.pick = 0};
  bench_case_list list = {.count = 0};
  for (size_t i = 0; i < COUNT(assignments); i++) assert_true(bench_grid_set(&grid, assignments[i], error, sizeof error));
  assert_true(bench_cases_add(&list, &grid, 1, error, sizeof error));
  assert_int_equal(list.count, 12);
  for (int i = 0; i < 12; i++) {
    const attn_problem *p = &list.item[i].problem;
    assert_true(p->heads_q == 1 + i / 6 && p->seq_q == 3 + i / 3 % 2 && p->seq_k == 5 + i % 3);
  }
  bench_cases_clear(&list);
  bench_grid_clear(&grid);
}

/* Fifteen cases cover all pairs of the values of four axes; nine would be the least. */
TEST(selections_cover_pairs) {
  static const char *const assignments[] = {"heads=1,2,4", "seq_q=3,4,5", "seq_k=6,7,8", "head_dim=8,16,32"};
  for (uint64_t seed = 0; seed < 20; seed++) {
    bench_grid grid = {.pick = 15};
    bench_case_list list = {.count = 0};
    bool met[12][12] = {{false}};
    int pairs = 0;
    for (size_t i = 0; i < COUNT(assignments); i++) assert_true(bench_grid_set(&grid, assignments[i], error, sizeof error));
    assert_true(bench_cases_add(&list, &grid, seed, error, sizeof error));
    for (int n = 0; n < list.count; n++) {
      const attn_problem *p = &list.item[n].problem;
      const int64_t value[] = {p->heads_q / 2, p->seq_q, p->seq_k, 9 + p->dim_v / 16}; /* 0 to 11 */
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++) pairs += !met[value[i]][value[k]], met[value[i]][value[k]] = true;
    }
    assert_int_equal(pairs, 6 * 9);
    bench_cases_clear(&list);
    bench_grid_clear(&grid);
  }
}

/* ---- Layouts --------------------------------------------------------------------------------------------------------- */

TEST(layouts_are_these_strides) {
  static const struct {
    const char *name;
    attn_strides q, k, v, o;
  } layouts[] = {{"bhsd", {160, 40, 8, 1}, {112, 56, 8, 1}, {42, 21, 3, 1}, {60, 15, 3, 1}},
                 {"bshd", {160, 8, 32, 1}, {112, 8, 16, 1}, {42, 3, 6, 1}, {60, 3, 12, 1}},
                 {"strided", {299, 72, 13, 1}, {207, 98, 13, 1}, {137, 63, 8, 1}, {199, 47, 8, 1}},
                 {"spread", {320, 80, 16, 2}, {224, 112, 16, 2}, {84, 42, 6, 2}, {120, 30, 6, 2}},
                 {"transposed", {160, 40, 1, 5}, {112, 56, 1, 7}, {42, 21, 1, 7}, {60, 15, 1, 5}},
                 {"k-transposed", {160, 40, 8, 1}, {112, 56, 1, 7}, {42, 21, 3, 1}, {60, 15, 3, 1}},
                 {"reversed", {160, -40, -8, -1}, {112, -56, -8, -1}, {42, -21, -3, -1}, {60, -15, -3, -1}},
                 {"broadcast", {160, 0, 8, 1}, {0, 0, 8, 1}, {0, 21, 3, 1}, {60, 15, 3, 1}}};
  for (size_t i = 0; i < COUNT(layouts); i++) {
    char id[80];
    snprintf(id, sizeof id, "B:2/Hq:4/Hkv:2/Sq:5/Sk:7/D:8/Dv:3/layout:%s", layouts[i].name);
    const attn_problem p = valid_case(id).problem;
    assert_memory_equal(&p.q_stride, &layouts[i].q, sizeof p.q_stride);
    assert_memory_equal(&p.k_stride, &layouts[i].k, sizeof p.k_stride);
    assert_memory_equal(&p.v_stride, &layouts[i].v, sizeof p.v_stride);
    assert_memory_equal(&p.o_stride, &layouts[i].o, sizeof p.o_stride);
  }
  const attn_problem p = valid_case("B:2/Hq:4/Hkv:2/Sq:5/Sk:7/D:8/Dv:3/lengths:varlen").problem;
  assert_true(p.total_q == 10 && p.total_k == 14 && p.q_stride.s == 4 * 8 && p.v_stride.h == 3);
}

/* Pages take the place of sequences in K and V alone, and each sequence has its own. */
TEST(pages_have_the_strides_of_their_layout) {
  static const struct {
    const char *rest;
    attn_strides q, k, v;
  } layouts[] = {{"", {160, 40, 8, 1}, {512, 256, 8, 1}, {192, 96, 3, 1}},
                 {"/layout:bshd", {160, 8, 32, 1}, {512, 8, 16, 1}, {192, 3, 6, 1}},
                 {"/layout:transposed", {160, 40, 1, 5}, {512, 256, 1, 32}, {192, 96, 1, 32}},
                 {"/layout:k-transposed", {160, 40, 8, 1}, {512, 256, 1, 32}, {192, 96, 3, 1}},
                 {"/lengths:varlen", {160, 8, 32, 1}, {512, 8, 16, 1}, {192, 3, 6, 1}}};
  for (size_t i = 0; i < COUNT(layouts); i++) {
    char id[120];
    snprintf(id, sizeof id, "B:2/Hq:4/Hkv:2/Sq:5/Sk:70/D:8/Dv:3/page_tokens:32%s", layouts[i].rest);
    const attn_problem p = valid_case(id).problem;
    assert_memory_equal(&p.q_stride, &layouts[i].q, sizeof p.q_stride);
    assert_memory_equal(&p.k_stride, &layouts[i].k, sizeof p.k_stride);
    assert_memory_equal(&p.v_stride, &layouts[i].v, sizeof p.v_stride);
    assert_true(p.page_tokens == 32 && p.pages == 6 && p.page_table_stride == 3 && p.total_k == 0);
    assert_true((p.uses & ATTN_USE_PAGES) && (p.uses & ATTN_USE_KV_LEN));
  }
  assert_true(!strstr(valid_case("page_order:shuffled").case_id, "page"));
}

/* The word of a mask or bias decides which dimensions it is broadcast over. The given axes decide the head dimensions. */
TEST(words_choose_strides_and_sizes) {
  static const struct {
    const char *word;
    attn_score_strides strides;
  } words[] = {{"mask:random", {35, 0, 7, 1}}, {"mask:padding", {7, 0, 0, 1}}, {"bias:full", {140, 35, 7, 1}},
               {"bias:heads", {0, 35, 7, 1}},  {"bias:row", {7, 0, 0, 1}},     {"bias:masking", {140, 35, 7, 1}}};
  for (size_t i = 0; i < COUNT(words); i++) {
    char id[80];
    snprintf(id, sizeof id, "B:2/Hq:4/Sq:5/Sk:7/%s", words[i].word);
    const attn_problem p = valid_case(id).problem;
    assert_memory_equal(i < 2 ? &p.mask_stride : &p.bias_stride, &words[i].strides, sizeof words[i].strides);
  }
  const attn_problem p = valid_case("head_dim:32/dim_v:5").problem, q = valid_case("dim_qk:8/head_dim:32").problem;
  assert_true(p.dim_qk == 32 && p.dim_v == 5 && q.dim_qk == 32 && q.dim_v == 32); /* the last one counts */
}

/* The first word is the type of all tensors, a second one that of K and V, a third one that of O. */
TEST(types_are_one_to_three_words) {
  static const char *const words[] = {"f32", "f16", "bf16"};
  for (int n = 0; n < 3 + 9 + 27 + 81; n++) {
    const int count = n < 3 ? 1 : n < 12 ? 2 : n < 39 ? 3 : 4, first = n < 3 ? n : n < 12 ? n - 3 : n < 39 ? n - 12 : n - 39;
    const int part[] = {first % 3, first / 3 % 3, first / 9 % 3, first / 27};
    char word[40] = "";
    attn_dtype q, kv, o;
    for (int i = 0; i < count; i++) strcat(strcat(word, i ? "+" : ""), words[part[i]]);
    assert_int_equal(bench_dtype_read(word, &q, &kv, &o), count < 4);
    if (count == 4) continue;
    assert_string_equal(bench_dtype_name(q), words[part[0]]);
    assert_string_equal(bench_dtype_name(kv), words[part[count > 1]]);
    assert_string_equal(bench_dtype_name(o), words[part[count > 2 ? 2 : 0]]);
  }
}
