/* SPDX-License-Identifier: MIT */
/* A character-level GPT (pre-norm, causal, dropout; Radford et al. 2019) that learns from text files by attn/train.h, and
 * then writes.
 *
 *     example_train_gpt [option=value]... TEXT...
 *
 * Options: steps, batch, seq, width, heads, layers, rate, dropout, seed, threads, every (steps between lines), save (a
 * checkpoint, read at the start where it exists, written at the end and on SIGINT), sample (characters at the end), bf16 (1:
 * products round their factors to bf16). After an interruption a run goes on to the same bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "learning.h"

enum { BYTES = 256, MOST_LAYERS = 32, WARMUP = 20 };

static learn_option options[] = {{"steps", 200}, {"batch", 12},   {"seq", 64},    {"width", 128}, {"heads", 4},
                                 {"layers", 4},  {"rate", 1e-3},  {"dropout", 0}, {"seed", 1},    {"threads", 0},
                                 {"every", 10},  {"sample", 200}, {"bf16", 0}};
enum { STEPS, BATCH, SEQ, WIDTH, HEADS, LAYERS, RATE, DROPOUT, SEED, THREADS, EVERY, SAMPLE, BF16, OPTIONS };

/* ---- Text ---- */

static unsigned char *text;
static int32_t *tokens, classes;
static unsigned char characters[BYTES];
static int64_t length;

static void read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) learn_fail(path);
  size_t got;
  do {
    text = realloc(text, (size_t)length + 65536);
    if (!text) learn_fail("out of memory");
    got = fread(text + length, 1, 65536, file);
    length += (int64_t)got;
  } while (got > 0);
  fclose(file);
}

/* Tokens are the bytes that the text has, in ascending order. */
static void tokenise(void) {
  int32_t number[BYTES];
  bool seen[BYTES] = {false};
  for (int64_t i = 0; i < length; i++) seen[text[i]] = true;
  for (int b = 0; b < BYTES; b++)
    if (seen[b]) characters[number[b] = classes++] = (unsigned char)b;
  tokens = malloc((size_t)length * sizeof *tokens);
  if (!tokens) learn_fail("out of memory");
  for (int64_t i = 0; i < length; i++) tokens[i] = number[text[i]];
}

/* ---- Parameters ---- */

static learner l;
static int64_t table, positions;
static norm_at last_norm;
static struct {
  norm_at norm1, norm2;
  linear_at qkv, projection, up, down;
} block[MOST_LAYERS];

static void place_all(int64_t width, int64_t seq, int layers) {
  table = learn_place(&l, classes * width);
  positions = learn_place(&l, seq * width);
  for (int i = 0; i < layers; i++) {
    block[i].norm1 = learn_place_norm(&l, width), block[i].norm2 = learn_place_norm(&l, width);
    block[i].qkv = learn_place_linear(&l, width, 3 * width), block[i].projection = learn_place_linear(&l, width, width);
    block[i].up = learn_place_linear(&l, width, 4 * width), block[i].down = learn_place_linear(&l, 4 * width, width);
  }
  last_norm = learn_place_norm(&l, width);
  learn_allocate(&l);
}

/* Deviation 0.02, and less where residuals add up, as in GPT-2. */
static void begin_weights(int layers) {
  learn_check(attn_init_weights(ATTN_INIT_NORMAL, 0.02f, l.count, 1, l.drop.seed, 0, l.weights));
  const float less = 1 / sqrtf(2 * (float)layers);
  for (int i = 0; i < layers; i++) {
    learn_begin_norm(&l, block[i].norm1), learn_begin_norm(&l, block[i].norm2);
    learn_begin_linear(&l, block[i].qkv, 1), learn_begin_linear(&l, block[i].projection, less);
    learn_begin_linear(&l, block[i].up, 1), learn_begin_linear(&l, block[i].down, less);
  }
  learn_begin_norm(&l, last_norm);
}

/* ---- The model ---- */

static struct {
  int64_t batch, seq, rows, width, heads;
  int layers;
  attn_problem attention;
  attn_args arrays;
  int32_t *input, *target, *position;
  /* Rows of each layer: s1 and s2 go into its norms, n1 and n2 come out; up, act between the maps. */
  float *s1[MOST_LAYERS + 1], *n1[MOST_LAYERS + 1], *s2[MOST_LAYERS], *n2[MOST_LAYERS], *kept[MOST_LAYERS];
  float *scales1[MOST_LAYERS + 1], *scales2[MOST_LAYERS];
  float *up[MOST_LAYERS], *act[MOST_LAYERS], *made, *logits, *d_stream, *d_rows, *d_wide;
} g;

