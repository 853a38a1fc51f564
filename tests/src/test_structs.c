/* SPDX-License-Identifier: MIT */
/* Structs of programs that were compiled with older or newer headers: how the library reads them, fills them in, and refuses
 * them. The structs of those programs are written out here. */
#include <stddef.h>
#include <string.h>

#include "attn/extend.h"
#include "attn/product.h"
#include "tests/support/support.h"

/* ---- The walk, on structs of two imagined versions ---- */

typedef struct old_inner {
  size_t struct_size;
  int64_t a;
} old_inner;

typedef struct new_inner {
  size_t struct_size;
  int64_t a, b;
} new_inner;

typedef struct old_outer {
  size_t struct_size;
  int64_t before;
  old_inner inner;
  int64_t between;
  old_inner second;
  int64_t after;
} old_outer;

typedef struct new_outer {
  size_t struct_size;
  int64_t before;
  new_inner inner;
  int64_t between;
  new_inner second;
  int64_t after, added;
} new_outer;

#define LAYOUT(type, first, list) \
  { .name = #type, .maker = "make", .bytes = sizeof(type), .least = first, .parts = list }

static const attn_struct_layout old_inner_layout = LAYOUT(old_inner, sizeof(old_inner), NULL);
static const attn_struct_layout new_inner_layout = LAYOUT(new_inner, sizeof(old_inner), NULL);
static const attn_struct_part old_parts[] = {
    {offsetof(old_outer, inner), &old_inner_layout}, {offsetof(old_outer, second), &old_inner_layout}, {0, NULL}};
static const attn_struct_part new_parts[] = {
    {offsetof(new_outer, inner), &new_inner_layout}, {offsetof(new_outer, second), &new_inner_layout}, {0, NULL}};
static const attn_struct_layout old_layout = LAYOUT(old_outer, sizeof(old_outer), old_parts);
static const attn_struct_layout new_layout = LAYOUT(new_outer, sizeof(old_outer), new_parts);

static const old_outer of_old = {
    sizeof(old_outer), 1, {sizeof(old_inner), 2}, 3, {sizeof(old_inner), 4}, 5,
};
static const new_outer of_new = {
    sizeof(new_outer), 1, {sizeof(new_inner), 2, 0}, 3, {sizeof(new_inner), 4, 0}, 5, 0,
};

TEST(a_newer_library_reads_an_older_program) {
  new_outer ours;
  memset(&ours, 0xff, sizeof ours);
  test_ok(attn_struct_read(&new_layout, &of_old, &ours));
  assert_memory_equal(&ours, &of_new, sizeof ours);
}

TEST(an_older_library_reads_a_newer_program_that_uses_nothing_new) {
  old_outer ours;
  memset(&ours, 0xff, sizeof ours);
  test_ok(attn_struct_read(&old_layout, &of_new, &ours));
  assert_memory_equal(&ours, &of_old, sizeof ours);
}

TEST(an_older_library_refuses_what_it_does_not_know) {
  old_outer ours;
  new_outer theirs = of_new;
  theirs.added = 7;
  test_refused(attn_struct_read(&old_layout, &theirs, &ours), ATTN_INVALID_ARGUMENT, "old_outer has 88 bytes",
               attn_version(), "newer one");
  theirs = of_new;
  theirs.second.b = 7;
  test_refused(attn_struct_read(&old_layout, &theirs, &ours), ATTN_INVALID_ARGUMENT, "old_inner has 24 bytes", "newer one");
}

TEST(sizes_that_are_none_are_refused) {
  const size_t wrong[] = {0, 8, sizeof(old_inner) - 8, sizeof(new_inner) - 1, (size_t)1 << 20, SIZE_MAX};
  new_inner ours, theirs = {.a = 1};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    theirs.struct_size = wrong[i];
    test_refused(attn_struct_read(&new_inner_layout, &theirs, &ours), ATTN_INVALID_ARGUMENT, "new_inner.struct_size is",
                 "must be sizeof(new_inner), 24", "make");
  }
  new_outer outer = of_new, read;
  outer.struct_size = sizeof(old_outer); /* the second part would lie beyond its end */
  test_refused(attn_struct_read(&new_layout, &outer, &read), ATTN_INVALID_ARGUMENT, "new_inner.struct_size is 24",
               "ends before");
  outer.struct_size = offsetof(new_outer, after); /* it may end there */
  test_ok(attn_struct_read(&new_layout, &outer, &read));
  assert_true(read.second.a == of_new.second.a && read.after == 0);
  outer = of_new;
  outer.inner.struct_size = 0;
  test_refused(attn_struct_read(&new_layout, &outer, &read), ATTN_INVALID_ARGUMENT, "new_inner.struct_size is 0");
}

