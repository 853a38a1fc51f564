/* SPDX-License-Identifier: MIT */
/* A character-level GPT (pre-norm, causal, dropout; Radford et al. 2019) that learns from text files by attn/train.h, and
 * then writes.
 *
 *     example_train_gpt [option=value]... TEXT...
 *
 * Options: steps, batch, seq, width, heads, layers, rate, dropout, seed, threads, every (steps between lines), save (a
 * checkpoint, read at the start where it exists, written at the end and on SIGINT), sample (characters at the end). After
 * an interruption a run goes on to the same bits. Parameters lie in one array, their gradients in a
 * second, the moments of AdamW in two more: so clipping, a step and a checkpoint are one call each. */
#define _POSIX_C_SOURCE 200809L
#include <attn/train.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 256, MOST_LAYERS = 32, WARMUP = 20 };
static const float EPSILON = 1e-5f;

static struct {
  const char *name;
  double value;
} options[] = {{"steps", 200}, {"batch", 12},  {"seq", 64}, {"width", 128}, {"heads", 4},  {"layers", 4},
               {"rate", 1e-3}, {"dropout", 0}, {"seed", 1}, {"threads", 0}, {"every", 10}, {"sample", 200}};
enum { STEPS, BATCH, SEQ, WIDTH, HEADS, LAYERS, RATE, DROPOUT, SEED, THREADS, EVERY, SAMPLE, OPTIONS };
static const char *save;
static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
  (void)signal;
  interrupted = 1;
}

static void fail(const char *what) {
  fprintf(stderr, "train_gpt: %s\n", what);
  exit(1);
}

static void check(attn_status status) {
  if (status != ATTN_OK) fail(attn_last_error());
}

static float *floats(int64_t count) {
  float *made = calloc((size_t)count + 1, sizeof *made);
  if (!made) fail("out of memory");
  return made;
}

/* ---- Text ---- */

static unsigned char *text;
static int32_t *tokens, classes;
static unsigned char characters[BYTES];
static int64_t length;

static void read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(path);
  size_t got;
  do {
    text = realloc(text, (size_t)length + 65536);
    if (!text) fail("out of memory");
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
  if (!tokens) fail("out of memory");
  for (int64_t i = 0; i < length; i++) tokens[i] = number[text[i]];
}

/* ---- Parameters: one array, and where each lies in it ---- */

typedef struct linear_at {
  int64_t weight, bias, in, out;
} linear_at;

typedef struct block_at {
  int64_t gain1, bias1, gain2, bias2; /* norms */
  linear_at qkv, projection, up, down;
} block_at;

static struct {
  int64_t table, positions, gain, bias, count;
  block_at block[MOST_LAYERS];
} at;
static float *weights, *grads, *m, *v;

static int64_t place(int64_t count) {
  at.count += count;
  return at.count - count;
}

static linear_at place_linear(int64_t in, int64_t out) {
  const int64_t weight = place(in * out);
  return (linear_at){weight, place(out), in, out};
}

static void place_all(int64_t width, int64_t seq, int layers) {
  at.table = place(classes * width);
  at.positions = place(seq * width);
  for (int l = 0; l < layers; l++) {
    block_at *b = &at.block[l];
    b->gain1 = place(width), b->bias1 = place(width), b->gain2 = place(width), b->bias2 = place(width);
    b->qkv = place_linear(width, 3 * width), b->projection = place_linear(width, width);
    b->up = place_linear(width, 4 * width), b->down = place_linear(4 * width, width);
  }
  at.gain = place(width), at.bias = place(width);
}

static void fill(int64_t first, int64_t count, float value) {
  for (int64_t i = 0; i < count; i++) weights[first + i] = value;
}

