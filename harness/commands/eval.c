/* SPDX-License-Identifier: MIT */
/* attnbench eval: kernels on the user's own tensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugins.h"
#include "cases/cases.h"
#include "commands/commands.h"
#include "eval/eval.h"
#include "machine/affinity.h"
#include "machine/environment.h"

static eval_options problem;
static eval_task task;
static bench_filter filter;
static const char *threads, *cpus, *case_place;

#define MOST_KEYS (INT64_C(1) << 40)

static const cli_option options[] = {
    CLI_HEADING("Tensors (.npy files, or FILE.npz:NAME.npy in an uncompressed archive)"),
    {CLI_STRING, 0, "q", "FILE", "queries [batch, heads, seq, dim]; [heads, seq, dim] and [seq, dim] will do",
     &problem.path[EVAL_Q]},
    {CLI_STRING, 0, "k", "FILE", "keys [batch, heads_kv, seq, dim]; heads_kv divides heads", &problem.path[EVAL_K]},
    {CLI_STRING, 0, "v", "FILE", "values [batch, heads_kv, seq, dim_v]", &problem.path[EVAL_V]},
    {CLI_STRING, 0, "k-scale", "FILE",
     "factors of the keys, for int8 above all; broadcasts to [batch, heads_kv, seq_k] as in NumPy",
     &problem.path[EVAL_K_SCALE]},
    {CLI_STRING, 0, "v-scale", "FILE", "factors of the values, likewise", &problem.path[EVAL_V_SCALE]},
    {CLI_STRING, 0, "case", "INDEX:NAME",
     "the arrays and options of a case of libattn.conformance, such as index.json:causal/5x5; other options replace them",
     &case_place},
    {CLI_STRING, 0, "layout", "WORD", "bhsd, or bshd for [batch, seq, heads, dim] (default bhsd)", &problem.layout},
    {CLI_STRING, 0, "dtype", "TYPE",
     "what the kernels get of q, k, v and give as o: f32, f16 or bf16; uint16 files hold bf16 (default: the files' own; "
     "f64 becomes f32, uint16 needs this option); k and v of 8 bits stay",
     &problem.dtype},
    {CLI_STRING, 0, "kv-format", "TYPE",
     "what uint8 files of k and v hold: e4m3 or e5m2; q8_0 or q4_0, ggml's blocks [..., seq, blocks, 34 or 18]",
     &problem.kv_format},
    CLI_HEADING("Scores"),
    {CLI_STRING, 0, "score", "WORD", "dot, additive, gaussian or precomputed (default dot; precomputed with --scores)",
     &problem.score},
    {CLI_REAL, 0, "scale", "X", "factor of dot scores (default 1/sqrt(dim))", &problem.scale},
    {CLI_REAL, 0, "softcap", "X", "scores become X tanh(score / X); 0 = off (default 0)", &problem.softcap},
    {CLI_STRING, 0, "scores", "FILE", "precomputed scores, broadcast like --bias; --q and --k are not needed",
     &problem.path[EVAL_SCORES]},
    {CLI_STRING, 0, "score-weight", "FILE", "[dim] or [heads, dim], of additive and gaussian scores",
     &problem.path[EVAL_SCORE_WEIGHT]},
    {CLI_STRING, 0, "bias", "FILE",
     "added to the scores; broadcasts to [batch, heads, seq_q, seq_k] as in NumPy; -inf masks", &problem.path[EVAL_BIAS]},
    {CLI_STRING, 0, "alibi", "FILE", "[heads] slopes: minus slope times distance is added to the scores",
     &problem.path[EVAL_ALIBI]},
    {CLI_STRING, 0, "sinks", "FILE", "[heads] one more logit in each row's denominator", &problem.path[EVAL_SINKS]},
    CLI_HEADING("Which keys a query sees"),
    {CLI_STRING, 0, "mask", "FILE", "bool or uint8, 1 = seen; broadcasts like --bias", &problem.path[EVAL_MASK]},
    {CLI_STRING, 0, "kv-len", "FILE", "[batch] keys of each sequence, or [batch, seq_q] of each query; int32 or int64",
     &problem.path[EVAL_KV_LEN]},
    {CLI_STRING, 0, "q-len", "FILE", "[batch] queries of each sequence; rows beyond give 0", &problem.path[EVAL_Q_LEN]},
    {CLI_STRING, 0, "causal", "WORD", "none, top-left, bottom-right or offset (default none)", &problem.causal},
    {CLI_STRING, 0, "offset", "N|FILE",
     "key position of query 0, for causal, windows and ALiBi; FILE is [batch] (default 0)", &problem.path[EVAL_OFFSET]},
    {CLI_INT, 0, "window-left", "N", "keys seen to the left of a query's own; -1 = all (default -1)",
     CLI_WITHIN(&problem.window_left, -1, MOST_KEYS)},
    {CLI_INT, 0, "window-right", "N", "keys seen to the right; -1 = all (default -1)",
     CLI_WITHIN(&problem.window_right, -1, MOST_KEYS)},
    {CLI_STRING, 0, "kv-num-blocks", "FILE",
     "how many blocks of keys each block of queries visits: int32 or int64 that broadcast to [batch, heads_kv, blocks of "
     "queries]",
     &problem.path[EVAL_KV_NUM_BLOCKS]},
    {CLI_STRING, 0, "kv-indices", "FILE", "which ones: [batch, heads_kv, blocks of queries, blocks of keys]",
     &problem.path[EVAL_KV_INDICES]},
    {CLI_STRING, 0, "full-kv-num-blocks", "FILE", "likewise of blocks in which --mask does not count",
     &problem.path[EVAL_FULL_KV_NUM_BLOCKS]},
    {CLI_STRING, 0, "full-kv-indices", "FILE", "which ones", &problem.path[EVAL_FULL_KV_INDICES]},
    {CLI_INT, 0, "block-queries", "N", "queries that share a list, a multiple of 16 (default 128)",
     CLI_WITHIN(&problem.block_queries, 16, MOST_KEYS)},
    {CLI_INT, 0, "block-keys", "N", "keys of a block, a multiple of 64 (default 128)",
     CLI_WITHIN(&problem.block_keys, 64, MOST_KEYS)},
    {CLI_STRING, 0, "cu-seqlens-q", "FILE", "[batch + 1] where sequences begin; then q is packed: [tokens, heads, dim]",
     &problem.path[EVAL_CU_SEQLENS_Q]},
    {CLI_STRING, 0, "cu-seqlens-k", "FILE", "likewise for k and v", &problem.path[EVAL_CU_SEQLENS_K]},
    CLI_HEADING("What to run"),
    {CLI_LIST, 'k', "kernel", "NAME", "a kernel, a glob, !GLOB to leave out, auto, or all; repeatable (default all)",
     &filter.kernels},
    BENCH_LOAD_OPTION(&filter.load),
    {CLI_STRING, 't', "threads", "N", "threads of the kernels; all = every CPU allowed (default 1)", &threads},
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &cpus},
    {CLI_FLAG, 0, "time", NULL, "time every kernel that passes", &task.time},
    {CLI_DURATION, 0, "budget", "TIME", "of the timing: 10s, 2m (default 10s)", &task.budget_s},
    CLI_HEADING("Output"),
    {CLI_STRING, 0, "expect", "FILE", "someone else's o: must be within the same error limits; f64 is best",
     &problem.path[EVAL_EXPECT]},
    {CLI_STRING, 0, "expect-lse", "FILE", "someone else's log-sum-exp [batch, heads, seq]", &problem.path[EVAL_EXPECT_LSE]},
    {CLI_STRING, 0, "save-o", "FILE", "o of the first kernel that ran, laid out like q", &task.save[0]},
    {CLI_STRING, 0, "save-lse", "FILE", "its log-sum-exp [batch, heads, seq], float32", &task.save[1]},
    CLI_END,
};

static const cli_command command = {
    .name = "eval",
    .usage = "--q FILE --k FILE --v FILE [options]",
    .summary =
        "Runs attention on tensors from .npy files and checks every kernel against a float64 oracle: one row per kernel. "
        "Exit code 0 only if all pass.",
    .options = options,
    .epilogue =
        "Example:\n"
        "  numpy.save(\"q.npy\", q.numpy())   # k and v likewise; float32, float16 or float64\n"
        "  attnbench eval --q q.npy --k k.npy --v v.npy --causal top-left --time\n"};

static int run_eval(const bench_selection *selection) {
  eval_input input;
  const int refused = eval_check_outputs(&problem, &task);
  if (refused) return refused;
  if (!eval_load(&problem, &input)) return cli_fail(input.exit_code, "eval", "%s", input.error);
  const int code = eval_run(&task, &input, selection);
  eval_unload(&input);
  return code;
}

static bool parse(int argc, char **argv, int *code) {
  problem = (eval_options){.layout = "bhsd",
                           .causal = "none",
                           .scale = NAN,
                           .window_left = -1,
                           .window_right = -1,
                           .block_queries = 128,
                           .block_keys = 128};
  task = (eval_task){.budget_s = 10};
  filter = (bench_filter){.kernels.count = 0};
  threads = "1";
  cpus = case_place = NULL;
  return cli_parse(&command, argc, argv, code);
}

/* Again, with the options of the case before those that are given. */
static bool parse_with_case(int argc, char **argv, int *code) {
  static eval_words words;
  char error[1600];
  if (!eval_case_words(case_place, &words, error, sizeof error)) {
    *code = cli_usage_error("eval", "%s", error);
    return false;
  }
  char **all = calloc((size_t)(argc + words.count) + 1, sizeof *all);
  if (!all) {
    *code = cli_fail(BENCH_EXIT_INTERNAL, "eval", "no memory for %d options", argc + words.count);
    return false;
  }
  all[0] = argv[0];
  memcpy(all + 1, words.word, (size_t)words.count * sizeof *all);
  memcpy(all + 1 + words.count, argv + 1, (size_t)(argc - 1) * sizeof *all);
  const bool fine = parse(argc + words.count, all, code);
  free(all);
  return fine;
}

int bench_eval_main(int argc, char **argv) {
  bench_selection selection;
  int64_t count = bench_cpu_count();
  int code;
  if (!parse(argc, argv, &code) || (case_place && !parse_with_case(argc, argv, &code))) return code;
  for (int i = 0; i < filter.kernels.count; i++)
    if (!strcmp(filter.kernels.item[i], "all")) filter.kernels.item[i] = "*";
  if ((code = bench_select(&filter, "eval", &selection)) != 0) return code;
  if (cpus && (code = bench_pin_cpus("eval", cpus)) != 0) return code;
  if (strcmp(threads, "all") && (!cli_read_int(threads, &count) || count < 1 || count > CLI_MOST_THREADS))
    return cli_usage_error("eval", "--threads '%s': should be 1 to %d, or all", threads, CLI_MOST_THREADS);
  if (task.time && bench_refuses_to_time("eval --time")) return BENCH_EXIT_UNFIT;
  task.threads = (int)count;
  for (int i = 0; i < EVAL_OUTPUTS; i++)
    if (task.save[i]) problem.uses |= eval_outputs[i].use;
  return run_eval(&selection);
}
