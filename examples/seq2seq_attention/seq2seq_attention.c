/* SPDX-License-Identifier: MIT */
/* A recurrent encoder and decoder that write words backwards, joined by additive attention (Bahdanau et al. 2015).
 *
 * The encoder reads the word letter by letter and keeps one state per letter. The decoder writes letter by letter. Before
 * each letter it attends to those states: the query is its own state, keys and values are the encoder's states. train.py
 * trained it only on words and their reversals; attention.csv shows that it learnt to attend from the end to the
 * beginning.
 *
 *     seq2seq_attention WEIGHTS.safetensors FOLDER [WORD]     writes FOLDER/attention.csv; plot.py draws it
 *
 * train.py writes the weights, with PyTorch's names and layouts. */
#include <attn/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

enum { PAD, BEGIN, END, FIRST_LETTER, SYMBOLS = FIRST_LETTER + 26 };
enum { EMBED = 16, HIDDEN = 48, ATTENTION = 32, LONGEST = 16 };

/* ---- The model: weights, and attention as a layer of libattn_nn ---- */

typedef struct gru { /* three gates, stacked by rows: reset, update, new (torch.nn.GRU) */
  int inputs;
  const float *from_input, *from_state, *input_bias, *state_bias;
} gru;

typedef struct model {
  const float *embed, *output, *output_bias;
  gru encoder, decoder;
  attn_additive *attention;
  void *workspace;
  size_t workspace_bytes;
} model;

