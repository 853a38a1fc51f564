/* SPDX-License-Identifier: MIT */
/* What every kernel of this build takes and refuses, for docs/kernels.md: asks kernel->rejects about one problem per
 * feature, so that neither the CPU nor a cap of tiers matters. scripts/kernel_table.py turns the lines into the document.
 *
 *     S <title> <heading of column> ...                   a table
 *     F <title> <heading> <what it means>                 its features
 *     K <kernel> <algorithm> <tier> <library> <summary>   a kernel
 *     R <title> <kernel> <cell> ...                       its row; a cell is "yes" or the number of a reason
 *     N <kernel> <number> <reason>                        why not
 *
 * with tabs between the words. */
#include <stdio.h>
#include <string.h>

#include "registry.h"

/* ---- Features: each changes the base problem, two heads of 4 queries and 64 keys with 64 dimensions ------------------ */

enum { QUERIES = 4, KEYS = 64, DIM = 64, MOST_REASONS = 32 };

typedef struct feature {
  const char *title, *heading, *meaning;
  void (*apply)(attn_problem *);
} feature;

static void set_types(attn_problem *p, attn_dtype q, attn_dtype kv, attn_dtype o) {
  p->dtype_q = q;
  p->dtype_kv = kv;
  p->dtype_o = o;
}

static void f32(attn_problem *p) { set_types(p, ATTN_F32, ATTN_F32, ATTN_F32); }
static void f16(attn_problem *p) { set_types(p, ATTN_F16, ATTN_F16, ATTN_F16); }
static void bf16(attn_problem *p) { set_types(p, ATTN_BF16, ATTN_BF16, ATTN_BF16); }
static void f32_f16(attn_problem *p) { set_types(p, ATTN_F32, ATTN_F16, ATTN_F32); }
static void f32_bf16(attn_problem *p) { set_types(p, ATTN_F32, ATTN_BF16, ATTN_F32); }
static void bf16_f32(attn_problem *p) { set_types(p, ATTN_BF16, ATTN_BF16, ATTN_F32); }

/* The same type and options, another shape. */
static void reshape(attn_problem *p, int64_t heads, int64_t heads_kv, int64_t seq_q, int64_t seq_k, int64_t dim_qk,
                    int64_t dim_v) {
  const attn_problem old = *p;
  attn_problem_init(p, 1, heads, heads_kv, seq_q, seq_k, dim_qk, dim_v);
  set_types(p, old.dtype_q, old.dtype_kv, old.dtype_o);
}

static void grouped(attn_problem *p) { reshape(p, 8, 2, QUERIES, KEYS, DIM, DIM); }
static void multi_query(attn_problem *p) { reshape(p, 4, 1, QUERIES, KEYS, DIM, DIM); }
static void one_query(attn_problem *p) { reshape(p, 2, 2, 1, KEYS, DIM, DIM); }
static void many_queries(attn_problem *p) { reshape(p, 2, 2, 256, 256, DIM, DIM); }
static void no_keys(attn_problem *p) { reshape(p, 2, 2, QUERIES, 0, DIM, DIM); }
static void odd_dims(attn_problem *p) { reshape(p, 2, 2, QUERIES, KEYS, 37, 37); }
static void other_dim_v(attn_problem *p) { reshape(p, 2, 2, QUERIES, KEYS, 192, 128); }
static void wide(attn_problem *p) { reshape(p, 2, 2, QUERIES, KEYS, 576, 512); }

static void each_stride(attn_problem *p, int64_t factor) {
  attn_strides *const strides[] = {&p->q_stride, &p->k_stride, &p->v_stride, &p->o_stride};
  for (int i = 0; i < 4; i++) {
    strides[i]->b *= factor;
    strides[i]->h *= factor;
    strides[i]->s *= factor;
    strides[i]->d *= factor;
  }
}

