/* SPDX-License-Identifier: MIT */
/* Prints the features that every kernel of this build takes and refuses, for docs/kernels.md. It calls kernel->rejects for
 * one problem per feature, so neither the CPU nor a cap of tiers matters. scripts/make/kernel_table.py makes the document of
 * it.
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

#include "kernels/common/problem/operation.h"
#include "src/registry/registry.h"

/* ---- Features: each changes the base problem, two heads of 4 queries and 64 keys with 64 dimensions ------------------ */

enum { QUERIES = 4, KEYS = 64, DIM = 64, MOST_REASONS = 32 };

static void set_types(attn_problem *p, attn_dtype q, attn_dtype kv, attn_dtype o) {
  p->dtype_q = q;
  p->dtype_kv = kv;
  p->dtype_o = o;
}

/* Another shape with the same types. */
static void reshape(attn_problem *p, int64_t heads, int64_t heads_kv, int64_t seq_q, int64_t seq_k, int64_t dim_qk,
                    int64_t dim_v) {
  const attn_problem old = *p;
  attn_problem_init(p, 1, heads, heads_kv, seq_q, seq_k, dim_qk, dim_v);
  set_types(p, old.dtype_q, old.dtype_kv, old.dtype_o);
}

static void multiply_strides(attn_problem *p, attn_strides factor) {
  attn_strides *const strides[] = {&p->q_stride, &p->k_stride, &p->v_stride, &p->o_stride};
  for (int i = 0; i < 4; i++) {
    strides[i]->b *= factor.b;
    strides[i]->h *= factor.h;
    strides[i]->s *= factor.s;
    strides[i]->d *= factor.d;
  }
}

static const char types[] = "Types and memory", shapes[] = "Shapes", keys[] = "Which keys", scores[] = "Scores and outputs";