/* y = W x + b, W [rows][columns]. */
static void affine(const float *w, const float *b, const float *x, int rows, int columns, float *y) {
  for (int r = 0; r < rows; r++) {
    y[r] = b[r];
    for (int c = 0; c < columns; c++) y[r] += w[r * columns + c] * x[c];
  }
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* state <- GRU(input, state) (Cho et al. 2014, https://arxiv.org/abs/1406.1078), as PyTorch defines it. */
static void gru_step(const gru *cell, const float *input, float *state) {
  float in[3 * HIDDEN], past[3 * HIDDEN];
  affine(cell->from_input, cell->input_bias, input, 3 * HIDDEN, cell->inputs, in);
  affine(cell->from_state, cell->state_bias, state, 3 * HIDDEN, HIDDEN, past);
  for (int i = 0; i < HIDDEN; i++) {
    const float reset = sigmoid(in[i] + past[i]), update = sigmoid(in[HIDDEN + i] + past[HIDDEN + i]);
    const float fresh = tanhf(in[2 * HIDDEN + i] + reset * past[2 * HIDDEN + i]);
    state[i] = (1 - update) * fresh + update * state[i];
  }
}

static gru load_gru(const safetensors *file, const char *names[4], int inputs, int *missing) {
  gru cell = {inputs, safetensors_get(file, names[0], 3 * HIDDEN, inputs),
              safetensors_get(file, names[1], 3 * HIDDEN, HIDDEN), safetensors_get(file, names[2], 0, 3 * HIDDEN),
              safetensors_get(file, names[3], 0, 3 * HIDDEN)};
  *missing += !cell.from_input || !cell.from_state || !cell.input_bias || !cell.state_bias;
  return cell;
}

/* Attention of one query over at most LONGEST states. Each call is told the length of the word. */
static attn_status load_attention(const safetensors *file, model *m) {
  const attn_additive_config config =
      ATTN_STRUCT(attn_additive_config, .batch = 1, .seq_q = 1, .seq_k = LONGEST, .width_q = HIDDEN, .width_k = HIDDEN,
                  .hidden = ATTENTION, .dim_v = HIDDEN, .use_kv_len = true,
                  .query = {.weight = safetensors_get(file, "query.weight", ATTENTION, HIDDEN), .transposed = true},
                  .key = {.weight = safetensors_get(file, "key.weight", ATTENTION, HIDDEN), .transposed = true},
                  .score_weight = safetensors_get(file, "score.weight", 1, ATTENTION));
  const attn_status status = attn_additive_create(&config, &ATTN_STRUCT(attn_options, .threads = 1), &m->attention);
  if (status != ATTN_OK) return status;
  m->workspace_bytes = attn_additive_workspace(m->attention);
  m->workspace = aligned_alloc(64, m->workspace_bytes);
  return m->workspace ? ATTN_OK : ATTN_OUT_OF_MEMORY;
}

static int load(const safetensors *file, model *m) {
  const char *encoder[] = {"encoder.weight_ih_l0", "encoder.weight_hh_l0", "encoder.bias_ih_l0", "encoder.bias_hh_l0"};
  const char *decoder[] = {"decoder.weight_ih", "decoder.weight_hh", "decoder.bias_ih", "decoder.bias_hh"};
  int missing = 0;
  m->embed = safetensors_get(file, "embed.weight", SYMBOLS, EMBED);
  m->output = safetensors_get(file, "output.weight", SYMBOLS, 2 * HIDDEN);
  m->output_bias = safetensors_get(file, "output.bias", 0, SYMBOLS);
  m->encoder = load_gru(file, encoder, EMBED, &missing);
  m->decoder = load_gru(file, decoder, EMBED + HIDDEN, &missing);
  if (missing || !m->embed || !m->output || !m->output_bias) return -1;
  if (load_attention(file, m) == ATTN_OK) return 0;
  fprintf(stderr, "%s\n", attn_last_error());
  return -1;
}

/* ---- Reading and writing a word ---- */

/* The written symbols, and the attention weights of every step: weights[step][letter of the word]. */
typedef struct translation {
  int symbols[LONGEST + 1], count;
  float weights[LONGEST + 1][LONGEST];
} translation;

static int argmax(const float *values, int count) {
  int best = 0;
  for (int i = 1; i < count; i++)
    if (values[i] > values[best]) best = i;
  return best;
}

static attn_status translate(const model *m, const int *word, int length, translation *out) {
  float states[LONGEST][HIDDEN] = {{0}}, keys[LONGEST * ATTENTION], state[HIDDEN] = {0};
  for (int i = 0; i < length; i++) {
    gru_step(&m->encoder, m->embed + word[i] * EMBED, state);
    memcpy(states[i], state, sizeof state);
  }
  /* The keys are the same for every letter written: project them once. */
  attn_status status = attn_additive_project_keys(m->attention, states[0], keys, m->workspace, m->workspace_bytes);
  int symbol = BEGIN;
  for (out->count = 0; status == ATTN_OK && out->count <= LONGEST;) {
    float seen[2 * HIDDEN], input[EMBED + HIDDEN], logits[SYMBOLS], *context = seen + HIDDEN;
    const int32_t kv_len = length;
    const attn_additive_args args = ATTN_STRUCT(attn_additive_args, .q = state, .projected_k = keys, .v = states[0],
                                                .kv_len = &kv_len, .o = context, .weights = out->weights[out->count]);
    status = attn_additive_run(m->attention, &args, m->workspace, m->workspace_bytes);
    memcpy(input, m->embed + symbol * EMBED, EMBED * sizeof *input);
    memcpy(input + EMBED, context, HIDDEN * sizeof *input);
    gru_step(&m->decoder, input, state);
    memcpy(seen, state, sizeof state);
    affine(m->output, m->output_bias, seen, SYMBOLS, 2 * HIDDEN, logits);
    symbol = argmax(logits, SYMBOLS);
    if (symbol == END) break;
    out->symbols[out->count++] = symbol;
    if (out->count == LONGEST + 1) break;
  }
  return status;
}

static int is_reversal(const int *word, int length, const translation *t) {
  if (t->count != length) return 0;
  for (int i = 0; i < length; i++)
    if (t->symbols[i] != word[length - 1 - i]) return 0;
  return 1;
}

/* Number of letters whose largest weight is on the same letter of the word, or on a neighbour. */
static int looked_nearby(int length, const translation *t) {
  int count = 0;
  for (int i = 0; i < length; i++) count += abs(argmax(t->weights[i], length) - (length - 1 - i)) <= 1;
  return count;
}

/* ---- The program ---- */

static int write_attention(const char *folder, const char *word, const translation *t) {
  char path[1024];
  snprintf(path, sizeof path, "%s/attention.csv", folder);
  FILE *file = fopen(path, "w");
  if (!file) return perror(path), -1;
  for (const char *letter = word; *letter; letter++) fprintf(file, ",%c", *letter);
  for (int i = 0; i < t->count; i++) {
    fprintf(file, "\n%c", 'a' + t->symbols[i] - FIRST_LETTER);
    for (size_t j = 0; word[j]; j++) fprintf(file, ",%.6f", (double)t->weights[i][j]);
  }
  fprintf(file, "\n");
  return fclose(file);
}

static int show_word(const model *m, const char *word, const char *folder) {
  int symbols[LONGEST], length = 0;
  for (; word[length] >= 'a' && word[length] <= 'z' && length < LONGEST; length++)
    symbols[length] = FIRST_LETTER + word[length] - 'a';
  if (word[length] || length == 0) return fprintf(stderr, "WORD must be 1 to %d letters a to z\n", LONGEST), -1;
  translation t;
  if (translate(m, symbols, length, &t) != ATTN_OK) return fprintf(stderr, "%s\n", attn_last_error()), -1;
  printf("%s -> ", word);
  for (int i = 0; i < t.count; i++) putchar('a' + t.symbols[i] - FIRST_LETTER);
  printf("\n");
  return write_attention(folder, word, &t);
}

/* Random words of every length. The training did not choose any of them on purpose. */
static int measure(const model *m, int words) {
  int right = 0, letters = 0, nearby = 0;
  unsigned state = 99;
  for (int n = 0; n < words; n++) {
    int word[LONGEST];
    const int length = n % LONGEST + 1;
    for (int i = 0; i < length; i++) {
      state = state * 1664525u + 1013904223u;
      word[i] = FIRST_LETTER + (int)((uint64_t)state * 26 >> 32);
    }
    translation t;
    if (translate(m, word, length, &t) != ATTN_OK) return fprintf(stderr, "%s\n", attn_last_error()), -1;
    right += is_reversal(word, length, &t);
    nearby += looked_nearby(length, &t);
    letters += length;
  }
  printf("%d random words of 1 to %d letters: %.1f %% reversed, %.1f %% of letters by looking there\n", words, LONGEST,
         100.0 * right / words, 100.0 * nearby / letters);
  return right >= 0.99 * words && nearby >= 0.9 * letters ? 0 : -1;
}

int main(int count, char **words) {
  if (count < 3) return puts("usage: seq2seq_attention WEIGHTS.safetensors FOLDER [WORD]"), 2;
  safetensors file;
  model m = {0};
  if (safetensors_read(words[1], &file) != 0) return 1;
  int result = load(&file, &m);
  if (result == 0) result = show_word(&m, count > 3 ? words[3] : "attention", words[2]);
  if (result == 0) result = measure(&m, 800);
  attn_additive_destroy(m.attention);
  free(m.workspace);
  safetensors_free(&file);
  return result == 0 ? 0 : 1;
}