/* Deviation 0.02, and less where residuals add up, as in GPT-2. */
static void begin_weights(int64_t width, int layers, uint64_t seed) {
  check(attn_init_weights(ATTN_INIT_NORMAL, 0.02f, at.count, 1, seed, 0, weights));
  const float less = 1 / sqrtf(2 * (float)layers);
  for (int l = 0; l < layers; l++) {
    const block_at *b = &at.block[l];
    const linear_at maps[] = {b->qkv, b->projection, b->up, b->down};
    fill(b->gain1, width, 1), fill(b->bias1, width, 0), fill(b->gain2, width, 1), fill(b->bias2, width, 0);
    for (int i = 0; i < 4; i++) {
      fill(maps[i].bias, maps[i].out, 0);
      for (int64_t w = 0; i % 2 && w < maps[i].in * maps[i].out; w++) weights[maps[i].weight + w] *= less;
    }
  }
  fill(at.gain, width, 1), fill(at.bias, width, 0);
}

/* ---- The model ---- */

static struct {
  int64_t batch, seq, rows, width, heads;
  int layers;
  attn_problem attention;
  attn_args arrays;
  attn_options run;
  attn_dropout drop;
  int32_t *input, *target, *position;
  /* Rows of each layer: s1 and s2 go into its norms, n1 and n2 come out; up, act between the maps. */
  float *s1[MOST_LAYERS + 1], *n1[MOST_LAYERS + 1], *s2[MOST_LAYERS], *n2[MOST_LAYERS], *kept[MOST_LAYERS];
  float *up[MOST_LAYERS], *act[MOST_LAYERS], *made, *logits, *d_stream, *d_rows, *d_wide;
} g;

static void place_rows(void) {
  const int64_t size = g.rows * g.width;
  for (int l = 0; l <= g.layers; l++) g.s1[l] = floats(size), g.n1[l] = floats(size);
  for (int l = 0; l < g.layers; l++) {
    g.s2[l] = floats(size), g.n2[l] = floats(size), g.up[l] = floats(4 * size), g.act[l] = floats(4 * size);
    g.kept[l] = floats(4 * size + g.rows * g.heads);
  }
  g.made = floats(size), g.d_stream = floats(size), g.d_rows = floats(size), g.d_wide = floats(4 * size);
  g.logits = floats(g.rows * classes);
  g.input = (int32_t *)floats(g.rows), g.target = (int32_t *)floats(g.rows), g.position = (int32_t *)floats(g.rows);
  for (int64_t i = 0; i < g.rows; i++) g.position[i] = (int32_t)(i % g.seq);
}

static attn_norm norm_at(int64_t gain, int64_t bias) { return (attn_norm){weights + gain, weights + bias, EPSILON}; }

/* sum = x + other, y = norm(sum) */
static void join(const float *x, const float *other, attn_norm norm, float *sum, float *y) {
  check(attn_row_join_run(&ATTN_STRUCT(attn_row_join, .rows = g.rows, .width = g.width, .norm_kind = ATTN_NORM_LAYER,
                                       .norm = norm, .x = x, .other = other, .sum = sum, .y = y),
                          &g.run));
}

/* Backwards through it: the stream's gradient grows by that of the norm. */
static void unjoin(const float *sum, int64_t gain, int64_t bias, const float *d_y, const float *d_sum) {
  check(attn_norm_grad_run(
      &ATTN_STRUCT(attn_norm_grad, .rows = g.rows, .width = g.width, .kind = ATTN_NORM_LAYER, .norm = norm_at(gain, bias),
                   .s = sum, .d_y = d_y, .d_sum = d_sum, .d_s = g.d_stream, .d_gain = grads + gain, .d_bias = grads + bias),
      &g.run));
}

static void drop(int place, const float *x, float *y) {
  if (g.drop.probability == 0) {
    if (x != y) memcpy(y, x, (size_t)(g.rows * g.width) * sizeof *y);
    return;
  }
  attn_dropout own = g.drop;
  own.stream = 0x80000000u + (uint32_t)place;
  check(attn_dropout_rows(&own, g.rows, g.width, x, y, &g.run));
}

