/* SPDX-License-Identifier: MIT */
/* attn_args: every pointer and length that attn_plan_run() checks before it touches data, and pointers that it does not
 * need. */
#include <math.h>
#include <string.h>

#include "cases/case.h"
#include "data/tensors.h"
#include "tests/support/support.h"

enum { BATCH = 2, HEADS = 4, SEQ_Q = 5, SEQ_K = 7 };

/* Memory for every input. naive_c takes all options. */
typedef struct fixture {
  attn_problem problem;
  attn_args args;
  float q[BATCH * HEADS * SEQ_Q * 8], k[BATCH * 2 * SEQ_K * 8], v[BATCH * 2 * SEQ_K * 6];
  float o[BATCH * HEADS * SEQ_Q * 6], lse[BATCH * HEADS * SEQ_Q];
  float bias[BATCH * HEADS * SEQ_Q * SEQ_K], scores[BATCH * HEADS * SEQ_Q * SEQ_K];
  uint8_t mask[BATCH * HEADS * SEQ_Q * SEQ_K];
  float score_weight[HEADS * 8], slopes[HEADS], sinks[HEADS], scales[1];
  int32_t kv_len[BATCH], q_len[BATCH], row_len[BATCH * SEQ_Q], offsets[BATCH];
  int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], page_table[BATCH];
  int32_t counts[BATCH * 2], blocks[BATCH * 2]; /* one block of queries, one of keys */
  float pages[3 * 2 * 16 * 8];
  float state[1];
} fixture;

static void fixture_init(fixture *f) {
  *f = (fixture){.kv_len = {7, 6}, .q_len = {5, 4}, .offsets = {2, -1}, .cu_q = {0, 3, 8}, .cu_k = {0, 7, 10}};
  for (int i = 0; i < BATCH * SEQ_Q; i++) f->row_len[i] = i % (SEQ_K + 1);
  memset(f->mask, 1, sizeof f->mask);
  test_fill(f->q, COUNT(f->q), 1);
  test_fill(f->k, COUNT(f->k), 2);
  test_fill(f->v, COUNT(f->v), 3);
  attn_problem_init(&f->problem, BATCH, HEADS, 2, SEQ_Q, SEQ_K, 8, 6);
  f->args = ATTN_STRUCT(attn_args, .q = f->q, .k = f->k, .v = f->v, .o = f->o, .lse = f->lse, .bias = f->bias,
                        .mask = f->mask, .scores = f->scores, .score_weight = f->score_weight, .kv_len = f->kv_len,
                        .q_len = f->q_len, .row_len = f->row_len, .cu_seqlens_q = f->cu_q, .cu_seqlens_k = f->cu_k,
                        .offsets = f->offsets, .alibi_slopes = f->slopes, .sinks = f->sinks, .page_table = f->page_table,
                        .state = f->state, .k_scale = f->scales, .v_scale = f->scales, .kv_num_blocks = f->counts,
                        .kv_indices = f->blocks, .full_kv_num_blocks = f->counts, .full_kv_indices = f->blocks, );
}

static const attn_options naive = {.struct_size = sizeof(attn_options), .kernel = "naive_c", .threads = 1};