static void place_rows(void) {
  const int64_t size = g.rows * g.width;
  for (int i = 0; i <= g.layers; i++)
    g.s1[i] = learn_floats(size), g.n1[i] = learn_floats(size), g.scales1[i] = learn_floats(3 * g.rows);
  for (int i = 0; i < g.layers; i++) {
    g.s2[i] = learn_floats(size), g.n2[i] = learn_floats(size), g.scales2[i] = learn_floats(3 * g.rows);
    g.up[i] = learn_floats(4 * size), g.act[i] = learn_floats(4 * size);
    g.kept[i] = learn_floats(4 * size + g.rows * g.heads);
  }
  g.made = learn_floats(size), g.d_stream = learn_floats(size), g.d_rows = learn_floats(size);
  g.d_wide = learn_floats(4 * size), g.logits = learn_floats(g.rows * classes);
  g.input = (int32_t *)learn_floats(g.rows), g.target = (int32_t *)learn_floats(g.rows);
  g.position = (int32_t *)learn_floats(g.rows);
  for (int64_t i = 0; i < g.rows; i++) g.position[i] = (int32_t)(i % g.seq);
}

static attn_multi_head attention_at(int layer) {
  const linear_at in = block[layer].qkv, out = block[layer].projection;
  g.arrays = learn_arrays(&l, layer);
  return ATTN_STRUCT(attn_multi_head, .attention = &g.attention, .arrays = &g.arrays, .width = g.width,
                     .in = learn_linear(&l, in), .out = learn_linear(&l, out), .x = g.n1[layer], .y = g.made,
                     .kept = g.kept[layer], .d_in = learn_linear_grad(&l, in), .d_out = learn_linear_grad(&l, out),
                     .bf16_products = l.bf16);
}

static attn_dense logits_layer(void) {
  return ATTN_STRUCT(attn_dense, .rows = g.rows, .in = g.width, .out = classes,
                     .map = {.weight = l.weights + table, .transposed = true}, .x = g.n1[g.layers], .y = g.logits,
                     .d_y = g.logits, .d_x = g.d_rows, .d_weight = l.grads + table, .bf16_products = l.bf16);
}

static attn_embedding embedding_of(int64_t rows, int64_t first) {
  return ATTN_STRUCT(attn_embedding, .vocabulary = rows, .width = g.width, .table = l.weights + first);
}

static void drop(int place, const float *x, float *y) { learn_drop(&l, place, g.rows, g.width, x, y); }

/* The stream's gradient behind a dropout. */
static const float *drop_grad(int place) {
  if (l.drop.probability == 0) return g.d_stream;
  drop(place, g.d_stream, g.d_rows);
  return g.d_rows;
}

static void forward(void) {
  const attn_embedding words = embedding_of(classes, table), places = embedding_of(g.seq, positions);
  learn_check(attn_embed(&words, g.rows, g.input, g.s1[0]));
  learn_check(attn_embed(&places, g.rows, g.position, g.made));
  for (int64_t i = 0; i < g.rows * g.width; i++) g.s1[0][i] += g.made[i];
  drop(0, g.s1[0], g.s1[0]);
  learn_join(&l, block[0].norm1, g.rows, g.s1[0], NULL, NULL, g.scales1[0], g.n1[0]);
  for (int i = 0; i < g.layers; i++) {
    const attn_multi_head a = attention_at(i);
    learn_check(attn_multi_head_run(&a, &l.run));
    drop(2 * i + 1, g.made, g.made);
    learn_join(&l, block[i].norm2, g.rows, g.s1[i], g.made, g.s2[i], g.scales2[i], g.n2[i]);
    learn_map(&l, block[i].up, g.rows, g.n2[i], g.up[i]);
    learn_check(attn_activation_run(ATTN_GELU, 4 * g.rows * g.width, g.up[i], g.act[i], &l.run));
    learn_map(&l, block[i].down, g.rows, g.act[i], g.made);
    drop(2 * i + 2, g.made, g.made);
    learn_join(&l, i + 1 == g.layers ? last_norm : block[i + 1].norm1, g.rows, g.s2[i], g.made, g.s1[i + 1],
               g.scales1[i + 1], g.n1[i + 1]);
  }
  const attn_dense d = logits_layer();
  learn_check(attn_dense_run(&d, &l.run));
}

static double backward(void) {
  double loss;
  learn_check(attn_cross_entropy_run(&ATTN_STRUCT(attn_cross_entropy, .rows = g.rows, .classes = classes, .logits = g.logits,
                                                  .targets = g.target, .d_logits = g.logits),
                                     &l.run, &loss));
  const attn_dense d = logits_layer();
  learn_check(attn_dense_grad(&d, &l.run));
  learn_join_grad(&l, last_norm, g.rows, g.s1[g.layers], g.scales1[g.layers], g.d_rows, NULL, g.d_stream);
  for (int i = g.layers - 1; i >= 0; i--) {
    learn_map_grad(&l, block[i].down, g.rows, g.act[i], drop_grad(2 * i + 2), g.d_wide);
    learn_check(attn_activation_grad(ATTN_GELU, 4 * g.rows * g.width, g.up[i], g.d_wide, g.d_wide, &l.run));
    learn_map_grad(&l, block[i].up, g.rows, g.n2[i], g.d_wide, g.d_rows);
    learn_join_grad(&l, block[i].norm2, g.rows, g.s2[i], g.scales2[i], g.d_rows, g.d_stream, g.d_stream);
    attn_multi_head a = attention_at(i);
    a.d_y = drop_grad(2 * i + 1), a.d_x = g.made;
    learn_check(attn_multi_head_grad(&a, &l.run));
    learn_join_grad(&l, block[i].norm1, g.rows, g.s1[i], g.scales1[i], g.made, g.d_stream, g.d_stream);
  }
  drop(0, g.d_stream, g.d_stream);
  const attn_embedding words = embedding_of(classes, table), places = embedding_of(g.seq, positions);
  memset(l.grads + positions, 0, (size_t)(g.seq * g.width) * sizeof *l.grads);
  learn_check(attn_embed_grad(&words, g.rows, g.input, g.d_stream, l.grads + table, &l.run));
  learn_check(attn_embed_grad(&places, g.rows, g.position, g.d_stream, l.grads + positions, &l.run));
  return loss;
}

