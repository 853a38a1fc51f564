/* SPDX-License-Identifier: MIT */
/* Generates text with a model in a folder as transformers saves it: Llama, Mistral, Qwen2, Qwen3, Gemma 2.
 *
 *     llm FOLDER [options] PROMPT...      a prompt is its tokens: 1,5,17. Prints the new tokens of each, a line a prompt.
 *
 * --prompts FILE         prompts from a file, a line each, also /dev/stdin
 * --tokens N             new tokens of each text at most, default 32; a token of eos_token_id ends a text before
 * --temperature T        sampling; default 0: greedily. --top-k N, --top-p P, --seed N (text i draws with seed + i)
 * --beams N              beam search: N texts for each prompt, of which the best is printed
 * --kv f32|bf16|q8_0|q4_0, --page-tokens N    how keys and values are kept
 * --threads N            default: OpenMP's
 * --bf16-rows 1          with bf16 weights: rows are rounded to bf16 before dense layers, as transformers does; faster
 * --int8-weights 1       dense layers keep weights in int8, with a scale for each output: single tokens are faster
 *
 * llm.py does the same with text. The other files are in llm.h, section by section. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llm.h"

typedef struct options {
  const char *folder, *prompts, *kv;
  double tokens, temperature, top_k, top_p, seed, beams, page_tokens, threads, bf16_rows, int8_weights;
} options;

static const struct {
  const char *name;
  size_t at; /* in options */
  double least, most;
  bool whole;
} numbers[] = {
    {"--tokens", offsetof(options, tokens), 1, 1e9, true},
    {"--temperature", offsetof(options, temperature), 0, 1e6, false},
    {"--top-k", offsetof(options, top_k), 0, 1e9, true},
    {"--top-p", offsetof(options, top_p), 0, 1, false},
    {"--seed", offsetof(options, seed), 0, 1e15, true},
    {"--beams", offsetof(options, beams), 1, 1024, true},
    {"--page-tokens", offsetof(options, page_tokens), 16, 1024, true},
    {"--threads", offsetof(options, threads), 1, 4096, true},
    {"--bf16-rows", offsetof(options, bf16_rows), 0, 1, true},
    {"--int8-weights", offsetof(options, int8_weights), 0, 1, true},
};

static const struct {
  const char *name;
  attn_dtype dtype;
} kinds[] = {{"f32", ATTN_F32}, {"bf16", ATTN_BF16}, {"q8_0", ATTN_Q8_0}, {"q4_0", ATTN_Q4_0}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Prompts ---- */

/* Adds a prompt: tokens with commas or spaces between them. */
static bool add_prompt(llm_task *task, const char *words, int64_t vocabulary) {
  llm_text *more = realloc(task->texts, (size_t)(task->prompts + 1) * sizeof *more);
  if (!more) return llm_fail("out of memory");
  task->texts = more;
  llm_text *text = &more[task->prompts++];
  const size_t most = strlen(words) / 2 + 1 + (size_t)task->tokens; /* a token and what divides it are two characters */
  *text = (llm_text){.tokens = malloc(most * sizeof *text->tokens)};
  if (!text->tokens) return llm_fail("out of memory");
  for (const char *at = words + strspn(words, ", \r\n"); *at; at += strspn(at, ", \r\n")) {
    char *end;
    const long long token = strtoll(at, &end, 10);
    if (end == at || !strchr(", \r\n", *end) || token < 0 || token >= vocabulary)
      return llm_fail("prompt %lld: \"%.*s\" is no token; tokens are 0..%lld with commas between them",
                      (long long)task->prompts - 1, (int)strcspn(at, ", \r\n"), at, (long long)vocabulary - 1);
    text->tokens[text->count++] = (int32_t)token;
    at = end;
  }
  text->prompt = text->count;
  return text->count > 0 || llm_fail("prompt %lld has no tokens; it must have one", (long long)task->prompts - 1);
}

static bool read_prompts(llm_task *task, const char *path, int64_t vocabulary) {
  FILE *file = fopen(path, "r");
  if (!file) return llm_fail("--prompts %s cannot be read", path);
  char *line = NULL;
  size_t room = 0;
  bool right = true;
  while (right && getline(&line, &room, file) > 0) right = add_prompt(task, line, vocabulary);
  free(line);
  fclose(file);
  return right;
}

/* ---- Options ---- */

static bool read_number(options *o, const char *name, const char *value) {
  for (size_t i = 0; i < COUNT(numbers); i++) {
    if (strcmp(numbers[i].name, name) != 0) continue;
    char *end = NULL;
    const double number = value ? strtod(value, &end) : 0;
    if (!value || end == value || *end || !(number >= numbers[i].least && number <= numbers[i].most) ||
        (numbers[i].whole && number != (double)(int64_t)number))
      return llm_fail("%s is %s; it must be %s in %g..%g", name, value ? value : "missing",
                      numbers[i].whole ? "an integer" : "a number", numbers[i].least, numbers[i].most);
    memcpy((char *)o + numbers[i].at, &number, sizeof number);
    return true;
  }
  return llm_fail("%s is no option; the head of llm.c lists them", name);
}

/* Puts prompts at the front of `words`. Returns their number, or -1 after a message. */
static int read_options(int count, char **words, options *o) {
  int prompts = 0;
  for (int i = 1; i < count; i++) {
    const char *value = i + 1 < count ? words[i + 1] : NULL;
    if (strncmp(words[i], "--", 2) != 0) {
      if (o->folder)
        words[prompts++] = words[i];
      else
        o->folder = words[i];
      continue;
    }
    if (strcmp(words[i], "--prompts") == 0)
      o->prompts = value;
    else if (strcmp(words[i], "--kv") == 0)
      o->kv = value ? value : "missing";
    else if (!read_number(o, words[i], value))
      return -1;
    i++;
  }
  if (o->beams > 1 && o->temperature > 0) return llm_fail("--beams and --temperature: beam search does not sample"), -1;
  if (!o->folder || (prompts == 0) == !o->prompts)
    return llm_fail("usage: llm FOLDER [options] PROMPT... or --prompts FILE, which the head of llm.c explains"), -1;
  return prompts;
}

static bool begin(const options *o, llm_model *m, const llm_task *task) {
  attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = task->prompts * task->beams, .page_tokens = (int64_t)o->page_tokens);
  int64_t rows = 0;
  for (int64_t p = 0; p < task->prompts; p++) {
    const int64_t prompt = task->texts[p].prompt, tokens = prompt + task->tokens;
    if (tokens > m->config.positions)
      return llm_fail("prompt %lld and --tokens are %lld tokens; max_position_embeddings is %lld", (long long)p,
                      (long long)tokens, (long long)m->config.positions);
    if (tokens > shape.capacity) shape.capacity = tokens;
    rows += (prompt < LLM_CHUNK ? prompt : LLM_CHUNK) + task->beams;
  }
  for (size_t i = 0; i < COUNT(kinds); i++) {
    shape.dtype = kinds[i].dtype;
    if (strcmp(kinds[i].name, o->kv) == 0) return llm_model_begin(m, &shape, rows);
  }
  return llm_fail("--kv is %s; it must be f32, bf16, q8_0 or q4_0", o->kv);
}

