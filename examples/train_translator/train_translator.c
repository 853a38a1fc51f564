/* SPDX-License-Identifier: MIT */
/* The transformer of 2017 learns to translate a small language (language.h), by attn/train.h: encoder and decoder blocks as
 * in figure 1 of Vaswani et al. (https://arxiv.org/abs/1706.03762), one table for both languages and the logits, sinusoidal
 * positions, dropout of embeddings, sublayers and attention weights, label smoothing, a warm-up; then beam search.
 *
 *     example_train_translator [option=value]...
 *
 * Options: steps, batch, width, heads, layers, clauses (of a sentence, to 3), warmup, rate (times the paper's), dropout,
 * smoothing, seed, threads, every (steps between lines), save (a checkpoint, as in train_gpt), sentences (translated at the
 * end), beams, additive (1: every attention has additive scores, Bahdanau et al. 2015), and exact: the program fails unless
 * so many percent of the sentences, which it draws anew, are translated without a mistake. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "language.h"
#include "learning.h"

enum { MOST_LAYERS = 8, MOST_BEAMS = 64 };

static learn_option options[] = {{"steps", 3000}, {"batch", 64},   {"width", 64},  {"heads", 4},       {"layers", 2},
                                 {"clauses", 3},  {"warmup", 300}, {"rate", 1},    {"dropout", 0.1},   {"smoothing", 0.1},
                                 {"seed", 1},     {"threads", 0},  {"every", 100}, {"sentences", 500}, {"beams", 4},
                                 {"additive", 0}, {"exact", 99}};
enum {
  STEPS,
  BATCH,
  WIDTH,
  HEADS,
  LAYERS,
  CLAUSES_OF,
  WARMUP,
  RATE,
  DROPOUT,
  SMOOTHING,
  SEED,
  THREADS,
  EVERY,
  SENTENCES,
  BEAMS,
  ADDITIVE,
  EXACT,
  OPTIONS
};

/* ---- Parameters and rows ---- */

typedef struct attention {
  linear_at in, in_memory, out;
  int64_t score_weight; /* with additive scores: [heads][dim] */
  int place;            /* its dropout's */
  attn_problem *problem;
  float *kept;
} attention;

enum { SELF, CROSS, FEED_FORWARD, SUBLAYERS };

typedef struct block {
  attention attention[2]; /* SELF and CROSS */
  linear_at up, down;
  norm_at norm[SUBLAYERS];
  float *sum[SUBLAYERS], *out[SUBLAYERS]; /* rows before and after its norms */
  float *wide, *act;                      /* in the feed-forward network */
} block;

/* Encoder or decoder. */
typedef struct stack {
  bool decodes;
  int64_t seq, rows;
  attn_problem self;
  int32_t *tokens;
  float *embedded, *made, *d, *d_made, *d_rows, *d_wide;
  block block[MOST_LAYERS];
} stack;

static learner l;
static stack encoder, decoder = {.decodes = true};
static attn_problem cross;
static int64_t table, width, heads, batch;
static int layers, places, clauses;
static float *positions, *logits, *d_memory; /* d_memory: of one layer; encoder.d has the sum */
static int32_t *source_length, *targets;

static attention place_attention(attn_problem *problem, int64_t rows_q, int64_t rows_k, bool has_memory) {
  attention a = {.problem = problem, .place = ++places};
  a.in = learn_place_linear(&l, width, has_memory ? width : 3 * width);
  if (has_memory) a.in_memory = learn_place_linear(&l, width, 2 * width);
  a.out = learn_place_linear(&l, width, width);
  if (options[ADDITIVE].value > 0) a.score_weight = learn_place(&l, width);
  a.kept = learn_floats(rows_q * (2 * width + heads) + rows_k * 2 * width);
  return a;
}

static void place_block(const stack *s, block *b, attn_problem *self) {
  const int64_t size = s->rows * width;
  b->attention[SELF] = place_attention(self, s->rows, s->rows, false);
  if (s->decodes) b->attention[CROSS] = place_attention(&cross, s->rows, encoder.rows, true);
  b->up = learn_place_linear(&l, width, 4 * width), b->down = learn_place_linear(&l, 4 * width, width);
  for (int i = 0; i < SUBLAYERS; i++) {
    b->norm[i] = learn_place_norm(&l, width);
    b->sum[i] = learn_floats(size), b->out[i] = learn_floats(size);
  }
  b->wide = learn_floats(4 * size), b->act = learn_floats(4 * size);
}

