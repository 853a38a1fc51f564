/* SPDX-License-Identifier: MIT */
/* Allocations that fail. Sub-commands of attnbench, in a child process each, and calls of the library run again and again,
 * and each time another allocation of our own code fails (by --wrap; those of other libraries do not fail). There must be no
 * crash, no leak (counted for the library, and for commands without a fault; with one, found by the leak sanitizer in
 * sanitized builds) and a sentence about memory.
 *
 *     fault_memory [STEP [LIBATTN]]    fails every STEP-th allocation of the commands (default 1: all of them); LIBATTN: the
 *                                      shared library, for `compare --paired` */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/extend.h"
#include "attn/nn.h"
#include "attn/product.h"
#include "commands/commands.h"
#include "data/npy.h"
#include "machine/environment.h"

/* ---- The allocator ---------------------------------------------------------------------------------------------------- */

/* Shared with the child. */
typedef struct account {
  _Atomic int64_t calls, live, fails_at; /* fails_at: this call fails; 0 = none */
  _Atomic bool failed;
} account;
static account *memory;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);

static bool fails(void) {
  if (!memory || ++memory->calls != memory->fails_at) return false;
  memory->failed = true;
  return true;
}
static void *count(void *block) {
  if (memory && block) memory->live++;
  return block;
}

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : count(__real_malloc(bytes)); }
void *__wrap_calloc(size_t number, size_t bytes) { return fails() ? NULL : count(__real_calloc(number, bytes)); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : count(__real_aligned_alloc(alignment, bytes));
}
char *__wrap_strdup(const char *text) { return fails() ? NULL : count(__real_strdup(text)); }
void *__wrap_realloc(void *old, size_t bytes) {
  if (fails()) return NULL;
  void *block = __real_realloc(old, bytes);
  return old ? block : count(block);
}
void __wrap_free(void *block) {
  if (memory && block) memory->live--;
  __real_free(block);
}

/* ---- Commands, each in a child ---------------------------------------------------------------------------------------- */

enum { ARGUMENTS = 20, SAID = 1 << 16 };

/* A word's leading @ stands for the temporary folder, % for the shared library. */
static const char *const commands[][ARGUMENTS] = {
    {"list", "kernels"},
    {"list", "cases", "-p", "quick"},
    {"explain", "-a", "seq=16", "-a", "heads=1", "-a", "head_dim=8"},
    {"check", "-q", "-k", "flash_c,auto", "-a", "seq=9", "-a", "heads=1", "-a", "head_dim=8", "-a", "causal=top-left"},
    {"check", "-q", "-k", "flash_c", "-a", "seq=5", "-a", "heads=2", "-a", "head_dim=8", "-a", "layer=block"},
    {"run", "-q", "-k", "flash_c,naive_c", "-a", "seq=9", "-a", "heads=1", "-a", "head_dim=8", "--rounds", "6",
     "--case-budget", "0.01", "-o", "@/out", "--overwrite"},
    {"run", "-q", "-k", "flash_c,naive_c", "-a", "seq=9", "-a", "heads=1", "-a", "head_dim=8", "--rounds", "6",
     "--case-budget", "0.01", "-o", "@/kept", "--resume"},
    {"merge", "-o", "@/merged", "@/kept", "@/kept", "--overwrite"},
    {"run", "-n", "--preset", "limits"},
    {"eval", "--q", "@/x.npy", "--k", "@/x.npy", "--v", "@/x.npy", "-k", "flash_c", "--save-o", "@/o.npy"},
    {"compare", "@/a", "@/a", "@/b", "--by", "kernel,seq", "--json", "@/a.json", "--csv", "@/a.csv", "--markdown", "@/a.md"},
    {"compare", "--paired", "%", "%", "-q", "-k", "flash_c", "-a", "seq=9", "-a", "heads=1", "-a", "head_dim=8", "--rounds",
     "6"},
    {"env", "--json", "@/env.json"},
};
/* The results for `compare`. */
static const char *const results[][ARGUMENTS] = {{"run", "-q", "-k", "flash_c,naive_c", "-a", "seq=9", "-a", "heads=1", "-a",
                                                  "head_dim=8", "--rounds", "6", "--case-budget", "0.01", "-o", "@/a"},
                                                 {"run", "-q", "-k", "flash_c", "-a", "seq=9", "-a", "heads=1", "-a",
                                                  "head_dim=8", "--rounds", "6", "--case-budget", "0.01", "-o", "@/b"}};