/* Title of the table, name, heading of the column, meaning, change to the base problem. */
#define FEATURE_LIST(X)                                                                                                    \
  X(types, f32, "f32", "float32 throughout", set_types(p, ATTN_F32, ATTN_F32, ATTN_F32))                                   \
  X(types, f16, "f16", "float16 Q, K, V and O", set_types(p, ATTN_F16, ATTN_F16, ATTN_F16))                                \
  X(types, bf16, "bf16", "bfloat16 Q, K, V and O", set_types(p, ATTN_BF16, ATTN_BF16, ATTN_BF16))                          \
  X(types, f32_f16, "f32+f16", "float32 Q and O, float16 K and V", set_types(p, ATTN_F32, ATTN_F16, ATTN_F32))             \
  X(types, f32_bf16, "f32+bf16", "float32 Q and O, bfloat16 K and V", set_types(p, ATTN_F32, ATTN_BF16, ATTN_F32))         \
  X(types, f32_e4m3, "f32+e4m3", "float32 Q and O, K and V of 8 bits, e4m3",                                               \
    set_types(p, ATTN_F32, ATTN_F8_E4M3, ATTN_F32))                                                                        \
  X(types, bf16_e5m2, "bf16+e5m2", "bfloat16 Q and O, K and V of 8 bits, e5m2",                                            \
    set_types(p, ATTN_BF16, ATTN_F8_E5M2, ATTN_BF16))                                                                      \
  X(types, f32_i8, "f32+i8", "float32 Q and O, K and V of 8 bits, integers", set_types(p, ATTN_F32, ATTN_I8, ATTN_F32))    \
  X(types, f32_q8_0, "f32+q8_0", "float32 Q and O, K and V in blocks, q8_0", set_types(p, ATTN_F32, ATTN_Q8_0, ATTN_F32))  \
  X(types, bf16_q4_0, "bf16+q4_0", "bfloat16 Q and O, K and V in blocks, q4_0",                                            \
    set_types(p, ATTN_BF16, ATTN_Q4_0, ATTN_BF16))                                                                         \
  X(types, bf16_f32, "bf16\u2192f32", "bfloat16 Q, K and V, float32 O", set_types(p, ATTN_BF16, ATTN_BF16, ATTN_F32))      \
  X(types, bshd, "bshd", "`[batch][seq][heads][dim]`", attn_problem_set_bshd(p))                                           \
  X(types, row_gaps, "row gaps", "rows farther apart than they are long", multiply_strides(p, (attn_strides){2, 2, 2, 1})) \
  X(types, element_gaps, "element gaps", "a stride of the head dimension that is not 1",                                   \
    multiply_strides(p, (attn_strides){2, 2, 2, 2}))                                                                       \
  X(types, backwards, "backwards", "negative strides", multiply_strides(p, (attn_strides){2, 2, -2, 1}))                   \
  X(types, shared_kv, "broadcast", "K and V shared by a stride of 0", p->k_stride.h = p->v_stride.h = 0)                   \
  X(types, scaled, "scales", "`ATTN_USE_KV_SCALES`", p->uses |= ATTN_USE_KV_SCALES)                                        \
  X(shapes, grouped, "GQA", "8 query heads, 2 KV heads", reshape(p, 8, 2, QUERIES, KEYS, DIM, DIM))                        \
  X(shapes, multi_query, "MQA", "one KV head", reshape(p, 4, 1, QUERIES, KEYS, DIM, DIM))                                  \
  X(shapes, one_query, "one query", "seq_q = 1", reshape(p, 2, 2, 1, KEYS, DIM, DIM))                                      \
  X(shapes, many_queries, "many queries", "seq_q = 256", reshape(p, 2, 2, 256, 256, DIM, DIM))                             \
  X(shapes, no_keys, "no keys", "seq_k = 0", reshape(p, 2, 2, QUERIES, 0, DIM, DIM))                                       \
  X(shapes, odd_dims, "odd dim", "dim_qk = dim_v = 37", reshape(p, 2, 2, QUERIES, KEYS, 37, 37))                           \
  X(shapes, other_dim_v, "dim_qk \u2260 dim_v", "192 and 128", reshape(p, 2, 2, QUERIES, KEYS, 192, 128))                  \
  X(shapes, wide, "wide", "dim_qk = 576, dim_v = 512", reshape(p, 2, 2, QUERIES, KEYS, 576, 512))                          \
  X(keys, causal, "causal", "top-left", attn_problem_set_causal(p, ATTN_ALIGN_TOP_LEFT))                                   \
  X(keys, bottom_right, "bottom-right", "causal, `ATTN_ALIGN_BOTTOM_RIGHT`",                                               \
    attn_problem_set_causal(p, ATTN_ALIGN_BOTTOM_RIGHT))                                                                   \
  X(keys, offset, "offset", "causal, `ATTN_ALIGN_OFFSET`", attn_problem_set_causal(p, ATTN_ALIGN_OFFSET))                  \
  X(keys, window, "window", "8 keys to either side", p->window_left = p->window_right = 8)                                 \
  X(keys, window_first, "first keys", "which stay beside a window", (p->window_left = 8, p->window_first = 4))             \
  X(keys, piece, "piece", "`key_begin` and `key_end`", (p->key_begin = 8, p->key_end = 40))                                \
  X(keys, mask, "mask", "bool mask", p->uses |= ATTN_USE_MASK)                                                             \
  X(keys, newest_mask, "newest mask", "bool mask of the newest keys alone", attn_problem_set_newest_mask(p, 8))            \
  X(keys, bias, "bias", "added; \u2212\u221e masks", p->uses |= ATTN_USE_BIAS)                                             \
  X(keys, key_blocks, "key blocks", "lists of blocks of keys to visit", attn_problem_set_key_blocks(p, 128, 128))          \
  X(keys, kv_len, "kv_len", "keys per batch", p->uses |= ATTN_USE_KV_LEN)                                                  \
  X(keys, q_len, "q_len", "queries per batch", p->uses |= ATTN_USE_Q_LEN)                                                  \
  X(keys, row_len, "row_len", "keys per row", p->uses |= ATTN_USE_ROW_LEN)                                                 \
  X(keys, varlen, "varlen", "packed sequences", attn_problem_set_varlen(p, p->seq_q, p->seq_k))                            \
  X(keys, pages, "pages", "K and V in pages", attn_problem_set_pages(p, 16, 8))                                            \
  X(scores, negative_scale, "scale", "negative", p->scale = -0.5f)                                                         \
  X(scores, softcap, "softcap", "before the bias", p->softcap = 20)                                                        \
  X(scores, alibi, "ALiBi", "a slope per head", p->uses |= ATTN_USE_ALIBI)                                                 \
  X(scores, sinks, "sinks", "a logit per head", p->uses |= ATTN_USE_SINKS)                                                 \
  X(scores, lse, "LSE", "written too", p->uses |= ATTN_USE_LSE)                                                            \
  X(scores, additive, "additive", "score function", (p->score = ATTN_SCORE_ADDITIVE, p->uses |= ATTN_USE_SCORE_WEIGHT))    \
  X(scores, gaussian, "gaussian", "score function", p->score = ATTN_SCORE_GAUSSIAN)                                        \
  X(scores, precomputed, "precomputed", "given scores", p->score = ATTN_SCORE_PRECOMPUTED)                                 \
  X(scores, dropped, "dropout", "of weights", p->dropout = 0.1f)                                                           \
  X(scores, gradients, "gradients", "of Q, K and V", attn_problem_set_backward(p))                                         \
  X(scores, other_gradients, "all gradients", "of bias, ALiBi slopes and sinks, too",                                      \
    (p->uses |= ATTN_USE_BIAS | ATTN_USE_ALIBI | ATTN_USE_SINKS | ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS,   \
     attn_problem_set_backward(p)))