static attn_dense dense_at(const linear_at *l) {
  return ATTN_STRUCT(attn_dense, .rows = g.rows, .in = l->in, .out = l->out,
                     .map = {.weight = weights + l->weight, .bias = weights + l->bias}, .d_weight = grads + l->weight,
                     .d_bias = grads + l->bias);
}

static void forward_map(const linear_at *l, const float *x, float *y) {
  attn_dense d = dense_at(l);
  d.x = x, d.y = y;
  check(attn_dense_run(&d, &g.run));
}

static void backward_map(const linear_at *l, const float *x, const float *d_y, float *d_x) {
  attn_dense d = dense_at(l);
  d.x = x, d.d_y = d_y, d.d_x = d_x;
  check(attn_dense_grad(&d, &g.run));
}

static attn_multi_head attention_at(int layer) {
  const block_at *b = &at.block[layer];
  g.arrays = ATTN_STRUCT(attn_args, .seed = g.drop.seed + (uint64_t)layer, .offset = g.drop.offset);
  return ATTN_STRUCT(attn_multi_head, .attention = &g.attention, .arrays = &g.arrays, .width = g.width,
                     .in = {.weight = weights + b->qkv.weight, .bias = weights + b->qkv.bias},
                     .out = {.weight = weights + b->projection.weight, .bias = weights + b->projection.bias},
                     .x = g.n1[layer], .y = g.made, .kept = g.kept[layer],
                     .d_in = {grads + b->qkv.weight, grads + b->qkv.bias},
                     .d_out = {grads + b->projection.weight, grads + b->projection.bias});
}

static attn_dense logits_layer(void) {
  return ATTN_STRUCT(attn_dense, .rows = g.rows, .in = g.width, .out = classes,
                     .map = {.weight = weights + at.table, .transposed = true}, .x = g.n1[g.layers], .y = g.logits,
                     .d_y = g.logits, .d_x = g.d_rows, .d_weight = grads + at.table);
}

static attn_embedding embedding_of(int64_t rows, int64_t first) {
  return ATTN_STRUCT(attn_embedding, .vocabulary = rows, .width = g.width, .table = weights + first);
}

static void forward(void) {
  const attn_embedding words = embedding_of(classes, at.table), places = embedding_of(g.seq, at.positions);
  check(attn_embed(&words, g.rows, g.input, g.s1[0]));
  check(attn_embed(&places, g.rows, g.position, g.made));
  for (int64_t i = 0; i < g.rows * g.width; i++) g.s1[0][i] += g.made[i];
  drop(0, g.s1[0], g.s1[0]);
  join(g.s1[0], NULL, norm_at(at.block[0].gain1, at.block[0].bias1), NULL, g.n1[0]);
  for (int l = 0; l < g.layers; l++) {
    const block_at *b = &at.block[l];
    const attn_multi_head a = attention_at(l);
    check(attn_multi_head_run(&a, &g.run));
    drop(2 * l + 1, g.made, g.made);
    join(g.s1[l], g.made, norm_at(b->gain2, b->bias2), g.s2[l], g.n2[l]);
    forward_map(&b->up, g.n2[l], g.up[l]);
    check(attn_activation_run(ATTN_GELU, 4 * g.rows * g.width, g.up[l], g.act[l], &g.run));
    forward_map(&b->down, g.act[l], g.made);
    drop(2 * l + 2, g.made, g.made);
    const bool last = l + 1 == g.layers;
    join(g.s2[l], g.made, last ? norm_at(at.gain, at.bias) : norm_at(b[1].gain1, b[1].bias1), g.s1[l + 1], g.n1[l + 1]);
  }
  const attn_dense d = logits_layer();
  check(attn_dense_run(&d, &g.run));
}