/* name, change to a fixture, parts of the sentence: field, value, what would be right */
#define ILLEGAL_CHANGES(X)                                                                                              \
  X(q, f->args.q = NULL, "args.q ", "NULL", "queries")                                                                  \
  X(k, f->args.k = NULL, "args.k ", "NULL", "keys")                                                                     \
  X(v, f->args.v = NULL, "args.v ", "NULL", "keys")                                                                     \
  X(o, f->args.o = NULL, "args.o ", "NULL", "queries")                                                                  \
  X(q_unaligned, f->args.q = (const char *)f->q + 2, "args.q ", "aligned", "4 bytes")                                   \
  X(o_unaligned, f->args.o = (char *)f->o + 1, "args.o ", "aligned", "4 bytes")                                         \
  X(lse, (f->problem.uses = ATTN_USE_LSE, f->args.lse = NULL), "args.lse ", "NULL", "ATTN_USE_LSE")                     \
  X(bias, (f->problem.uses = ATTN_USE_BIAS, f->args.bias = NULL), "args.bias ", "NULL", "ATTN_USE_BIAS")                \
  X(mask, (f->problem.uses = ATTN_USE_MASK, f->args.mask = NULL), "args.mask ", "NULL", "ATTN_USE_MASK")                \
  X(scores, (f->problem.score = ATTN_SCORE_PRECOMPUTED, f->args.scores = NULL), "args.scores ", "NULL", "PRECOMPUTED")  \
  X(score_weight,                                                                                                       \
    (f->problem.score = ATTN_SCORE_ADDITIVE, f->problem.uses = ATTN_USE_SCORE_WEIGHT, f->args.score_weight = NULL),     \
    "args.score_weight ", "NULL", "ATTN_USE_SCORE_WEIGHT")                                                              \
  X(kv_len, (f->problem.uses = ATTN_USE_KV_LEN, f->args.kv_len = NULL), "args.kv_len ", "NULL", "ATTN_USE_KV_LEN")      \
  X(q_len, (f->problem.uses = ATTN_USE_Q_LEN, f->args.q_len = NULL), "args.q_len ", "NULL", "ATTN_USE_Q_LEN")           \
  X(row_len, (f->problem.uses = ATTN_USE_ROW_LEN, f->args.row_len = NULL), "args.row_len ", "NULL", "ROW_LEN")          \
  X(offsets, (f->problem.align = ATTN_ALIGN_OFFSET, f->args.offsets = NULL), "args.offsets ", "NULL", "OFFSET")         \
  X(slopes, (f->problem.uses = ATTN_USE_ALIBI, f->args.alibi_slopes = NULL), "args.alibi_slopes ", "NULL", "ALIBI")     \
  X(sinks, (f->problem.uses = ATTN_USE_SINKS, f->args.sinks = NULL), "args.sinks ", "NULL", "ATTN_USE_SINKS")           \
  X(k_scale, (f->problem.uses = ATTN_USE_KV_SCALES, f->args.k_scale = NULL), "args.k_scale ", "NULL", "KV_SCALES")      \
  X(v_scale, (f->problem.uses = ATTN_USE_KV_SCALES, f->args.v_scale = NULL), "args.v_scale ", "NULL", "KV_SCALES")      \
  X(kv_len_big, (f->problem.uses = ATTN_USE_KV_LEN, f->kv_len[1] = 8), "kv_len[1]", "8", "0..7")                        \
  X(kv_len_negative, (f->problem.uses = ATTN_USE_KV_LEN, f->kv_len[0] = -1), "kv_len[0]", "-1", "0..7")                 \
  X(q_len_big, (f->problem.uses = ATTN_USE_Q_LEN, f->q_len[0] = 6), "q_len[0]", "6", "0..5")                            \
  X(row_len_big, (f->problem.uses = ATTN_USE_ROW_LEN, f->row_len[9] = 99), "row_len[9]", "99", "0..7")                  \
  X(cu_q_null, (varlen(f), f->args.cu_seqlens_q = NULL), "args.cu_seqlens_q ", "NULL", "VARLEN")                        \
  X(cu_k_null, (varlen(f), f->args.cu_seqlens_k = NULL), "args.cu_seqlens_k ", "NULL", "VARLEN")                        \
  X(cu_q_negative, (varlen(f), f->cu_q[0] = -1), "cu_seqlens_q[0]", "-1", "at least 0")                                 \
  X(cu_q_decreases, (varlen(f), f->cu_q[2] = 2), "cu_seqlens_q[2]", "2", "not decrease")                                \
  X(cu_k_long, (varlen(f), f->cu_k[1] = 8), "cu_seqlens_k", "8", "longest is 7")                                        \
  X(cu_k_beyond, (varlen(f), f->cu_k[2] = 11), "cu_seqlens_k[2]", "11", "10 tokens")                                    \
  X(cu_q_extreme, (varlen(f), f->cu_q[0] = f->cu_q[1] = 0, f->cu_q[2] = INT32_MAX), "cu_seqlens_q", "2147483647", "5")  \
  X(page_table, (paged(f), f->args.page_table = NULL), "args.page_table ", "NULL", "ATTN_USE_PAGES")                    \
  X(page_table_big, (paged(f), f->page_table[1] = 3), "page_table[1][0]", "3", "0..2")                                  \
  X(page_table_negative, (paged(f), f->page_table[0] = -1), "page_table[0][0]", "-1", "sequence 0")                     \
  X(page_table_kv_len, (paged(f), f->kv_len[1] = 8), "kv_len[1]", "8", "0..7")                                          \
  X(counts, (listed(f), f->args.kv_num_blocks = NULL), "args.kv_num_blocks ", "NULL", "ATTN_USE_KEY_BLOCKS")            \
  X(blocks, (listed(f), f->args.kv_indices = NULL), "args.kv_indices ", "NULL", "ATTN_USE_KEY_BLOCKS")                  \
  X(full_counts, (listed(f), f->args.full_kv_num_blocks = NULL), "args.full_kv_num_blocks ", "NULL", "FULL_KEY")        \
  X(full_blocks, (listed(f), f->args.full_kv_indices = NULL), "args.full_kv_indices ", "NULL", "FULL_KEY")              \
  X(counts_big, (listed(f), f->counts[3] = 2), "kv_num_blocks[1][1][0]", "2", "0..1")                                   \
  X(counts_negative, (listed(f), f->counts[0] = -1), "kv_num_blocks[0][0][0]", "-1", "0..1")                            \
  X(blocks_big, (listed(f), f->counts[2] = 1, f->blocks[2] = 1), "kv_indices[1][0][0][0]", "is 1", "0..0", "1 entries") \
  X(blocks_negative, (listed(f), f->counts[0] = 1, f->blocks[0] = -1), "kv_indices[0][0][0][0]", "is -1", "0..0")