static char folder[] = "/tmp/fault_memory_XXXXXX";
static const char *library; /* NULL: none was given */

static int run_command(const char *const *words) {
  char *argv[ARGUMENTS + 1] = {"attnbench"};
  static char text[ARGUMENTS][1000];
  int argc = 1;
  for (; argc < ARGUMENTS && words[argc - 1]; argc++) {
    const char *word = words[argc - 1];
    const char *first = word[0] == '@' ? folder : word[0] == '%' ? library : NULL;
    snprintf(text[argc], sizeof *text, "%s%s", first ? first : "", word + (first != NULL));
    argv[argc] = text[argc];
  }
  return bench_main(argc, argv);
}

typedef struct outcome {
  int status;      /* from waitpid */
  char said[SAID]; /* on stdout and stderr */
} outcome;

/* Runs it `times` times. memory->live: how many more blocks live after the last time than after the first; it may be
 * negative where getline() has allocated a block that was freed. */
static void run_in_child(const char *const *words, int64_t fails_at, int times, outcome *o) {
  const int file = memfd_create("said", 0);
  *memory = (account){.fails_at = fails_at};
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    (void)dup2(file, STDOUT_FILENO);
    (void)dup2(file, STDERR_FILENO);
    (void)alarm(120);
    const int code = run_command(words);
    const int64_t first = memory->live;
    for (int i = 1; i < times; i++) (void)run_command(words);
    memory->live -= first;
    memory->fails_at = 0;
    exit(code);
  }
  if (child < 0 || waitpid(child, &o->status, 0) != child) exit(5);
  const ssize_t bytes = pread(file, o->said, sizeof o->said - 1, 0);
  o->said[bytes > 0 ? bytes : 0] = 0;
  (void)close(file);
}

/* Names the fault of the outcome; NULL if it has none. */
static const char *complaint(const outcome *o) {
  const int code = WEXITSTATUS(o->status);
  if (WIFSIGNALED(o->status)) return "a crash";
  if (strstr(o->said, "Sanitizer")) return "a sanitizer complains";
  if (strstr(o->said, "inf %") || strstr(o->said, "nan")) return "results that are no numbers";
  if (code && !strstr(o->said, "memory")) return "a failure without a word about memory";
  return NULL;
}

static int check_command(const char *const *words, int64_t step) {
  static outcome o;
  run_in_child(words, 0, 2, &o);
  const int64_t kept = memory->live;
  run_in_child(words, 0, 1, &o);
  const int64_t total = memory->calls;
  int wrong = 0, refused = 0, tried = 0;
  if (o.status || kept > 0) {
    printf("WRONG   %s: without a fault it fails, or keeps blocks (%lld):\n%s\n", words[0], (long long)kept, o.said);
    return 1;
  }
  for (int64_t n = 1; n <= total; n += n < 12 ? 1 : step) {
    run_in_child(words, n, 1, &o);
    if (!memory->failed) break;
    tried++;
    refused += WEXITSTATUS(o.status) != 0;
    const char *what = complaint(&o);
    if (!what) continue;
    printf("WRONG   %s %s: allocation %lld of %lld: %s:\n%s\n", words[0], words[1], (long long)n, (long long)total, what,
           o.said);
    if (++wrong >= 3) break;
  }
  printf("%-7s %-8s %d of %lld allocations failed in turn, %d ended the command\n", wrong ? "WRONG" : "ok", words[0], tried,
         (long long)total, refused);
  return wrong;
}

/* ---- The library: a status, a sentence, nothing kept --------------------------------------------------------------- */

enum { BATCH = 1, HEADS = 2, TOKENS = 5, DIM = 8, WIDTH = HEADS * DIM };
static float x[TOKENS * WIDTH], y[TOKENS * WIDTH], weights[4 * WIDTH * WIDTH], p[HEADS * TOKENS * TOKENS];