static double backward(void) {
  double loss;
  check(attn_cross_entropy_run(&ATTN_STRUCT(attn_cross_entropy, .rows = g.rows, .classes = classes, .logits = g.logits,
                                            .targets = g.target, .d_logits = g.logits),
                               &g.run, &loss));
  const attn_dense d = logits_layer();
  check(attn_dense_grad(&d, &g.run));
  unjoin(g.s1[g.layers], at.gain, at.bias, g.d_rows, NULL);
  for (int l = g.layers - 1; l >= 0; l--) {
    const block_at *b = &at.block[l];
    drop(2 * l + 2, g.d_stream, g.d_rows);
    backward_map(&b->down, g.act[l], g.d_rows, g.d_wide);
    check(attn_activation_grad(ATTN_GELU, 4 * g.rows * g.width, g.up[l], g.act[l], g.d_wide, g.d_wide, &g.run));
    backward_map(&b->up, g.n2[l], g.d_wide, g.d_rows);
    unjoin(g.s2[l], b->gain2, b->bias2, g.d_rows, g.d_stream);
    drop(2 * l + 1, g.d_stream, g.d_rows);
    attn_multi_head a = attention_at(l);
    a.d_y = g.d_rows, a.d_x = g.made;
    check(attn_multi_head_grad(&a, &g.run));
    unjoin(g.s1[l], b->gain1, b->bias1, g.made, g.d_stream);
  }
  drop(0, g.d_stream, g.d_stream);
  const attn_embedding words = embedding_of(classes, at.table), places = embedding_of(g.seq, at.positions);
  memset(grads + at.positions, 0, (size_t)(g.seq * g.width) * sizeof *grads);
  check(attn_embed_grad(&words, g.rows, g.input, g.d_stream, grads + at.table, &g.run));
  check(attn_embed_grad(&places, g.rows, g.position, g.d_stream, grads + at.positions, &g.run));
  return loss;
}

/* ---- Steps, checkpoints, samples ---- */

