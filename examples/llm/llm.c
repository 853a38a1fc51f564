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
 * --int8-rows 1          with it: rows are rounded to int8, too, each with a scale; prompts are faster
 *
 * llm.py does the same with text. The other files are in llm.h, section by section. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include "llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void llm_must(attn_status status) {
  if (status != ATTN_OK) errx(1, "%s", attn_last_error());
}

void *llm_allocate(int64_t count, size_t bytes) {
  void *memory = calloc((size_t)count, bytes);
  if (!memory) errx(1, "out of memory: %lld elements of %zu bytes", (long long)count, bytes);
  return memory;
}

/* ---- Options ---- */

static llm_options options = {.tokens = 32, .beams = 1};

static const struct {
  const char *name;
  int64_t *whole; /* where the number goes: here or there */
  float *real;
  double least, most;
} numbers[] = {
    {"--tokens", &options.tokens, NULL, 1, 1e9},
    {"--temperature", NULL, &options.sampling.temperature, 0, 1e6},
    {"--top-k", &options.sampling.top_k, NULL, 0, 1e9},
    {"--top-p", NULL, &options.sampling.top_p, 0, 1},
    {"--seed", &options.seed, NULL, 0, 1e15},
    {"--beams", &options.beams, NULL, 1, 1024},
    {"--page-tokens", &options.page_tokens, NULL, 16, 1024},
    {"--threads", &options.threads, NULL, 1, 4096},
    {"--bf16-rows", &options.bf16_rows, NULL, 0, 1},
    {"--int8-weights", &options.int8_weights, NULL, 0, 1},
    {"--int8-rows", &options.int8_rows, NULL, 0, 1},
};

static const char *const kinds[] = {[ATTN_F32] = "f32", [ATTN_BF16] = "bf16", [ATTN_Q8_0] = "q8_0", [ATTN_Q4_0] = "q4_0"};

static void read_number(const char *name, const char *value) {
  size_t i = 0, count = sizeof numbers / sizeof *numbers;
  while (i < count && strcmp(numbers[i].name, name) != 0) i++;
  if (i == count) errx(1, "%s is no option; the head of llm.c lists them", name);
  const double least = numbers[i].least, most = numbers[i].most;
  char *end;
  const double number = strtod(value, &end);
  if (end == value || *end || !(number >= least && number <= most) ||
      (numbers[i].whole && number != (double)(int64_t)number))
    errx(1, "%s is %s; it must be %s in %g..%g", name, value, numbers[i].whole ? "an integer" : "a number", least, most);
  if (numbers[i].whole) *numbers[i].whole = (int64_t)number;
  if (numbers[i].real) *numbers[i].real = (float)number;
}

static attn_dtype read_kv(const char *name) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (kinds[i] && strcmp(kinds[i], name) == 0) return (attn_dtype)i;
  errx(1, "--kv is %s; it must be f32, bf16, q8_0 or q4_0", name);
}

/* Moves the folder and the prompts to the front of `words`, and returns their number. *prompts: the file of --prompts. */
static int read_options(int count, char **words, const char **prompts) {
  int others = 0;
  for (int i = 1; i < count; i++) {
    if (strncmp(words[i], "--", 2) != 0) {
      words[others++] = words[i];
      continue;
    }
    const char *name = words[i++], *value = i < count ? words[i] : "missing";
    if (strcmp(name, "--prompts") == 0)
      *prompts = value;
    else if (strcmp(name, "--kv") == 0)
      options.kv = read_kv(value);
    else
      read_number(name, value);
  }
  if (options.beams > 1 && options.sampling.temperature > 0)
    errx(1, "--beams and --temperature: beam search does not sample");
  if (others == 0 || (others == 1) == !*prompts)
    errx(1, "usage: llm FOLDER [options] PROMPT... or --prompts FILE, which the head of llm.c explains");
  return others;
}

/* ---- Prompts ---- */

/* Adds a prompt: tokens with commas or spaces between them. Returns all texts. */
static llm_text *add_prompt(llm_text *texts, int64_t prompt, const char *words, int64_t vocabulary) {
  static const char between[] = ", \r\n";
  const int64_t most = (int64_t)strlen(words) / 2 + 1; /* a token and what divides it are two characters */
  llm_text text = {.tokens = llm_allocate(most + options.tokens, sizeof *text.tokens)};
  for (const char *at = words + strspn(words, between); *at; at += strspn(at, between)) {
    char *end;
    const long long token = strtoll(at, &end, 10);
    if (end == at || !strchr(between, *end) || token < 0 || token >= vocabulary)
      errx(1, "prompt %lld: \"%.*s\" is no token; tokens are 0..%lld with commas between them", (long long)prompt,
           (int)strcspn(at, between), at, (long long)vocabulary - 1);
    text.tokens[text.prompt++] = (int32_t)token;
    at = end;
  }
  if (text.prompt == 0) errx(1, "prompt %lld has no tokens; it must have one", (long long)prompt);
  text.count = text.prompt;
  texts = realloc(texts, (size_t)(prompt + 1) * sizeof *texts);
  if (!texts) errx(1, "out of memory: prompt %lld", (long long)prompt);
  texts[prompt] = text;
  return texts;
}

/* Adds the prompts of a file to `count` texts. Returns their number. */
static int64_t read_prompts(llm_text **texts, int64_t count, const char *path, int64_t vocabulary) {
  char *line = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "r");
  if (!file) errx(1, "--prompts %s cannot be read", path);
  while (getline(&line, &room, file) > 0) *texts = add_prompt(*texts, count++, line, vocabulary);
  free(line);
  fclose(file);
  return count;
}

/* ---- Reports ---- */

/* Prints the memory that the process has now, where the system says it so. */
static void print_resident(const char *when) {
  long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file && fscanf(file, "%*d %lld", &pages) == 1)
    fprintf(stderr, "%.1f MB resident %s\n", (double)pages * (double)sysconf(_SC_PAGESIZE) * 1e-6, when);
  if (file) fclose(file);
}

static void print_text(const llm_text *text) {
  for (int64_t i = text->prompt; i < text->count; i++)
    printf("%d%c", (int)text->tokens[i], i + 1 < text->count ? ',' : '\n');
}

int main(int count, char **words) {
  const char *file = NULL;
  llm_model model = {0};
  llm_text *texts = NULL;
  int64_t prompts = 0;
  const int others = read_options(count, words, &file);
  llm_model_open(words[0], &options, &model);
  fprintf(stderr, "%lld layers, %.1f MB\n", (long long)model.config.layers,
          (double)safetensors_bytes(&model.weights.files) * 1e-6);
  print_resident("once packed");
  for (; prompts + 1 < others; prompts++) texts = add_prompt(texts, prompts, words[1 + prompts], model.config.vocabulary);
  if (file) prompts = read_prompts(&texts, prompts, file, model.config.vocabulary);
  llm_generate(&model, prompts, texts);
  print_resident("at the end");
  for (int64_t p = 0; p < prompts; p++) print_text(&texts[p]), free(texts[p].tokens);
  llm_model_close(&model);
  free(texts);
  return 0;
}