static attn_problem small_problem(void) {
  attn_problem problem;
  attn_problem_init(&problem, BATCH, HEADS, HEADS, TOKENS, TOKENS, DIM, DIM);
  return problem;
}

static attn_status call_sdpa(void) {
  const attn_problem problem = small_problem();
  return attn_sdpa(&problem, &ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x, .o = y));
}

static attn_status call_named_plan(void) {
  const attn_problem problem = small_problem();
  attn_plan *plan;
  const attn_status status = attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = "naive_c"), &plan);
  attn_plan_destroy(plan);
  return status;
}

static attn_status call_weights(void) {
  const attn_problem problem = small_problem();
  return attn_weights(&problem, &ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x), NULL, p);
}

static attn_status call_product(void) {
  attn_product *product;
  const attn_product_weights w = ATTN_STRUCT(attn_product_weights, .weight = weights, .depth = WIDTH, .columns = WIDTH,
                                             .stride_depth = WIDTH, .stride_column = 1);
  const attn_status status = attn_product_create(&w, NULL, &product);
  attn_product_destroy(product);
  return status;
}

static attn_mha_weights layer_weights(void) { return ATTN_STRUCT(attn_mha_weights, .w_qkv = weights, .w_o = weights); }

static attn_status call_block(void) {
  attn_block_config config;
  attn_block *block;
  attn_decoder_block_init(&config, BATCH, HEADS, TOKENS, TOKENS, WIDTH, WIDTH, WIDTH);
  config.self_weights = config.cross_weights = layer_weights();
  config.feed_forward.first.weight = config.feed_forward.second.weight = config.feed_forward.gate.weight = weights;
  attn_block *other = NULL;
  attn_status status = attn_block_create(&config, NULL, &block);
  if (status == ATTN_OK) status = attn_block_reshape(block, &config.self, &config.cross, &other);
  attn_block_destroy(block);
  attn_block_destroy(other);
  return status;
}

static attn_status call_cache(void) {
  const attn_kv_cache_shape shape = ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS,
                                                .dim_qk = DIM, .dim_v = DIM, .capacity = TOKENS);
  attn_kv_cache *cache;
  attn_status status = attn_kv_cache_create(&shape, NULL, &cache);
  if (status == ATTN_OK) status = attn_kv_cache_step(cache, 2, NULL, x, x, x, y); /* plans anew */
  attn_kv_cache_destroy(cache);
  return status;
}

/* The second step goes over a page's end. If it fails, it leaves no page behind, and the cache goes on. */
static attn_status call_channels(void) {
  enum { PAGE = 16, STEP = 12, PAGES = 2 };
  const attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS, .dim_qk = DIM, .dim_v = DIM,
                  .capacity = PAGES * PAGE, .page_tokens = PAGE, .dtype = ATTN_I8, .float_tokens = true, .scales = true,
                  .key_channels = true);
  static float o[STEP * WIDTH];
  attn_kv_cache *cache;
  attn_status status = attn_kv_cache_create(&shape, NULL, &cache);
  if (status == ATTN_OK) status = attn_kv_cache_step(cache, STEP, NULL, weights, weights, weights, o);
  if (status == ATTN_OK) {
    status = attn_kv_cache_step(cache, STEP, NULL, weights, weights, weights, o);
    const bool empty = attn_kv_pool_free_pages(attn_kv_cache_pool(cache)) == PAGES;
    if (status != ATTN_OK && (!empty || attn_kv_cache_step(cache, STEP, NULL, weights, weights, weights, o) != ATTN_OK))
      status = attn_fail(ATTN_INVALID_ARGUMENT, "%s", empty ? "no step after it succeeds" : "a page is lost");
  }
  attn_kv_cache_destroy(cache);
  return status;
}