/* ---- Steps and samples ---- */

static void take_batch(int64_t step) {
  for (int64_t b = 0; b < g.batch; b++) {
    const uint64_t choices = (uint64_t)(length - g.seq);
    const int64_t first = (int64_t)(learn_draw(l.drop.seed, (uint64_t)(step * g.batch + b)) % choices);
    memcpy(g.input + b * g.seq, tokens + first, (size_t)g.seq * sizeof *tokens);
    memcpy(g.target + b * g.seq, tokens + first + 1, (size_t)g.seq * sizeof *tokens);
  }
}

static void train(int64_t step, int64_t steps, int64_t every, const char *save) {
  double begin = learn_now();
  for (int64_t since = 0; step < steps && !learn_interrupted; step++) {
    l.drop.offset = (uint64_t)step;
    take_batch(step);
    forward();
    const double loss = backward();
    const float rate = (float)attn_warmup_rate(options[RATE].value, WARMUP, 0, step + 1);
    const double norm = learn_step(
        &l, ATTN_STRUCT(attn_adamw, .rate = rate, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f), step + 1);
    since++;
    if ((step + 1) % every) continue;
    const double end = learn_now();
    printf("step %lld  loss %.6f  norm %.4f  %.0f tokens/s\n", (long long)step + 1, loss, norm,
           (double)(since * g.rows) / (end - begin));
    fflush(stdout);
    since = 0, begin = end;
  }
  learn_store(&l, save, step);
  if (learn_interrupted) printf("interrupted after step %lld\n", (long long)step);
}

/* One sequence of the batch grows; the logits behind its last character give the next one. */
static void sample(int64_t count) {
  const attn_sampling how = ATTN_STRUCT(attn_sampling, .temperature = 0.8f, .top_p = 0.95f);
  uint64_t state = l.drop.seed;
  int32_t next;
  int64_t known = 1;
  l.drop.probability = g.attention.dropout = 0;
  for (int64_t i = 0; i < g.rows; i++) g.input[i] = tokens[0];
  for (int64_t i = 0; i < count && !learn_interrupted; i++) {
    forward();
    learn_check(attn_sample_token(&how, classes, g.logits + (known - 1) * classes, &state, NULL, &next));
    putchar(characters[next]);
    if (known == g.seq) memmove(g.input, g.input + 1, (size_t)(--known) * sizeof *g.input);
    g.input[known++] = next;
  }
  putchar('\n');
}

int main(int arguments, char **argument) {
  const char *save = NULL;
  for (int i = 1; i < arguments; i++)
    if (!learn_read_option(argument[i], options, OPTIONS, &save)) read_text(argument[i]);
  g.batch = (int64_t)options[BATCH].value, g.seq = (int64_t)options[SEQ].value, g.width = (int64_t)options[WIDTH].value;
  g.heads = (int64_t)options[HEADS].value, g.layers = (int)options[LAYERS].value, g.rows = g.batch * g.seq;
  if (g.batch < 1 || g.seq < 1 || g.heads < 1 || g.width % g.heads || g.layers < 1 || g.layers > MOST_LAYERS ||
      options[EVERY].value < 1)
    learn_fail("batch, seq, heads, layers (to 32) and every are at least 1; width is a multiple of heads");
  if (length <= g.seq) learn_fail("the text is shorter than a sequence");
  tokenise();
  l.drop = ATTN_STRUCT(attn_dropout, .probability = (float)options[DROPOUT].value, .seed = (uint64_t)options[SEED].value);
  l.run = ATTN_STRUCT(attn_options, .threads = (int)options[THREADS].value);
  l.bf16 = options[BF16].value > 0;
  attn_problem_init(&g.attention, g.batch, g.heads, g.heads, g.seq, g.seq, g.width / g.heads, g.width / g.heads);
  attn_problem_set_causal(&g.attention, ATTN_ALIGN_TOP_LEFT);
  g.attention.dropout = l.drop.probability;
  place_all(g.width, g.seq, g.layers);
  place_rows();
  begin_weights(g.layers);
  const int64_t done = learn_load(&l, save);
  printf("%lld characters, %d of them different; %lld parameters\n", (long long)length, classes, (long long)l.count);
  learn_watch();
  train(done, (int64_t)options[STEPS].value, (int64_t)options[EVERY].value, save);
  if (options[SAMPLE].value > 0) sample((int64_t)options[SAMPLE].value);
  return learn_interrupted ? 130 : 0;
}
