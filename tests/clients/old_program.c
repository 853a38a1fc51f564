/* SPDX-License-Identifier: MIT */
/* A program as it was compiled for the first version of the ABI, for ever: it includes no header, and declares what that
 * header held, as far as programs cannot do without it. It runs with the library of today, which must give the right answer.
 * Never change it to suit the library. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct strides {
  int64_t b, h, s, d;
} strides;

typedef struct problem {
  size_t struct_size;
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v;
  int dtype_q, dtype_kv, dtype_o;
  strides q, k, v, o, lse, bias, mask, scores;
  int score;
  float scale, softcap;
  int align;
  int64_t window_left, window_right;
  uint32_t uses;
} problem;

typedef struct args {
  size_t struct_size;
  const void *q, *k, *v;
  void *o;
} args;

typedef struct options {
  size_t struct_size;
  const char *kernel, *max_isa;
  int threads;
} options;

typedef struct plan plan;
void attn_problem_init(problem *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void attn_problem_set_causal(problem *, int);
int attn_plan_create(const problem *, const options *, plan **);
size_t attn_plan_workspace(const plan *);
int attn_plan_run(const plan *, const args *, void *, size_t);
void attn_plan_destroy(plan *);
int attn_sdpa(const problem *, const args *);
const char *attn_last_error(void);
const char *attn_version(void);

enum { HEADS = 2, QUERIES = 5, KEYS = 7, DIM = 6, MOST = HEADS * KEYS * DIM };

static float q[MOST], k[MOST], v[MOST];

static void fill(float *x, unsigned seed) {
  for (int i = 0; i < MOST; i++) x[i] = sinf((float)(seed + (unsigned)i * 7));
}

/* Softmax over the keys up to `query`, in plain words. */
static double expected(int head, int query, int d) {
  double sum = 0, out = 0;
  for (int j = 0; j <= query; j++) {
    double score = 0;
    for (int c = 0; c < DIM; c++)
      score += (double)q[(head * QUERIES + query) * DIM + c] * (double)k[(head * KEYS + j) * DIM + c];
    const double weight = exp(score / sqrt(DIM));
    sum += weight;
    out += weight * (double)v[(head * KEYS + j) * DIM + d];
  }
  return out / sum;
}

static int compare(const char *what, const float *o) {
  double worst = 0;
  for (int i = 0; i < HEADS * QUERIES * DIM; i++)
    worst = fmax(worst, fabs((double)o[i] - expected(i / DIM / QUERIES, i / DIM % QUERIES, i % DIM)));
  printf("%s with libattn %s: largest error %.1e\n", what, attn_version(), worst);
  return worst < 1e-5 ? 0 : 1;
}

static int must(int status) {
  if (status) printf("WRONG: status %d, %s\n", status, attn_last_error());
  return status;
}

int main(void) {
  fill(q, 1), fill(k, 2), fill(v, 3);
  problem p;
  memset(&p, 0xff, sizeof p);
  p.struct_size = sizeof p; /* like the macro attn_problem_init */
  attn_problem_init(&p, 1, HEADS, HEADS, QUERIES, KEYS, DIM, DIM);
  attn_problem_set_causal(&p, 0);
  float o[HEADS * QUERIES * DIM] = {0};
  const args a = {sizeof a, q, k, v, o};
  if (must(attn_sdpa(&p, &a)) || compare("attn_sdpa", o)) return 1;

  memset(o, 0, sizeof o);
  plan *made;
  const options wanted = {sizeof wanted, "naive_c", NULL, 1};
  if (must(attn_plan_create(&p, &wanted, &made))) return 1;
  const size_t bytes = attn_plan_workspace(made);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  const int failed = must(attn_plan_run(made, &a, workspace, bytes)) || compare("a plan", o);
  attn_plan_destroy(made);
  free(workspace);
  return failed;
}