static void row_gaps(attn_problem *p) {
  each_stride(p, 2);
  p->q_stride.d = p->k_stride.d = p->v_stride.d = p->o_stride.d = 1;
}
static void element_gaps(attn_problem *p) { each_stride(p, 2); }
static void backwards(attn_problem *p) {
  row_gaps(p);
  p->q_stride.s *= -1;
  p->k_stride.s *= -1;
  p->v_stride.s *= -1;
  p->o_stride.s *= -1;
}
static void shared_kv(attn_problem *p) { p->k_stride.h = p->v_stride.h = 0; }

static void causal(attn_problem *p) { attn_problem_set_causal(p, ATTN_ALIGN_TOP_LEFT); }
static void bottom_right(attn_problem *p) { attn_problem_set_causal(p, ATTN_ALIGN_BOTTOM_RIGHT); }
static void offset(attn_problem *p) { attn_problem_set_causal(p, ATTN_ALIGN_OFFSET); }
static void window(attn_problem *p) { p->window_left = p->window_right = 8; }
static void mask(attn_problem *p) { p->uses |= ATTN_USE_MASK; }
static void bias(attn_problem *p) { p->uses |= ATTN_USE_BIAS; }
static void kv_len(attn_problem *p) { p->uses |= ATTN_USE_KV_LEN; }
static void q_len(attn_problem *p) { p->uses |= ATTN_USE_Q_LEN; }
static void row_len(attn_problem *p) { p->uses |= ATTN_USE_ROW_LEN; }
static void varlen(attn_problem *p) { attn_problem_set_varlen(p, p->seq_q, p->seq_k); }

static void negative_scale(attn_problem *p) { p->scale = -0.5f; }
static void softcap(attn_problem *p) { p->softcap = 20; }
static void alibi(attn_problem *p) { p->uses |= ATTN_USE_ALIBI; }
static void sinks(attn_problem *p) { p->uses |= ATTN_USE_SINKS; }
static void lse(attn_problem *p) { p->uses |= ATTN_USE_LSE; }
static void additive(attn_problem *p) {
  p->score = ATTN_SCORE_ADDITIVE;
  p->uses |= ATTN_USE_SCORE_WEIGHT;
}
static void gaussian(attn_problem *p) { p->score = ATTN_SCORE_GAUSSIAN; }
static void precomputed(attn_problem *p) { p->score = ATTN_SCORE_PRECOMPUTED; }

static const char types[] = "Types and memory", shapes[] = "Shapes", keys[] = "Which keys", scores[] = "Scores and outputs";

static const feature features[] = {
    {types, "f32", "float32 throughout", f32},
    {types, "f16", "float16 Q, K, V and O", f16},
    {types, "bf16", "bfloat16 Q, K, V and O", bf16},
    {types, "f32+f16", "float32 Q and O, float16 K and V", f32_f16},
    {types, "f32+bf16", "float32 Q and O, bfloat16 K and V", f32_bf16},
    {types, "bf16→f32", "bfloat16 Q, K and V, float32 O", bf16_f32},
    {types, "bshd", "`[batch][seq][heads][dim]`", attn_problem_set_bshd},
    {types, "row gaps", "rows farther apart than they are long", row_gaps},
    {types, "element gaps", "a stride of the head dimension that is not 1", element_gaps},
    {types, "backwards", "negative strides", backwards},
    {types, "broadcast", "K and V shared by a stride of 0", shared_kv},
    {shapes, "GQA", "8 query heads, 2 KV heads", grouped},
    {shapes, "MQA", "one KV head", multi_query},
    {shapes, "one query", "seq_q = 1", one_query},
    {shapes, "many queries", "seq_q = 256", many_queries},
    {shapes, "no keys", "seq_k = 0", no_keys},
    {shapes, "odd dim", "dim_qk = dim_v = 37", odd_dims},
    {shapes, "dim_qk ≠ dim_v", "192 and 128", other_dim_v},
    {shapes, "wide", "dim_qk = 576, dim_v = 512", wide},
    {keys, "causal", "top-left", causal},
    {keys, "bottom-right", "causal, `ATTN_ALIGN_BOTTOM_RIGHT`", bottom_right},
    {keys, "offset", "causal, `ATTN_ALIGN_OFFSET`", offset},
    {keys, "window", "8 keys to either side", window},
    {keys, "mask", "bool mask", mask},
    {keys, "bias", "added; −∞ masks", bias},
    {keys, "kv_len", "keys per batch", kv_len},
    {keys, "q_len", "queries per batch", q_len},
    {keys, "row_len", "keys per row", row_len},
    {keys, "varlen", "packed sequences", varlen},
    {scores, "scale", "negative", negative_scale},
    {scores, "softcap", "before the bias", softcap},
    {scores, "ALiBi", "a slope per head", alibi},
    {scores, "sinks", "a logit per head", sinks},
    {scores, "LSE", "written too", lse},
    {scores, "additive", "score function", additive},
    {scores, "gaussian", "score function", gaussian},
    {scores, "precomputed", "given scores", precomputed},
};
enum { FEATURES = sizeof features / sizeof *features };

