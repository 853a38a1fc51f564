/* A real sentence encoder, all-MiniLM-L6-v2 (Wang et al. 2020, https://arxiv.org/abs/2002.10957; fine-tuned by the
 * sentence-transformers project): six post-norm encoder blocks of twelve heads, mean over the tokens, length 1.
 *
 * Every attention kernel of the library that takes the shape computes all sentences once; the fastest is kept and its embeddings are
 * written. That is the whole of picking a kernel at run time: the name goes into attn_options, the rest is the same.
 *
 *     minilm MODEL.safetensors TOKENS.txt EMBEDDINGS.csv [THREADS [KERNEL]]
 *
 * TOKENS.txt holds one sentence per line, as token ids; compare.py makes it, and sets our time beside PyTorch's. */
#define _POSIX_C_SOURCE 200809L
#include <attn/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "safetensors.h"

enum { LAYERS = 6, HEADS = 12, WIDTH = 384, HIDDEN = 1536, VOCABULARY = 30522, POSITIONS = 512 };
static const float epsilon = 1e-12f;

/* ---- Sentences ---- */

typedef struct sentences {
  int64_t count, longest; /* the batch is padded to the longest */
  int32_t *ids;           /* [count][POSITIONS] */
  int32_t *lengths;       /* [count] */
} sentences;

static int add_sentence(sentences *s, char *line) {
  int32_t *ids = realloc(s->ids, (size_t)(s->count + 1) * POSITIONS * sizeof *ids);
  int32_t *lengths = realloc(s->lengths, (size_t)(s->count + 1) * sizeof *lengths);
  if (ids) s->ids = ids;
  if (lengths) s->lengths = lengths;
  if (!ids || !lengths) return -1;
  int32_t length = 0;
  for (char *at = line, *next; length < POSITIONS; at = next) {
    const long id = strtol(at, &next, 10);
    if (next == at) break;
    if (id < 0 || id >= VOCABULARY) return fprintf(stderr, "token %ld is not in 0..%d\n", id, VOCABULARY - 1), -1;
    ids[s->count * POSITIONS + length++] = (int32_t)id;
  }
  if (length == 0) return 0; /* an empty line */
  lengths[s->count++] = length;
  if (length > s->longest) s->longest = length;
  return 0;
}

static int read_sentences(const char *path, sentences *s) {
  static char line[16 * POSITIONS];
  FILE *file = fopen(path, "r");
  if (!file) return perror(path), -1;
  int result = 0;
  while (result == 0 && fgets(line, sizeof line, file)) result = add_sentence(s, line);
  fclose(file);
  if (result == 0 && s->count == 0) return fprintf(stderr, "%s: no sentence\n", path), -1;
  return result;
}

/* ---- The model ---- */

typedef struct model {
  const safetensors *file;
  const sentences *input;
  const float *words, *positions, *types;
  attn_norm norm;
  attn_block *blocks[LAYERS];
  void *workspace;
  size_t workspace_bytes;
  float *x, *embeddings; /* [sentences][longest][WIDTH] and [sentences][WIDTH] */
} model;

/* A tensor of layer `layer`; NULL with a message if it is not there, which attn_block_create then refuses. */
static const float *layer_tensor(const model *m, int layer, const char *name, int64_t rows, int64_t columns) {
  char full[128];
  snprintf(full, sizeof full, "encoder.layer.%d.%s", layer, name);
  return safetensors_get(m->file, full, rows, columns);
}

static attn_norm layer_norm(const model *m, int layer, const char *part) {
  char names[2][96];
  snprintf(names[0], sizeof names[0], "%s.LayerNorm.weight", part);
  snprintf(names[1], sizeof names[1], "%s.LayerNorm.bias", part);
  return (attn_norm){layer_tensor(m, layer, names[0], 0, WIDTH), layer_tensor(m, layer, names[1], 0, WIDTH), epsilon};
}