static attn_status call_additive(void) {
  const attn_additive_config config =
      ATTN_STRUCT(attn_additive_config, .batch = BATCH, .seq_q = TOKENS, .seq_k = TOKENS, .width_q = WIDTH, .width_k = WIDTH,
                  .hidden = DIM, .dim_v = DIM, .query.weight = weights, .key.weight = weights, .score_weight = weights);
  attn_additive *layer, *other = NULL;
  attn_status status = attn_additive_create(&config, NULL, &layer);
  if (status == ATTN_OK) status = attn_additive_reshape(layer, 1, 1, 1, &other);
  attn_additive_destroy(layer);
  attn_additive_destroy(other);
  return status;
}

static attn_status call_synthesizer(void) {
  static const attn_linear maps[HEADS] = {{.weight = weights}, {.weight = weights}};
  const attn_synthesizer_config config =
      ATTN_STRUCT(attn_synthesizer_config, .batch = BATCH, .seq = TOKENS, .length = TOKENS, .width = WIDTH, .heads = HEADS,
                  .dim_v = DIM, .hidden = DIM, .first = maps, .second = maps, .value = maps[0], .output = maps[0]);
  attn_synthesizer *layer, *other = NULL;
  attn_status status = attn_synthesizer_create(&config, NULL, &layer);
  if (status == ATTN_OK) status = attn_synthesizer_reshape(layer, 1, 1, &other);
  attn_synthesizer_destroy(layer);
  attn_synthesizer_destroy(other);
  return status;
}

static const struct {
  const char *name;
  attn_status (*run)(void);
} calls[] = {{"attn_sdpa", call_sdpa},
             {"attn_plan_create", call_named_plan},
             {"attn_weights", call_weights},
             {"attn_product_create", call_product},
             {"attn_block_create", call_block},
             {"attn_kv_cache_step", call_cache},
             {"attn_kv_cache_step, key_channels", call_channels},
             {"attn_additive_create", call_additive},
             {"attn_synthesizer_create", call_synthesizer}};

static int check_call(int which) {
  attn_status status = ATTN_OK;
  int64_t n = 0;
  do {
    (void)attn_plan_create(NULL, NULL, &(attn_plan *){NULL}); /* its sentence is another one */
    *memory = (account){.fails_at = ++n};
    status = calls[which].run();
    const bool right =
        memory->failed ? status == ATTN_OUT_OF_MEMORY && strstr(attn_last_error(), "memory") : status == ATTN_OK;
    if (!right || memory->live) {
      printf("WRONG   %s: allocation %lld: %s, \"%s\", %lld blocks kept\n", calls[which].name, (long long)n,
             attn_status_name(status), attn_last_error(), (long long)memory->live);
      return 1;
    }
  } while (memory->failed);
  printf("ok      %s: %lld allocations failed in turn\n", calls[which].name, (long long)n - 1);
  return n == 1; /* wrong: the call allocates nothing */
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

/* Nothing is measured on emulated instructions, nor compared then. */
static bool can_run(const char *const *words) {
  if (!strcmp(words[1], "--paired") && !library) return false;
  return !bench_emulation() || (strcmp(words[0], "run") != 0 && strcmp(words[0], "compare") != 0);
}

static bool write_tensor(void) {
  char path[100];
  snprintf(path, sizeof path, "%s/x.npy", folder);
  const npy_array array = {.type = NPY_F32, .dims = 3, .shape = {HEADS, TOKENS, DIM}, .count = TOKENS * WIDTH, .data = x};
  return npy_write(path, &array);
}

int main(int argc, char **argv) {
  const int64_t step = argc > 1 ? atoll(argv[1]) : 1;
  library = argc > 2 ? argv[2] : NULL;
  int wrong = 0;
  for (int i = 0; i < TOKENS * WIDTH; i++) x[i] = (float)(i % 7) - 3;
  if (step < 1 || !mkdtemp(folder) || !write_tensor()) return 5;
  memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 5;
  static outcome measured;
  for (int i = 0; i < 2 && !bench_emulation(); i++) run_in_child(results[i], 0, 1, &measured);
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (can_run(commands[i])) wrong += check_command(commands[i], step);
  for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++)
    wrong += check_call(i); /* after the commands, because a child process must be started before there are threads */
  return wrong ? 1 : 0;
}