static void place_stack(stack *s) {
  s->rows = batch * s->seq;
  const int64_t size = s->rows * width;
  for (int i = 0; i < layers; i++) place_block(s, &s->block[i], &s->self);
  s->tokens = (int32_t *)learn_floats(s->rows);
  s->embedded = learn_floats(size), s->made = learn_floats(size), s->d = learn_floats(size);
  s->d_made = learn_floats(size), s->d_rows = learn_floats(size), s->d_wide = learn_floats(4 * size);
}

/* Xavier's weights, as the paper's code has them. */
static void begin_maps(const linear_at *maps, int count, uint32_t *stream) {
  for (int i = 0; i < count; i++)
    learn_check(
        attn_init_weights(ATTN_INIT_XAVIER, 1, maps[i].in, maps[i].out, l.drop.seed, ++*stream, l.weights + maps[i].weight));
}

static void begin_attention(const attention *a, uint32_t *stream) {
  begin_maps((linear_at[]){a->in, a->out, a->in_memory}, a->in_memory.in > 0 ? 3 : 2, stream);
  if (a->score_weight)
    learn_check(attn_init_weights(ATTN_INIT_NORMAL, 1, width, 1, l.drop.seed, ++*stream, l.weights + a->score_weight));
}

static void begin_stack(const stack *s, uint32_t *stream) {
  for (const block *b = s->block; b < s->block + layers; b++) {
    begin_attention(&b->attention[SELF], stream);
    if (s->decodes) begin_attention(&b->attention[CROSS], stream);
    begin_maps((linear_at[]){b->up, b->down}, 2, stream);
    for (int i = 0; i < SUBLAYERS; i++) learn_begin_norm(&l, b->norm[i]);
  }
}

static attn_problem problem_of(int64_t seq_q, int64_t seq_k) {
  attn_problem p;
  attn_problem_init(&p, batch, heads, heads, seq_q, seq_k, width / heads, width / heads);
  if (options[ADDITIVE].value > 0) {
    p.score = ATTN_SCORE_ADDITIVE;
    p.uses = ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT;
    p.score_weight_stride_h = width / heads;
  }
  return p;
}

static void begin_model(void) {
  uint32_t stream = 0;
  table = learn_place(&l, VOCABULARY * width);
  encoder.seq = SOURCE / CLAUSES * clauses;
  decoder.seq = TARGET / CLAUSES * clauses + 1; /* BEGIN in front of inputs, END behind targets */
  place_stack(&encoder), place_stack(&decoder);
  learn_allocate(&l);
  const float deviation = 1 / sqrtf((float)width);
  learn_check(attn_init_weights(ATTN_INIT_NORMAL, deviation, VOCABULARY, width, l.drop.seed, 0, l.weights + table));
  begin_stack(&encoder, &stream), begin_stack(&decoder, &stream);
  encoder.self = problem_of(encoder.seq, encoder.seq), decoder.self = problem_of(decoder.seq, decoder.seq);
  cross = problem_of(decoder.seq, encoder.seq);
  attn_problem_set_causal(&decoder.self, ATTN_ALIGN_TOP_LEFT);
  encoder.self.uses |= ATTN_USE_KV_LEN, cross.uses |= ATTN_USE_KV_LEN;
  positions = learn_floats(SOURCE * width);
  learn_check(attn_sinusoidal_positions(0, SOURCE, width, positions));
  logits = learn_floats(decoder.rows * VOCABULARY);
  d_memory = learn_floats(encoder.rows * width);
  source_length = (int32_t *)learn_floats(batch), targets = (int32_t *)learn_floats(decoder.rows);
}

static void set_dropout(float probability) {
  l.drop.probability = encoder.self.dropout = decoder.self.dropout = cross.dropout = probability;
}

/* ---- Forwards ---- */