/* The block of one layer, for this batch: padded sentences, their lengths given with each run. */
static attn_status create_block(model *m, int layer, const attn_options *options) {
  attn_block_config c;
  attn_encoder_block_init(&c, m->input->count, HEADS, m->input->longest, WIDTH, HIDDEN);
  c.self.attention.uses |= ATTN_USE_KV_LEN;
  c.self_weights = (attn_mha_weights){.layout = ATTN_OUT_IN,
                                      .w_q = layer_tensor(m, layer, "attention.self.query.weight", WIDTH, WIDTH),
                                      .w_k = layer_tensor(m, layer, "attention.self.key.weight", WIDTH, WIDTH),
                                      .w_v = layer_tensor(m, layer, "attention.self.value.weight", WIDTH, WIDTH),
                                      .w_o = layer_tensor(m, layer, "attention.output.dense.weight", WIDTH, WIDTH),
                                      .b_q = layer_tensor(m, layer, "attention.self.query.bias", 0, WIDTH),
                                      .b_k = layer_tensor(m, layer, "attention.self.key.bias", 0, WIDTH),
                                      .b_v = layer_tensor(m, layer, "attention.self.value.bias", 0, WIDTH),
                                      .b_o = layer_tensor(m, layer, "attention.output.dense.bias", 0, WIDTH)};
  c.self_norm = layer_norm(m, layer, "attention.output");
  c.feed_forward.activation = ATTN_GELU;
  c.feed_forward.first = (attn_linear){.weight = layer_tensor(m, layer, "intermediate.dense.weight", HIDDEN, WIDTH),
                                       .bias = layer_tensor(m, layer, "intermediate.dense.bias", 0, HIDDEN),
                                       .transposed = true};
  c.feed_forward.second = (attn_linear){.weight = layer_tensor(m, layer, "output.dense.weight", WIDTH, HIDDEN),
                                        .bias = layer_tensor(m, layer, "output.dense.bias", 0, WIDTH),
                                        .transposed = true};
  c.feed_forward_norm = layer_norm(m, layer, "output");
  return attn_block_create(&c, options, &m->blocks[layer]);
}

static void destroy_model(model *m) {
  for (int layer = 0; layer < LAYERS; layer++) attn_block_destroy(m->blocks[layer]);
  free(m->workspace), free(m->x), free(m->embeddings);
}

static attn_status create_model(model *m, const safetensors *file, const sentences *input, const attn_options *options) {
  *m = (model){.file = file, .input = input};
  m->words = safetensors_get(file, "embeddings.word_embeddings.weight", VOCABULARY, WIDTH);
  m->positions = safetensors_get(file, "embeddings.position_embeddings.weight", POSITIONS, WIDTH);
  m->types = safetensors_get(file, "embeddings.token_type_embeddings.weight", 2, WIDTH);
  m->norm = (attn_norm){safetensors_get(file, "embeddings.LayerNorm.weight", 0, WIDTH),
                        safetensors_get(file, "embeddings.LayerNorm.bias", 0, WIDTH), epsilon};
  if (!m->words || !m->positions || !m->types) return ATTN_INVALID_ARGUMENT;
  attn_status status = ATTN_OK;
  for (int layer = 0; layer < LAYERS && status == ATTN_OK; layer++) status = create_block(m, layer, options);
  if (status != ATTN_OK) return status;
  m->workspace_bytes = attn_block_workspace(m->blocks[0]); /* all layers are alike and run one after the other */
  m->workspace = aligned_alloc(64, m->workspace_bytes);
  m->x = malloc((size_t)(input->count * input->longest * WIDTH) * sizeof *m->x);
  m->embeddings = malloc((size_t)(input->count * WIDTH) * sizeof *m->embeddings);
  return m->workspace && m->x && m->embeddings ? ATTN_OK : ATTN_OUT_OF_MEMORY;
}

/* x = norm(word + position + type); padding is token 0. */
static attn_status embed(const model *m) {
  const int64_t longest = m->input->longest, rows = m->input->count * longest;
  for (int64_t row = 0; row < rows; row++) {
    const int64_t sentence = row / longest, place = row % longest;
    const bool real = place < m->input->lengths[sentence];
    const float *word = m->words + (real ? m->input->ids[sentence * POSITIONS + place] : 0) * (int64_t)WIDTH;
    for (int i = 0; i < WIDTH; i++) m->x[row * WIDTH + i] = word[i] + m->types[i] + m->positions[place * WIDTH + i];
  }
  return attn_add_layer_norm(rows, WIDTH, m->x, NULL, &m->norm, NULL, m->x);
}

/* The mean over the tokens of each sentence, scaled to length 1: cosines are then dot products. */
static void pool(const model *m) {
  for (int64_t s = 0; s < m->input->count; s++) {
    double sum[WIDTH] = {0}, squares = 0;
    for (int64_t t = 0; t < m->input->lengths[s]; t++)
      for (int i = 0; i < WIDTH; i++) sum[i] += (double)m->x[(s * m->input->longest + t) * WIDTH + i];
    for (int i = 0; i < WIDTH; i++) squares += sum[i] * sum[i];
    for (int i = 0; i < WIDTH; i++) m->embeddings[s * WIDTH + i] = (float)(sum[i] / sqrt(squares));
  }
}