#define APPLY(title, name, heading, meaning, change) \
  static void name(attn_problem *p) { change; }
FEATURE_LIST(APPLY)

#define ROW(title, name, heading, meaning, change) {title, heading, meaning, name},
static const struct {
  const char *title, *heading, *meaning;
  void (*apply)(attn_problem *);
} features[] = {FEATURE_LIST(ROW)};
enum { FEATURES = sizeof features / sizeof *features };

/* ---- Asking --------------------------------------------------------------------------------------------------------- */

/* Asks a kernel of gradients for those of the problem. */
static const char *refusal(const attn_kernel *kernel, const attn_problem *problem, char *buffer, size_t bytes) {
  attn_problem p = *problem;
  if (kernel->operation == ATTN_BACKWARD) attn_problem_set_backward(&p);
  if (p.d_k_stride.h == 0) (void)attn_operand_set_dense(&p, ATTN_OPERAND_D_K);
  if (p.d_v_stride.h == 0) (void)attn_operand_set_dense(&p, ATTN_OPERAND_D_V);
  if (attn_problem_validate(problem) != ATTN_OK) return attn_last_error(); /* a mistake in FEATURE_LIST */
  if (attn_problem_validate(&p) != ATTN_OK) return "it is no problem of gradients (semantics.md)";
  return attn_kernel_refusal(kernel, &p, buffer, bytes);
}

/* The base problem with the first types that the kernel takes, so that a kernel for bfloat16 alone is asked about masks in
 * bfloat16. */
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

/* The number of a reason, from 1. Prints new reasons. */
static int number_of(const char *kernel, const char *reason, char (*known)[400], int *count) {
  for (int i = 0; i < *count; i++)
    if (!strcmp(known[i], reason)) return i + 1;
  if (*count == MOST_REASONS) return MOST_REASONS;
  snprintf(known[*count], sizeof *known, "%s", reason);
  printf("N\t%s\t%d\t%s\n", kernel, ++*count, reason);
  return *count;
}

static void print_kernel(const attn_kernel *kernel) {
  const attn_kernel_info *info = attn_kernel_find(kernel->info.name); /* names the version of a library, too */
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