TEST(programs_of_both_ages_are_filled_in_to_their_size) {
  new_outer ours = of_new;
  ours.added = 6;
  struct {
    old_outer theirs;
    int64_t guard;
  } old = {.guard = 99};
  old.theirs = (old_outer){.struct_size = sizeof(old_outer), .inner.struct_size = sizeof(old_inner)};
  old.theirs.second.struct_size = sizeof(old_inner);
  attn_struct_write(&new_layout, &ours, &old.theirs);
  assert_memory_equal(&old.theirs, &of_old, sizeof of_old);
  assert_int_equal(old.guard, 99);

  new_outer theirs;
  memset(&theirs, 0xff, sizeof theirs);
  theirs.struct_size = sizeof theirs;
  theirs.inner.struct_size = theirs.second.struct_size = sizeof(new_inner);
  attn_struct_write(&old_layout, &of_old, &theirs);
  assert_memory_equal(&theirs, &of_new, sizeof theirs);
}

TEST(nothing_is_written_where_no_size_is) {
  new_outer theirs = {.before = 42};
  attn_struct_write(&new_layout, &of_new, &theirs);
  assert_int_equal(theirs.before, 42);
}

/* ---- The library's own structs, from a program whose headers ended earlier ---- */

typedef struct short_args {
  size_t struct_size;
  const void *q, *k, *v;
  void *o;
} short_args;

typedef struct short_options {
  size_t struct_size;
  const char *kernel, *max_isa;
  int threads;
} short_options;

enum { HEADS = 2, SEQ = 9, DIM = 8, COUNT = HEADS * SEQ * DIM, SHORT_PROBLEM = offsetof(attn_problem, total_q) };

static attn_problem small_problem(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  return problem;
}

/* A problem in the first SHORT_PROBLEM bytes of memory that is 0xff behind them. */
static void init_short(attn_problem *memory) {
  memset(memory, 0xff, sizeof *memory);
  memory->struct_size = SHORT_PROBLEM;
  (attn_problem_init)(memory, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
}

TEST(a_short_problem_is_filled_in_to_its_end) {
  attn_problem memory;
  init_short(&memory);
  assert_int_equal(memory.struct_size, SHORT_PROBLEM);
  assert_int_equal(memory.window_right, -1);
  assert_int_equal(memory.total_q, -1);
  assert_int_equal(memory.score_weight_stride_h, -1);
  test_ok(attn_problem_validate(&memory));
}

TEST(short_structs_give_the_bits_of_whole_ones) {
  attn_problem problem = small_problem(), memory;
  test_data data = test_data_create(&problem, 3), again = test_data_share_inputs(&problem, &data);
  test_ok(test_run(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1)));

  init_short(&memory);
  const short_options options = {sizeof options, "flash_c", NULL, 1};
  const short_args args = {sizeof args, again.args.q, again.args.k, again.args.v, again.args.o};
  test_ok(test_run(&memory, (const attn_args *)(const void *)&args, (const attn_options *)(const void *)&options));
  assert_memory_equal(again.args.o, data.args.o, data.o_bytes);
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
}

/* ---- Structs without a size ---- */

/* A size of 0 means the fields of the first version, as in attr.size of perf_event_open(2). */
TEST(without_a_size_args_and_options_are_those_of_version_0_1) {
  const attn_problem problem = small_problem();
  test_data data = test_data_create(&problem, 3), again = test_data_share_inputs(&problem, &data);
  test_ok(test_run(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1)));
  const attn_options options = {.kernel = "flash_c", .threads = 1};
  const attn_args args = {.q = again.args.q, .k = again.args.k, .v = again.args.v, .o = again.args.o};
  test_ok(test_run(&problem, &args, &options));
  assert_memory_equal(again.args.o, data.args.o, data.o_bytes);
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
}

TEST(only_the_first_fields_are_read_without_a_size) {
  static const attn_struct_layout layout = {
      .name = "new_inner", .maker = "make", .bytes = sizeof(new_inner), .least = 8, .unsized = sizeof(old_inner)};
  const new_inner theirs = {.a = 1, .b = 2};
  new_inner ours;
  test_ok(attn_struct_read(&layout, &theirs, &ours));
  assert_int_equal(ours.struct_size, sizeof ours);
  assert_int_equal(ours.a, 1);
  assert_int_equal(ours.b, 0);
}

TEST(problems_without_a_size_were_not_initialised) {
  const attn_problem none = {.batch = 1};
  const attn_args args = {.q = NULL};
  test_refused(attn_sdpa(&none, &args), ATTN_INVALID_ARGUMENT, "attn_problem.struct_size is 0", "attn_problem_init");
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, 1, 2, 3, 3, 8);
  problem.attention.struct_size = 0;
  static const float w[3 * 8 * 8];
  const attn_mha_weights weights = {.w_qkv = w, .w_o = w};
  attn_mha *layer;
  test_refused(attn_mha_create(&problem, &weights, NULL, &layer), ATTN_INVALID_ARGUMENT, "attn_problem.struct_size is 0");
}