static attn_status encode(const model *m) {
  attn_status status = embed(m);
  const attn_block_args args = {.x = m->x, .y = m->x, .self = {.kv_len = m->input->lengths}};
  for (int layer = 0; layer < LAYERS && status == ATTN_OK; layer++)
    status = attn_block_run(m->blocks[layer], &args, m->workspace, m->workspace_bytes);
  if (status == ATTN_OK) pool(m);
  return status;
}

/* ---- The program ---- */

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* The median of a few runs, after one that warms up; negative if the kernel cannot. */
static double time_kernel(model *m) {
  enum { RUNS = 5 };
  double times[RUNS];
  for (int run = -1; run < RUNS; run++) {
    const double begin = seconds();
    if (encode(m) != ATTN_OK) return -1;
    if (run >= 0) times[run] = seconds() - begin;
  }
  qsort(times, RUNS, sizeof *times, by_size);
  return times[RUNS / 2];
}

static int write_embeddings(const char *path, const float *embeddings, int64_t count) {
  FILE *file = fopen(path, "w");
  if (!file) return perror(path), -1;
  for (int64_t s = 0; s < count; s++)
    for (int i = 0; i < WIDTH; i++) fprintf(file, "%.9g%c", (double)embeddings[s * WIDTH + i], i + 1 < WIDTH ? ',' : '\n');
  return fclose(file);
}

/* What the kernels tried so far have shown. */
typedef struct contest {
  const safetensors *file;
  const sentences *input;
  const char *output;
  int threads;
  float *first; /* the first kernel's embeddings: the others must agree */
  double fastest;
  char winner[64];
} contest;

/* The largest 1 - cosine between two kernels' embeddings of a sentence, which have length 1. */
static double distance(const float *a, const float *b, int64_t count) {
  double largest = 0;
  for (int64_t s = 0; s < count; s++) {
    double cosine = 0;
    for (int i = 0; i < WIDTH; i++) cosine += (double)a[s * WIDTH + i] * (double)b[s * WIDTH + i];
    if (!(1 - cosine <= largest)) largest = 1 - cosine; /* NaN is large */
  }
  return largest;
}

/* Runs one kernel, and writes its embeddings if it is the fastest so far. -1 if they are wrong or cannot be written. */
static int try_kernel(contest *c, const char *name) {
  const attn_options options = {.kernel = name, .threads = c->threads};
  model m;
  const attn_status status = create_model(&m, c->file, c->input, &options);
  const double time = status == ATTN_OK ? time_kernel(&m) : -1;
  int result = 0;
  if (time < 0) {
    printf("%-18s refused: %s\n", name, attn_last_error());
    return destroy_model(&m), 0;
  }
  if (!c->first) {
    c->first = m.embeddings;
    m.embeddings = NULL; /* kept */
  }
  const float *embeddings = m.embeddings ? m.embeddings : c->first;
  const double off = distance(embeddings, c->first, c->input->count);
  printf("%-18s %10.3f   %.0e\n", name, 1e3 * time / (double)c->input->count, fabs(off));
  if (!(off <= 1e-5)) {
    fprintf(stderr, "%s: its embeddings differ from those of the first kernel\n", name);
    result = -1;
  }
  if (result == 0 && (c->fastest < 0 || time < c->fastest)) {
    c->fastest = time;
    snprintf(c->winner, sizeof c->winner, "%s", name);
    result = write_embeddings(c->output, embeddings, c->input->count);
  }
  destroy_model(&m);
  return result;
}

int main(int count, char **words) {
  if (count < 4) return puts("usage: minilm MODEL.safetensors TOKENS.txt EMBEDDINGS.csv [THREADS [KERNEL]]"), 2;
  safetensors file;
  sentences input = {0};
  if (safetensors_read(words[1], &file) != 0 || read_sentences(words[2], &input) != 0) return 1;
  contest c = {.file = &file, .input = &input, .output = words[3], .threads = count > 4 ? atoi(words[4]) : 1, .fastest = -1};
  printf("%lld sentences of up to %lld tokens, %d thread%s\n\n%-18s ms/sentence  1 - cosine to the first\n",
         (long long)input.count, (long long)input.longest, c.threads, c.threads == 1 ? "" : "s", "kernel");
  int result = 0;
  for (int i = 0; i < attn_kernel_count() && result == 0; i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (count > 5 ? strcmp(kernel->name, words[5]) != 0 : attn_kernel_unusable(kernel) != NULL) continue;
    result = try_kernel(&c, kernel->name);
  }
  if (c.fastest >= 0) printf("\nfastest: %s; its embeddings are in %s\n", c.winner, words[3]);
  free(input.ids), free(input.lengths), free(c.first);
  safetensors_free(&file);
  return result == 0 && c.fastest >= 0 ? 0 : 1;
}