/* SplitMix64 of seed and place: the batch of a step depends on nothing else. */
static uint64_t draw(uint64_t seed, uint64_t place) {
  uint64_t z = seed * UINT64_C(0xBF58476D1CE4E5B9) + place * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

static void take_batch(int64_t step) {
  for (int64_t b = 0; b < g.batch; b++) {
    const uint64_t choices = (uint64_t)(length - g.seq);
    const int64_t first = (int64_t)(draw(g.drop.seed, (uint64_t)(step * g.batch + b)) % choices);
    memcpy(g.input + b * g.seq, tokens + first, (size_t)g.seq * sizeof *tokens);
    memcpy(g.target + b * g.seq, tokens + first + 1, (size_t)g.seq * sizeof *tokens);
  }
}

/* A file: the number of parameters, steps done, and weights, m and v. */
static int64_t load(void) {
  int64_t head[2] = {0, 0};
  FILE *file = save ? fopen(save, "rb") : NULL;
  if (!file) return 0;
  const size_t count = (size_t)at.count;
  if (fread(head, sizeof *head, 2, file) != 2 || head[0] != at.count ||
      fread(weights, sizeof *weights, count, file) != count || fread(m, sizeof *m, count, file) != count ||
      fread(v, sizeof *v, count, file) != count)
    fail("the checkpoint is not of this model");
  fclose(file);
  return head[1];
}

/* Beside the old one at first: an interruption leaves one or the other. */
static void store(int64_t step) {
  if (!save) return;
  char path[4096];
  snprintf(path, sizeof path, "%s.new", save);
  FILE *file = fopen(path, "wb");
  const size_t count = (size_t)at.count;
  const int64_t head[2] = {at.count, step};
  if (!file || fwrite(head, sizeof *head, 2, file) != 2 || fwrite(weights, sizeof *weights, count, file) != count ||
      fwrite(m, sizeof *m, count, file) != count || fwrite(v, sizeof *v, count, file) != count || fclose(file) ||
      rename(path, save))
    fail("the checkpoint cannot be written");
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void train(int64_t step, int64_t steps, int64_t every) {
  double begin = now();
  for (int64_t since = 0; step < steps && !interrupted; step++) {
    double norm;
    g.drop.offset = (uint64_t)step;
    take_batch(step);
    forward();
    const double loss = backward();
    check(attn_clip_grads(at.count, grads, 1, &norm, &g.run));
    const double rate = attn_warmup_rate(options[RATE].value, WARMUP, 0, step + 1);
    check(attn_adamw_step(
        &ATTN_STRUCT(attn_adamw, .rate = (float)rate, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f),
        step + 1, at.count, weights, grads, m, v, &g.run));
    since++;
    if ((step + 1) % every) continue;
    const double end = now();
    printf("step %lld  loss %.6f  norm %.4f  %.0f tokens/s\n", (long long)step + 1, loss, norm,
           (double)(since * g.rows) / (end - begin));
    fflush(stdout);
    since = 0, begin = end;
  }
  store(step);
  if (interrupted) printf("interrupted after step %lld\n", (long long)step);
}

/* One sequence of the batch grows; the logits behind its last character give the next one. */
static void sample(int64_t count) {
  const attn_sampling how = ATTN_STRUCT(attn_sampling, .temperature = 0.8f, .top_p = 0.95f);
  uint64_t state = g.drop.seed;
  int32_t next;
  int64_t known = 1;
  g.drop.probability = g.attention.dropout = 0;
  for (int64_t i = 0; i < g.rows; i++) g.input[i] = tokens[0];
  for (int64_t i = 0; i < count && !interrupted; i++) {
    forward();
    check(attn_sample_token(&how, classes, g.logits + (known - 1) * classes, &state, NULL, &next));
    putchar(characters[next]);
    if (known == g.seq) memmove(g.input, g.input + 1, (size_t)(--known) * sizeof *g.input);
    g.input[known++] = next;
  }
  putchar('\n');
}

static void read_option(char *argument) {
  char *equals = strchr(argument, '=');
  *equals = 0;
  if (!strcmp(argument, "save")) {
    save = equals + 1;
    return;
  }
  for (int i = 0; i < OPTIONS; i++)
    if (!strcmp(argument, options[i].name)) {
      options[i].value = strtod(equals + 1, NULL);
      return;
    }
  fail("no such option");
}

int main(int arguments, char **argument) {
  for (int i = 1; i < arguments; i++) {
    if (strchr(argument[i], '='))
      read_option(argument[i]);
    else
      read_text(argument[i]);
  }
  g.batch = (int64_t)options[BATCH].value, g.seq = (int64_t)options[SEQ].value, g.width = (int64_t)options[WIDTH].value;
  g.heads = (int64_t)options[HEADS].value, g.layers = (int)options[LAYERS].value, g.rows = g.batch * g.seq;
  if (g.batch < 1 || g.seq < 1 || g.heads < 1 || g.width % g.heads || g.layers < 1 || g.layers > MOST_LAYERS ||
      options[EVERY].value < 1)
    fail("batch, seq, heads, layers (to 32) and every are at least 1; width is a multiple of heads");
  if (length <= g.seq) fail("the text is shorter than a sequence");
  tokenise();
  g.drop = ATTN_STRUCT(attn_dropout, .probability = (float)options[DROPOUT].value, .seed = (uint64_t)options[SEED].value);
  g.run = ATTN_STRUCT(attn_options, .threads = (int)options[THREADS].value);
  attn_problem_init(&g.attention, g.batch, g.heads, g.heads, g.seq, g.seq, g.width / g.heads, g.width / g.heads);
  attn_problem_set_causal(&g.attention, ATTN_ALIGN_TOP_LEFT);
  g.attention.dropout = g.drop.probability;
  place_all(g.width, g.seq, g.layers);
  weights = floats(at.count), grads = floats(at.count), m = floats(at.count), v = floats(at.count);
  place_rows();
  begin_weights(g.width, g.layers, g.drop.seed);
  const int64_t done = load();
  printf("%lld characters, %d of them different; %lld parameters\n", (long long)length, classes, (long long)at.count);
  signal(SIGINT, interrupt);
  train(done, (int64_t)options[STEPS].value, (int64_t)options[EVERY].value);
  if (options[SAMPLE].value > 0) sample((int64_t)options[SAMPLE].value);
  return interrupted ? 130 : 0;
}