/* ---- Asking --------------------------------------------------------------------------------------------------------- */

static const char *refusal(const attn_kernel *kernel, const attn_problem *p, char *buffer, size_t bytes) {
  if (attn_problem_validate(p) != ATTN_OK) return attn_last_error(); /* a feature of this table that is no problem */
  return kernel->rejects(p, buffer, bytes);
}

/* The base problem in the first type that the kernel takes: a kernel for bfloat16 alone is not asked about masks in
 * float32. */
static attn_problem base_of(const attn_kernel *kernel) {
  char buffer[400];
  attn_problem p;
  for (int i = 0; i < FEATURES && features[i].title == types; i++) {
    attn_problem_init(&p, 1, 2, 2, QUERIES, KEYS, DIM, DIM);
    features[i].apply(&p);
    if (!refusal(kernel, &p, buffer, sizeof buffer)) return p;
  }
  attn_problem_init(&p, 1, 2, 2, QUERIES, KEYS, DIM, DIM);
  return p;
}

/* The number of a reason, from 1; new ones are printed. */
static int number_of(const char *kernel, const char *reason, char (*known)[400], int *count) {
  for (int i = 0; i < *count; i++)
    if (!strcmp(known[i], reason)) return i + 1;
  if (*count == MOST_REASONS) return MOST_REASONS;
  snprintf(known[*count], sizeof *known, "%s", reason);
  printf("N\t%s\t%d\t%s\n", kernel, ++*count, reason);
  return *count;
}

static void print_kernel(const attn_kernel *kernel) {
  const attn_kernel_info *info = attn_kernel_find(kernel->info.name); /* which also names the version of a library */
  const attn_problem base = base_of(kernel);
  char known[MOST_REASONS][400], buffer[400], row[FEATURES * 4] = "";
  int count = 0;
  printf("K\t%s\t%s\t%s\t%s\t%s\n", info->name, info->algorithm, info->isa, info->library, info->summary);
  for (int i = 0; i < FEATURES; i++) {
    attn_problem p = base;
    features[i].apply(&p);
    const char *reason = refusal(kernel, &p, buffer, sizeof buffer);
    const size_t used = strlen(row);
    if (reason)
      snprintf(row + used, sizeof row - used, "\t%d", number_of(info->name, reason, known, &count));
    else
      snprintf(row + used, sizeof row - used, "\tyes");
    if (i + 1 < FEATURES && features[i + 1].title == features[i].title) continue;
    printf("R\t%s\t%s%s\n", features[i].title, info->name, row);
    row[0] = 0;
  }
}

static void print_headings(void) {
  for (int i = 0; i < FEATURES; i++) {
    const bool first = i == 0 || features[i - 1].title != features[i].title;
    if (first) printf("%sS\t%s", i ? "\n" : "", features[i].title);
    printf("\t%s", features[i].heading);
  }
  putchar('\n');
  for (int i = 0; i < FEATURES; i++) printf("F\t%s\t%s\t%s\n", features[i].title, features[i].heading, features[i].meaning);
}

int main(void) {
  const attn_kernel *kernel;
  print_headings();
  for (int i = 0; (kernel = attn_registry_get(i)); i++) print_kernel(kernel);
  return ferror(stdout) ? 5 : 0;
}