static void varlen(fixture *f) { attn_problem_set_varlen(&f->problem, 8, 10); }

static void paged(fixture *f) {
  attn_problem_set_pages(&f->problem, 16, 3);
  f->args.k = f->args.v = f->pages;
  f->page_table[0] = 2;
}

static void listed(fixture *f) {
  attn_problem_set_key_blocks(&f->problem, 16, 64);
  f->problem.uses |= ATTN_USE_FULL_KEY_BLOCKS;
}

#define ILLEGAL(name, change, ...) \
  static void illegal_##name(fixture *f) { change; }
ILLEGAL_CHANGES(ILLEGAL)

TEST(illegal_args_are_refused_in_words) {
#define ROW(name, change, ...) {#name, illegal_##name, {__VA_ARGS__}},
  static const struct {
    const char *name;
    void (*change)(fixture *);
    const char *parts[4];
  } rows[] = {ILLEGAL_CHANGES(ROW)};
#undef ROW
  static fixture f, before;
  for (size_t i = 0; i < COUNT(rows); i++) {
    fixture_init(&f);
    rows[i].change(&f);
    f.args = bench_used_args(&f.problem, &f.args);
    before = f;
    print_message("  %s\n", rows[i].name);
    test_refused_by_parts(test_run(&f.problem, &f.args, &naive), ATTN_INVALID_ARGUMENT, rows[i].parts);
    print_message("    %s\n", attn_last_error());
    assert_memory_equal(before.o, f.o, sizeof f.o); /* refused before anything is written */
    assert_memory_equal(before.lse, f.lse, sizeof f.lse);
  }
}

TEST(null_args_are_refused) {
  static fixture f;
  fixture_init(&f);
  test_invalid(test_run(&f.problem, NULL, &naive), "args", "NULL");
  test_invalid(attn_plan_run(NULL, &f.args, NULL, 0), "plan", "NULL");
}