/* ---- Reports ---- */

/* Megabytes of memory that the process has now; 0 where the system does not say it so. */
static double resident_mb(void) {
  long long all = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file) return 0;
  if (fscanf(file, "%lld %lld", &all, &resident) != 2) resident = 0;
  fclose(file);
  return (double)resident * (double)sysconf(_SC_PAGESIZE) * 1e-6;
}

static void print_results(const llm_task *t) {
  for (int64_t p = 0; p < t->prompts; p++)
    for (int64_t i = t->texts[p].prompt; i < t->texts[p].count; i++)
      printf("%d%c", (int)t->texts[p].tokens[i], i + 1 < t->texts[p].count ? ',' : '\n');
  fprintf(stderr, "%lld tokens read, %.1f/s; %lld made after them, %.1f/s; %.1f MB resident\n", (long long)t->prompt_tokens,
          (double)t->prompt_tokens / t->prompt_seconds, (long long)t->new_tokens,
          t->new_tokens ? (double)t->new_tokens / t->new_seconds : 0.0, resident_mb());
}

static bool run(const options *o, char **prompts, int count, llm_model *m, llm_task *task) {
  if (!llm_model_open(o->folder, m)) return false;
  fprintf(stderr, "%s, %lld layers: %.1f MB in %d file%s, %.1f MB resident once packed\n", m->config.type,
          (long long)m->config.layers, (double)m->weights.bytes * 1e-6, m->weights.count, m->weights.count == 1 ? "" : "s",
          resident_mb());
  for (int i = 0; i < count; i++)
    if (!add_prompt(task, prompts[i], m->config.vocabulary)) return false;
  if (o->prompts && !read_prompts(task, o->prompts, m->config.vocabulary)) return false;
  if (!begin(o, m, task) || !llm_generate(m, task)) return false;
  print_results(task);
  return true;
}

int main(int count, char **words) {
  options o = {.kv = "f32", .tokens = 32, .beams = 1};
  const int prompts = read_options(count, words, &o);
  if (prompts < 0) return 2;
  llm_task task = {.tokens = (int64_t)o.tokens,
                   .beams = (int64_t)o.beams,
                   .sampling = ATTN_STRUCT(attn_sampling, .temperature = (float)o.temperature, .top_k = (int64_t)o.top_k,
                                           .top_p = (float)o.top_p),
                   .seed = (uint64_t)o.seed,
                   .progress = isatty(STDERR_FILENO)};
  llm_model model = {.options = ATTN_STRUCT(attn_options, .threads = (int)o.threads),
                     .bf16_rows = o.bf16_rows != 0,
                     .int8_weights = o.int8_weights != 0};
  const bool right = run(&o, words, prompts, &model, &task);
  llm_model_close(&model);
  for (int64_t p = 0; p < task.prompts; p++) free(task.texts[p].tokens);
  free(task.texts);
  return right ? 0 : 1;
}