static void add(float *to, const float *from, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

static attn_args arrays;

static attn_multi_head layer_of(const attention *a, const float *x, const float *memory, float *y) {
  arrays = learn_arrays(&l, a->place);
  if (a->problem->uses & ATTN_USE_KV_LEN) arrays.kv_len = source_length;
  if (a->score_weight) arrays.score_weight = l.weights + a->score_weight, arrays.d_score_weight = l.grads + a->score_weight;
  return ATTN_STRUCT(attn_multi_head, .attention = a->problem, .arrays = &arrays, .width = width,
                     .width_memory = memory ? width : 0, .in = learn_linear(&l, a->in),
                     .in_memory = learn_linear(&l, a->in_memory), .out = learn_linear(&l, a->out), .x = x, .memory = memory,
                     .y = y, .kept = a->kept, .d_in = learn_linear_grad(&l, a->in),
                     .d_in_memory = learn_linear_grad(&l, a->in_memory), .d_out = learn_linear_grad(&l, a->out));
}

static int drop_place(const stack *s, const block *b, int sublayer) {
  return 1 + (s->decodes ? SUBLAYERS * MOST_LAYERS + 1 : 0) + SUBLAYERS * (int)(b - s->block) + sublayer;
}

/* x <- norm(x + dropout(made)); returns the new x. */
static const float *add_norm(stack *s, block *b, int i, const float *x) {
  learn_drop(&l, drop_place(s, b, i), s->rows, width, s->made, s->made);
  learn_join(&l, b->norm[i], s->rows, x, s->made, b->sum[i], NULL, b->out[i]);
  return b->out[i];
}

static const float *attend(stack *s, block *b, int i, const float *x, const float *memory) {
  const attn_multi_head layer = layer_of(&b->attention[i], x, memory, s->made);
  learn_check(attn_multi_head_run(&layer, &l.run));
  return add_norm(s, b, i, x);
}

static const float *feed_forward(stack *s, block *b, const float *x) {
  learn_map(&l, b->up, s->rows, x, b->wide);
  learn_check(attn_activation_run(ATTN_RELU, 4 * s->rows * width, b->wide, b->act, &l.run));
  learn_map(&l, b->down, s->rows, b->act, s->made);
  return add_norm(s, b, FEED_FORWARD, x);
}

static attn_embedding embedding(void) {
  return ATTN_STRUCT(attn_embedding, .vocabulary = VOCABULARY, .width = width, .table = l.weights + table,
                     .factor = sqrtf((float)width));
}

static const float *forward(stack *s, const float *memory) {
  const attn_embedding e = embedding();
  learn_check(attn_embed(&e, s->rows, s->tokens, s->embedded));
  for (int64_t b = 0; b < batch; b++) add(s->embedded + b * s->seq * width, positions, s->seq * width);
  learn_drop(&l, drop_place(s, s->block, -1), s->rows, width, s->embedded, s->embedded);
  const float *x = s->embedded;
  for (block *b = s->block; b < s->block + layers; b++) {
    x = attend(s, b, SELF, x, NULL);
    if (s->decodes) x = attend(s, b, CROSS, x, memory);
    x = feed_forward(s, b, x);
  }
  return x;
}

static attn_dense logits_layer(const float *x) {
  return ATTN_STRUCT(attn_dense, .rows = decoder.rows, .in = width, .out = VOCABULARY,
                     .map = {.weight = l.weights + table, .transposed = true}, .x = x, .y = logits, .d_y = logits,
                     .d_x = decoder.d, .d_weight = l.grads + table);
}

/* ---- Backwards: s->d is the gradient of what goes out of a sublayer, and then of what went in ---- */

static void add_norm_grad(stack *s, block *b, int i) {
  learn_join_grad(&l, b->norm[i], s->rows, b->sum[i], NULL, s->d, NULL, s->d);
  learn_drop(&l, drop_place(s, b, i), s->rows, width, s->d, s->d_made);
}

static void attend_grad(stack *s, block *b, int i, const float *x, const float *memory) {
  add_norm_grad(s, b, i);
  attn_multi_head layer = layer_of(&b->attention[i], x, memory, NULL);
  layer.d_y = s->d_made, layer.d_x = s->d_rows, layer.d_memory = d_memory;
  learn_check(attn_multi_head_grad(&layer, &l.run));
  add(s->d, s->d_rows, s->rows * width);
  if (memory) add(encoder.d, d_memory, encoder.rows * width);
}

static void feed_forward_grad(stack *s, block *b, const float *x) {
  add_norm_grad(s, b, FEED_FORWARD);
  learn_map_grad(&l, b->down, s->rows, b->act, s->d_made, s->d_wide);
  learn_check(attn_activation_grad(ATTN_RELU, 4 * s->rows * width, b->wide, s->d_wide, s->d_wide, &l.run));
  learn_map_grad(&l, b->up, s->rows, x, s->d_wide, s->d_rows);
  add(s->d, s->d_rows, s->rows * width);
}

static void backward(stack *s, const float *memory) {
  for (int i = layers - 1; i >= 0; i--) {
    block *b = &s->block[i];
    const float *x = i > 0 ? s->block[i - 1].out[FEED_FORWARD] : s->embedded;
    feed_forward_grad(s, b, b->out[s->decodes ? CROSS : SELF]);
    if (s->decodes) attend_grad(s, b, CROSS, b->out[SELF], memory);
    attend_grad(s, b, SELF, x, NULL);
  }
  learn_drop(&l, drop_place(s, s->block, -1), s->rows, width, s->d, s->d);
  const attn_embedding e = embedding();
  learn_check(attn_embed_grad(&e, s->rows, s->tokens, s->d, l.grads + table, &l.run));
}

static double learn_batch(void) {
  double loss;
  const float *memory = forward(&encoder, NULL), *x = forward(&decoder, memory);
  const attn_dense layer = logits_layer(x);
  learn_check(attn_dense_run(&layer, &l.run));
  const attn_cross_entropy entropy =
      ATTN_STRUCT(attn_cross_entropy, .rows = decoder.rows, .classes = VOCABULARY, .logits = logits, .targets = targets,
                  .smoothing = (float)options[SMOOTHING].value, .d_logits = logits);
  learn_check(attn_cross_entropy_run(&entropy, &l.run, &loss));
  learn_check(attn_dense_grad(&layer, &l.run));
  memset(encoder.d, 0, (size_t)(encoder.rows * width) * sizeof *encoder.d);
  backward(&decoder, memory);
  backward(&encoder, NULL);
  return loss;
}

/* ---- Training ---- */

static void set_source(int64_t row, const sentence *s) {
  source_length[row] = s->length;
  for (int i = 0; i < encoder.seq; i++) encoder.tokens[row * encoder.seq + i] = i < s->length ? s->word[i] : END;
}

static void take_batch(int64_t step) {
  for (int64_t b = 0; b < batch; b++) {
    sentence source, target;
    draw_pair(l.drop.seed, (uint64_t)(step * batch + b), clauses, &source, &target);
    set_source(b, &source);
    for (int i = 0; i < decoder.seq; i++) {
      decoder.tokens[b * decoder.seq + i] = i == 0 ? BEGIN : i <= target.length ? target.word[i - 1] : END;
      targets[b * decoder.seq + i] = i < target.length ? target.word[i] : i == target.length ? END : -1;
    }
  }
}

static void train(int64_t step, const char *save) {
  const int64_t every = (int64_t)options[EVERY].value, warmup = (int64_t)options[WARMUP].value, first = step;
  const double begin = learn_now(), peak = options[RATE].value / sqrt((double)(width * warmup));
  for (; step < (int64_t)options[STEPS].value && !learn_interrupted; step++) {
    l.drop.offset = (uint64_t)step;
    take_batch(step);
    const double loss = learn_batch();
    const float rate = (float)attn_warmup_rate(peak, warmup, 0, step + 1);
    learn_step(&l, ATTN_STRUCT(attn_adamw, .rate = rate, .beta1 = 0.9f, .beta2 = 0.98f, .epsilon = 1e-9f), step + 1);
    if ((step + 1) % every) continue;
    printf("step %lld  loss %.4f  %.1f steps/s\n", (long long)step + 1, loss,
           (double)(step + 1 - first) / (learn_now() - begin));
    fflush(stdout);
  }
  learn_store(&l, save, step);
}

/* ---- Beam search; with one beam it is greedy ---- */

typedef struct beam {
  double score; /* sum of log probabilities */
  bool done;
  sentence made;
} beam;

/* Length penalty of Wu et al. 2016 (https://arxiv.org/abs/1609.08144, eq. 14), alpha 0.6 as in the paper. */
static double rank_of(const beam *b) { return b->score / pow((5 + (double)b->made.length) / 6, 0.6); }

static double log_sum(const float *x) {
  double most = -INFINITY, sum = 0;
  for (int c = 0; c < VOCABULARY; c++) most = fmax(most, (double)x[c]);
  for (int c = 0; c < VOCABULARY; c++) sum += exp((double)x[c] - most);
  return most + log(sum);
}

/* The best `count` continuations of a sentence's beams, by one word; `row` is the first beam's row of logits. */
static void grow(beam *beams, int count, const float *row) {
  double scores[MOST_BEAMS * VOCABULARY];
  beam grown[MOST_BEAMS];
  for (int i = 0; i < count; i++) {
    const float *x = row + i * decoder.seq * VOCABULARY;
    const double lse = log_sum(x);
    for (int c = 0; c < VOCABULARY; c++) {
      const double gain = beams[i].done ? (c == END ? 0 : -INFINITY) : (double)x[c] - lse;
      scores[i * VOCABULARY + c] = beams[i].score + gain;
    }
  }
  for (int i = 0; i < count; i++) {
    int best = 0;
    for (int c = 1; c < count * VOCABULARY; c++) best = scores[c] > scores[best] ? c : best;
    grown[i] = beams[best / VOCABULARY];
    grown[i].score = scores[best];
    scores[best] = -INFINITY;
    if (best % VOCABULARY == END)
      grown[i].done = true;
    else
      grown[i].made.word[grown[i].made.length++] = best % VOCABULARY;
  }
  memcpy(beams, grown, (size_t)count * sizeof *beams);
}

/* Translates batch / count sentences, whose sources are set, into the best beam of each. */
static void search(beam *beams, int count) {
  for (int64_t r = 0; r < batch; r++) beams[r] = (beam){.score = r % count ? -INFINITY : 0};
  const float *memory = forward(&encoder, NULL);
  for (int t = 0; t + 1 < decoder.seq; t++) {
    for (int64_t r = 0; r < batch; r++)
      for (int i = 0; i < decoder.seq; i++)
        decoder.tokens[r * decoder.seq + i] = i == 0 ? BEGIN : i <= beams[r].made.length ? beams[r].made.word[i - 1] : END;
    const attn_dense layer = logits_layer(forward(&decoder, memory));
    learn_check(attn_dense_run(&layer, &l.run));
    for (int64_t r = 0; r + count <= batch; r += count) grow(beams + r, count, logits + (r * decoder.seq + t) * VOCABULARY);
  }
  for (int64_t r = 0; r + count <= batch; r += count)
    for (int i = 1; i < count; i++)
      if (rank_of(&beams[r + i]) > rank_of(&beams[r])) beams[r] = beams[r + i];
}

/* Translates new sentences, and returns how many percent are exact. */
static double evaluate(int count) {
  const int64_t most = (int64_t)options[SENTENCES].value;
  beam *beams = malloc((size_t)batch * sizeof *beams);
  if (!beams) learn_fail("out of memory");
  bleu found = {0};
  for (int64_t n = 0; n < most && !learn_interrupted;) {
    sentence source, right;
    const int64_t first = n;
    for (int64_t r = 0; r < batch; r++) {
      draw_pair(l.drop.seed + 1, (uint64_t)(first + r / count), clauses, &source, &right);
      set_source(r, &source);
    }
    search(beams, count);
    for (int64_t r = 0; r + count <= batch && n < most; r += count, n++) {
      draw_pair(l.drop.seed + 1, (uint64_t)n, clauses, &source, &right);
      bleu_add(&found, &beams[r].made, &right);
      if (n < 3) print_sentence(&source), printf("  ->"), print_sentence(&beams[r].made), putchar('\n');
    }
  }
  free(beams);
  const double exact = 100 * found.exact / found.sentences;
  printf("%d beam%s: %.1f %% of %.0f new sentences exact, BLEU %.2f\n", count, count > 1 ? "s" : "", exact, found.sentences,
         bleu_of(&found));
  return exact;
}

int main(int arguments, char **argument) {
  const char *save = NULL;
  for (int i = 1; i < arguments; i++)
    if (!learn_read_option(argument[i], options, OPTIONS, &save)) learn_fail("arguments are option=value");
  batch = (int64_t)options[BATCH].value, width = (int64_t)options[WIDTH].value, heads = (int64_t)options[HEADS].value;
  layers = (int)options[LAYERS].value;
  clauses = (int)options[CLAUSES_OF].value;
  const int beams = (int)options[BEAMS].value;
  if (heads < 1 || width < 1 || width % heads || layers < 1 || layers > MOST_LAYERS || clauses < 1 || clauses > CLAUSES ||
      options[WARMUP].value < 1 || options[EVERY].value < 1 || beams < 1 || beams > MOST_BEAMS || batch < beams)
    learn_fail("width is a multiple of heads, layers in 1..8, clauses in 1..3, beams in 1..64 and at most batch");
  l.drop = ATTN_STRUCT(attn_dropout, .seed = (uint64_t)options[SEED].value);
  l.run = ATTN_STRUCT(attn_options, .threads = (int)options[THREADS].value);
  begin_model();
  printf("%lld parameters\n", (long long)l.count);
  const int64_t done = learn_load(&l, save);
  learn_watch();
  set_dropout((float)options[DROPOUT].value);
  train(done, save);
  set_dropout(0);
  if (options[SENTENCES].value < 1) return 0;
  const double greedy = evaluate(1), best = beams > 1 ? evaluate(beams) : greedy;
  if (learn_interrupted) return 130;
  return fmin(greedy, best) >= options[EXACT].value ? 0 : 1;
}