/* A pointer that the problem does not use is refused: otherwise a mask, bias or length would be ignored silently. */
TEST(unannounced_pointers_are_refused) {
  static fixture f;
  fixture_init(&f);
#define ROW(field, use) \
  { #field, offsetof(attn_args, field), use }
  static const struct {
    const char *field;
    size_t at; /* offset in attn_args */
    const char *use;
  } rows[] = {ROW(lse, "ATTN_USE_LSE"),
              ROW(bias, "ATTN_USE_BIAS"),
              ROW(mask, "ATTN_USE_MASK"),
              ROW(scores, "ATTN_SCORE_PRECOMPUTED"),
              ROW(score_weight, "ATTN_USE_SCORE_WEIGHT"),
              ROW(kv_len, "ATTN_USE_KV_LEN"),
              ROW(q_len, "ATTN_USE_Q_LEN"),
              ROW(row_len, "ATTN_USE_ROW_LEN"),
              ROW(cu_seqlens_q, "ATTN_USE_VARLEN"),
              ROW(cu_seqlens_k, "ATTN_USE_VARLEN"),
              ROW(offsets, "ATTN_ALIGN_OFFSET"),
              ROW(alibi_slopes, "ATTN_USE_ALIBI"),
              ROW(sinks, "ATTN_USE_SINKS"),
              ROW(page_table, "ATTN_USE_PAGES"),
              ROW(state, "ATTN_USE_STATE"),
              ROW(k_scale, "ATTN_USE_KV_SCALES"),
              ROW(v_scale, "ATTN_USE_KV_SCALES"),
              ROW(kv_num_blocks, "ATTN_USE_KEY_BLOCKS"),
              ROW(kv_indices, "ATTN_USE_KEY_BLOCKS"),
              ROW(full_kv_num_blocks, "ATTN_USE_FULL_KEY_BLOCKS"),
              ROW(full_kv_indices, "ATTN_USE_FULL_KEY_BLOCKS")};
#undef ROW
  for (size_t i = 0; i < COUNT(rows); i++) {
    attn_args args = ATTN_STRUCT(attn_args, .q = f.q, .k = f.k, .v = f.v, .o = f.o);
    memcpy((char *)&args + rows[i].at, (const char *)&f.args + rows[i].at, sizeof(void *));
    test_invalid(test_run(&f.problem, &args, &naive), rows[i].field, rows[i].use, "NULL");
  }
}

/* Pointers that the problem does not use may be NULL. */
TEST(unannounced_pointers_are_not_needed) {
  static fixture f;
  fixture_init(&f);
  attn_args bare = ATTN_STRUCT(attn_args, .q = f.q, .k = f.k, .v = f.v, .o = f.o);
  test_ok(test_run(&f.problem, &bare, &naive));
  f.problem.score = ATTN_SCORE_PRECOMPUTED;
  attn_args precomputed = ATTN_STRUCT(attn_args, .scores = f.scores, .v = f.v, .o = f.o);
  test_ok(test_run(&f.problem, &precomputed, &naive));
}

/* With packed queries keys in pages take their lengths from kv_len, not from cu_seqlens_k. */
TEST(pages_have_no_packed_keys) {
  static fixture f;
  fixture_init(&f);
  varlen(&f);
  paged(&f);
  attn_args args = bench_used_args(&f.problem, &f.args);
  test_ok(test_run(&f.problem, &args, &naive));
  args.cu_seqlens_k = f.cu_k;
  test_invalid(test_run(&f.problem, &args, &naive), "args.cu_seqlens_k ", "without ATTN_USE_PAGES");
}

/* ---- Page tables against a model ---- */

enum { PAGE = 16, TABLE_PAGES = 3, TABLE_KEYS = 112, TABLE = TABLE_KEYS / PAGE };

/* Whether some query of a sequence of `keys` keys sees key j: of the first keys that stay, or of the window. */
static bool is_needed(const attn_problem *p, int64_t keys, int64_t j, bool early) {
  const bool piece = early == (p->window_left >= 0 && j < p->window_first);
  for (int64_t i = 0; piece && i < SEQ_Q; i++) {
    const int64_t position = i + keys - SEQ_Q;
    if (j < keys && j <= position && (early || p->window_left < 0 || j >= position - p->window_left)) return true;
  }
  return false;
}

/* Every needed key has a page. With a window, no later one takes the place of the first needed key of its piece, nor lies in
 * a page of first keys that stay. */
static bool model_takes(const attn_problem *p, int64_t keys, const int32_t *table) {
  int64_t kept = 0;
  for (int early = 1; early >= 0; early--) {
    int64_t first = -1;
    for (int64_t j = 0; j < keys; j++) {
      if (!is_needed(p, keys, j, early)) continue;
      const int32_t page = table[j / PAGE];
      if (page < 0 || page >= TABLE_PAGES) return false;
      for (int64_t block = 0; !early && block < kept && block < j / PAGE; block++)
        if (table[block] == page) return false;
      if (early) kept = j / PAGE + 1;
      if (first < 0) first = j;
      if (p->window_left >= 0 && j > first && j % PAGE == first % PAGE && table[first / PAGE] == page) return false;
    }
  }
  return true;
}

TEST(page_tables_are_taken_as_a_model_does) {
  static fixture f;
  int taken = 0;
  fixture_init(&f);
  f.problem.seq_k = TABLE_KEYS;
  attn_problem_set_causal(&f.problem, ATTN_ALIGN_BOTTOM_RIGHT);
  paged(&f);
  for (uint64_t trial = 0, seed = 7; trial < 3000; trial++) {
    int32_t kv_len[BATCH], table[BATCH][TABLE];
    f.problem.window_left = (int64_t)(bench_random(&seed) % 40) - 1;
    f.problem.window_first = bench_random(&seed) % 3 ? 0 : (int64_t)(bench_random(&seed) % 40);
    for (int b = 0; b < BATCH; b++) {
      const int32_t turn = (int32_t)(bench_random(&seed) % 6), ring = 1 + (int32_t)(bench_random(&seed) % 3);
      kv_len[b] = (int32_t)(bench_random(&seed) % (bench_random(&seed) % 2 ? TABLE_KEYS + 1 : 3 * PAGE));
      for (int at = 0; at < TABLE; at++) table[b][at] = (turn + at % ring) % TABLE_PAGES;
      for (int n = (int)(bench_random(&seed) % 3); n > 0; n--)
        table[b][bench_random(&seed) % TABLE] = (int32_t)(bench_random(&seed) % 5) - 1;
    }
    attn_args args = bench_used_args(&f.problem, &f.args);
    args.kv_len = kv_len, args.page_table = table[0];
    const attn_status status = test_run(&f.problem, &args, &naive);
    const bool fine = model_takes(&f.problem, kv_len[0], table[0]) && model_takes(&f.problem, kv_len[1], table[1]);
    if ((status == ATTN_OK) != fine)
      fail_msg("trial %d: %s; window %d, first %d, kv_len %d %d", (int)trial, fine ? attn_last_error() : "taken",
               (int)f.problem.window_left, (int)f.problem.window_first, kv_len[0], kv_len[1]);
    if (!fine) assert_int_equal(status, ATTN_INVALID_ARGUMENT);
    taken += fine;
  }
  assert_true(taken > 600 && taken < 2400);
}

/* A ring that is one token short of the window and the new tokens would drop a key that a query still sees. */
TEST(rings_hold_a_window_and_all_new_tokens) {
  static fixture f;
  fixture_init(&f);
  f.problem.seq_k = 112;
  attn_problem_set_causal(&f.problem, ATTN_ALIGN_BOTTOM_RIGHT);
  paged(&f);
  static const int32_t kv_len[] = {100, 90}, table[BATCH][7] = {{0, 1, 0, 1, 0, 1, 0}, {1, 2, 1, 2, 1, 2, 1}};
  attn_args args = bench_used_args(&f.problem, &f.args);
  args.kv_len = kv_len;
  args.page_table = table[0];
  for (f.problem.window_left = 0; f.problem.window_left <= 32 - SEQ_Q; f.problem.window_left++)
    test_ok(test_run(&f.problem, &args, &naive));
  test_invalid(test_run(&f.problem, &args, &naive), "page_table[0][6] is 0 again", "holds 32 tokens", "keys 67..99",
               "at least 33");
  f.problem.window_left = 16, f.problem.window_first = 1;
  test_invalid(test_run(&f.problem, &args, &naive), "page_table[0][4] is 0, the page of entry 0", "window_first keeps");
  f.problem.window_first = 0;
  f.problem.window_left = -1; /* without a window pages may come twice */
  test_ok(test_run(&f.problem, &args, &naive));
}

/* ---- Empty tensors, for every kernel ---- */

static void empty_tensors(const char *kernel) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  const attn_args nothing = {.struct_size = sizeof(attn_args)};
  attn_problem p;

  attn_problem_init(&p, 0, 4, 2, 5, 7, 8, 6);
  test_fit_types(kernel, &p);
  test_ok(test_run(&p, &nothing, &options));

  attn_problem_init(&p, 2, 4, 2, 0, 7, 8, 6);
  test_fit_types(kernel, &p);
  test_ok(test_run(&p, &nothing, &options));
  float k[2 * 2 * 7 * 8] = {0}, v[2 * 2 * 7 * 6] = {0}, o[8 * 5 * 6], lse[8 * 5];
  test_ok(test_run(&p, &ATTN_STRUCT(attn_args, .k = k, .v = v), &options));

  attn_problem_init(&p, 2, 4, 2, 5, 0, 8, 6);
  p.uses = ATTN_USE_LSE;
  test_fit_types(kernel, &p);
  if (test_library_refuses(kernel, &p)) return;
  memset(o, 0xff, sizeof o);
  memset(lse, 0xff, sizeof lse);
  test_ok(test_run(&p, &ATTN_STRUCT(attn_args, .o = o, .lse = lse), &options));
  for (size_t i = 0; i < sizeof o / (p.dtype_o == ATTN_BF16 ? 2 : 1); i++)
    assert_int_equal(((const unsigned char *)o)[i], 0); /* and not -0 */
  for (size_t i = 0; i < COUNT(lse); i++) assert_true(lse[i] == -INFINITY);
}

TEST(null_pointers_of_empty_tensors_are_fine) { test_each_kernel(empty_tensors); }
