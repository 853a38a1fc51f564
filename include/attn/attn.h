/* SPDX-License-Identifier: MIT */
/* libattn: attention on the CPU, in many implementations behind one interface.
 *
 * One call computes, for every batch b, query head h and query i,
 *
 *     o = sum_j p_j v_j,   p = softmax over the allowed keys j of s_j,   s_j = scale <q_i, k_j> + ...
 *
 * (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, eq. 1). docs/semantics.md defines every option.
 *
 *     #include <attn/attn.h>
 *
 *     attn_problem problem;
 *     attn_problem_init(&problem, 1, 8, 8, 512, 512, 64, 64);   // batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v
 *     attn_args args = {.q = q, .k = k, .v = v, .o = o};        // float [batch][heads][seq][dim]
 *     if (attn_sdpa(&problem, &args) != ATTN_OK) puts(attn_last_error());
 *
 * To run one shape many times, make a plan once and run it with a workspace of your own; to choose the kernel, name it in
 * attn_options. A plan is immutable: any number of threads may run it at once, each with its own workspace.
 *
 * The library never aborts, prints (unless ATTN_VERBOSE=1 asks for it), pins threads, or writes outside what the strides
 * describe. It reads these environment variables when a plan is created: ATTN_KERNEL (a kernel name, used where
 * attn_options names none), ATTN_MAX_ISA (c, avx2, avx512, ...: take no higher tier) and ATTN_VERBOSE.
 *
 * C11 or later, C++11 or later. All sizes are in elements and all pointers in host memory unless said otherwise.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

#if defined(ATTN_SHARED) && defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------------------ */

typedef enum attn_status {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT,    /* a field holds what it must not hold */
  ATTN_UNSUPPORTED,         /* legal, but no kernel (or not the one asked for) takes it here */
  ATTN_UNKNOWN_KERNEL,      /* no kernel of that name is registered */
  ATTN_WORKSPACE_TOO_SMALL, /* fewer bytes than attn_plan_workspace() says, or not 64-byte aligned */
  ATTN_OUT_OF_MEMORY,
} attn_status;

/* "ATTN_OK", ...; never NULL. */
ATTN_API const char *attn_status_name(attn_status status);

/* One sentence on the last failed call of this thread: the field, its value and what would be right. "" if none failed.
 * Valid until the next failing call of this thread. */
ATTN_API const char *attn_last_error(void);

/* "0.1.0" */
ATTN_API const char *attn_version(void);

/* ---- The problem: shape and semantics, no data -------------------------------------------------------------------- */

typedef enum attn_dtype {
  ATTN_F32 = 0,
  ATTN_F16,  /* IEEE binary16 */
  ATTN_BF16, /* bfloat16: the upper half of a float32 */
} attn_dtype;

typedef enum attn_score {
  ATTN_SCORE_DOT = 0,     /* scale <q, k> */
  ATTN_SCORE_ADDITIVE,    /* sum_d w_d tanh(q_d + k_d): Bahdanau et al. 2015, q and k already projected; takes no scale */
  ATTN_SCORE_GAUSSIAN,    /* -1/2 sum_d (w_d (q_d - k_d))^2: Nadaraya-Watson regression; takes no scale */
  ATTN_SCORE_PRECOMPUTED, /* args.scores holds S (Synthesizer, Tay et al. 2021); q, k are not read; takes no scale */
} attn_score;

/* Where query 0 stands among the keys. Query i stands at key position i + offset; causal masks, windows and ALiBi
 * distances all use that position. */
typedef enum attn_align {
  ATTN_ALIGN_TOP_LEFT = 0, /* offset 0 */
  ATTN_ALIGN_BOTTOM_RIGHT, /* offset = kv_len - q_len of the sequence: the last query meets the last key */
  ATTN_ALIGN_OFFSET,       /* offset = args.offsets[batch]: decoding with a KV cache */
} attn_align;

/* What attn_args will bring; a bit set here makes the pointer of the same name required, a bit not set makes it ignored. */
enum {
  ATTN_USE_LSE = 1 << 0,          /* write args.lse */
  ATTN_USE_BIAS = 1 << 1,         /* args.bias: added to the scores; -inf masks */
  ATTN_USE_MASK = 1 << 2,         /* args.mask: key allowed where nonzero */
  ATTN_USE_KV_LEN = 1 << 3,       /* args.kv_len: keys of each batch */
  ATTN_USE_Q_LEN = 1 << 4,        /* args.q_len: queries of each batch */
  ATTN_USE_ROW_LEN = 1 << 5,      /* args.row_len: keys of each query row; TOP_LEFT or OFFSET alignment only */
  ATTN_USE_VARLEN = 1 << 6,       /* args.cu_seqlens_q/k: packed sequences; excludes KV_LEN, Q_LEN and ROW_LEN */
  ATTN_USE_ALIBI = 1 << 7,        /* args.alibi_slopes */
  ATTN_USE_SINKS = 1 << 8,        /* args.sinks */
  ATTN_USE_SCORE_WEIGHT = 1 << 9, /* args.score_weight: required by ADDITIVE, optional for GAUSSIAN (default 1) */
};

/* Distance in elements between neighbours along batch, head, sequence and head dimension. Any sign; 0 broadcasts (not in o
 * and lse, which must not overlap themselves). */
typedef struct attn_strides {
  int64_t b, h, s, d;
} attn_strides;

/* Likewise for arrays indexed [batch][heads_q][seq_q][seq_k]; 0 broadcasts. */
typedef struct attn_score_strides {
  int64_t b, h, q, k;
} attn_score_strides;

typedef struct attn_problem {
  size_t struct_size; /* set by attn_problem_init; lets later versions add fields */

  int64_t batch;    /* >= 0 */
  int64_t heads_q;  /* >= 1, a multiple of heads_kv */
  int64_t heads_kv; /* >= 1; query head h reads KV head h / (heads_q / heads_kv) */
  int64_t seq_q;    /* >= 0; with VARLEN the longest sequence */
  int64_t seq_k;    /* >= 0; with VARLEN the longest sequence */
  int64_t dim_qk;   /* >= 1 */
  int64_t dim_v;    /* >= 1 */

  attn_dtype dtype_q;  /* F32, or dtype_kv */
  attn_dtype dtype_kv; /* of k and v */
  attn_dtype dtype_o;  /* F32, or dtype_q */

  attn_strides q_stride, k_stride, v_stride, o_stride; /* with VARLEN .b is ignored: .s walks the packed tokens */
  attn_strides lse_stride;                             /* .d is ignored */
  attn_score_strides bias_stride, mask_stride, scores_stride;

  attn_score score;
  float scale;   /* of DOT scores; default 1/sqrt(dim_qk); 0 and negative are legal */
  float softcap; /* > 0: s = softcap tanh(s / softcap), before bias; 0 = off */

  attn_align align;
  int64_t window_left;  /* key j allowed only if j >= i + offset - window_left;  -1 = open */
  int64_t window_right; /* key j allowed only if j <= i + offset + window_right; -1 = open; causal is 0 */

  uint32_t uses;                 /* ATTN_USE_... */
  int64_t total_q, total_k;      /* VARLEN: tokens that q, o, lse and k, v hold; cu_seqlens may not exceed them */
  int64_t score_weight_stride_h; /* from one query head's score_weight [dim_qk] to the next's; 0 = shared */
} attn_problem;

/* Fills in the shape, dense [batch][heads][seq][dim] strides for every tensor, float32, scale 1/sqrt(dim_qk), nothing masked,
 * no LSE. Checks nothing: attn_plan_create() does. */
ATTN_API void attn_problem_init(attn_problem *problem, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q,
                                int64_t seq_k, int64_t dim_qk, int64_t dim_v);

/* Causal masking: each query sees the keys up to its own position. Sets align and window_right = 0. */
ATTN_API void attn_problem_set_causal(attn_problem *problem, attn_align align);

/* Dense [batch][seq][heads][dim] strides for q, k, v and o (lse stays [batch][heads][seq]). */
ATTN_API void attn_problem_set_bshd(attn_problem *problem);

/* Packed sequences: dense [total][heads][dim] strides for q, k, v, o, and lse [heads][total_q]; sets ATTN_USE_VARLEN. */
ATTN_API void attn_problem_set_varlen(attn_problem *problem, int64_t total_q, int64_t total_k);

/* Checks every field, as attn_plan_create() will. */
ATTN_API attn_status attn_problem_validate(const attn_problem *problem);

/* ---- The data of one call ----------------------------------------------------------------------------------------- */

/* Element types follow the problem's dtypes. Pointers of tensors without elements may be NULL. Data must be aligned to its
 * element. Out-of-range lengths are errors; reading and writing stays within what shape and strides describe. */
typedef struct attn_args {
  const void *q; /* [batch][heads_q][seq_q][dim_qk] by q_stride */
  const void *k; /* [batch][heads_kv][seq_k][dim_qk] by k_stride */
  const void *v; /* [batch][heads_kv][seq_k][dim_v] by v_stride */
  void *o;       /* [batch][heads_q][seq_q][dim_v] by o_stride */
  float *lse;    /* [batch][heads_q][seq_q] by lse_stride: natural log of the sum of exp(s), -inf for an empty row; never
                    includes the sink */

  const float *bias;         /* [batch][heads_q][seq_q][seq_k] by bias_stride */
  const uint8_t *mask;       /* [batch][heads_q][seq_q][seq_k] by mask_stride */
  const float *scores;       /* [batch][heads_q][seq_q][seq_k] by scores_stride; PRECOMPUTED only */
  const float *score_weight; /* [heads_q][dim_qk] by score_weight_stride_h */

  const int32_t *kv_len;       /* [batch], 0..seq_k */
  const int32_t *q_len;        /* [batch], 0..seq_q; rows beyond it give o = 0, lse = -inf */
  const int32_t *row_len;      /* [batch][seq_q] dense, 0..seq_k */
  const int32_t *cu_seqlens_q; /* [batch + 1], not decreasing, within 0..total_q, steps of at most seq_q */
  const int32_t *cu_seqlens_k; /* [batch + 1], likewise */
  const int32_t *offsets;      /* [batch]; ATTN_ALIGN_OFFSET only */
  const float *alibi_slopes;   /* [heads_q] */
  const float *sinks;          /* [heads_q]: one more logit in the denominator */
} attn_args;

/* ---- Plan and run ------------------------------------------------------------------------------------------------- */

typedef struct attn_plan attn_plan;

/* One task of a parallel loop. `worker` is in 0..workers-1. */
typedef void (*attn_task_fn)(void *context, int64_t task, int worker);

/* A caller's own thread pool: must call task(context, i, worker) exactly once for each i in 0..tasks-1, in any order, never
 * two at once with the same worker, and return when all are done. */
typedef void (*attn_parallel_for)(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context);

typedef struct attn_options {
  const char *kernel;             /* a registered name; NULL = ATTN_KERNEL, else automatic. Never silently replaced */
  const char *max_isa;            /* highest tier to use; NULL = no cap beyond ATTN_MAX_ISA */
  int threads;                    /* 0 = OpenMP's default (1 without OpenMP); with parallel_for: workers, >= 1 */
  attn_parallel_for parallel_for; /* NULL = OpenMP where built in, else serial */
  void *pool;                     /* passed to parallel_for */
} attn_options;

/* All choices and all checks of the shape; options may be NULL. On failure *plan is NULL and attn_last_error() says why. */
ATTN_API attn_status attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);

/* Bytes of workspace one run needs; a multiple of 64, 0 if none. */
ATTN_API size_t attn_plan_workspace(const attn_plan *plan);

/* Computes o (and lse), which may not overlap the inputs. `workspace` is 64-byte aligned and private to this call; its content before is ignored, after is
 * garbage. Allocates nothing. For a fixed kernel on one CPU a row's bits depend on that row's inputs alone: not on batch,
 * thread count or workspace. */
ATTN_API attn_status attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);

/* A few lines: kernel, tiles, threads, workspace and why it was chosen. Lives as long as the plan. */
ATTN_API const char *attn_plan_describe(const attn_plan *plan);

/* The name of the kernel that the plan runs. */
ATTN_API const char *attn_plan_kernel(const attn_plan *plan);

ATTN_API void attn_plan_destroy(attn_plan *plan); /* NULL is fine */

/* Plan, workspace and run in one call, with the kernel chosen automatically. */
ATTN_API attn_status attn_sdpa(const attn_problem *problem, const attn_args *args);

/* Merges partial results over disjoint sets of keys, each an (O, LSE) pair as attn_plan_run leaves it without sinks, into the result
 * over all of them: ring attention, caches in pieces, split keys (Dao et al. 2023, https://arxiv.org/abs/2307.08691, section 3.1).
 *
 *     lse = log sum_p exp(lse_p),   o = sum_p exp(lse_p - lse) o_p
 *
 * o[p]: dense float [rows][dim_v], lse[p]: float [rows]. A part whose LSE is -inf has seen no key and is left out of that row; where
 * all are, O = 0 and LSE = -inf. o_out and lse_out may be one of the parts' own arrays; lse_out may be NULL. */
ATTN_API attn_status attn_merge(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse,
                                float *o_out, float *lse_out);

/* ---- The registry ------------------------------------------------------------------------------------------------- */

/* What a kernel declares about its rounding; the error bound of docs/numerics.md is computed from it. */
typedef struct attn_numerics {
  double exp_error; /* largest relative error of its exp */
  /* Unit roundoff of P before the product with V, where K and V have 16 bits: 0 = kept in float32, 2^-8 = bf16, 2^-11 = f16.
   * With float32 K and V, P stays float32. */
  double p_rounding;
  double input_flush; /* inputs of smaller magnitude may be taken as 0 (denormal bf16 in tile units); 0 = none */
} attn_numerics;

typedef struct attn_kernel_info {
  const char *name;      /* "flash_avx512" */
  const char *algorithm; /* "flash" */
  const char *isa;       /* tier: "c", "avx2", "avx512", ... */
  const char *library;   /* "" or the library behind it with its version */
  const char *summary;   /* one line */
  attn_numerics numerics;
} attn_kernel_info;

/* Kernels in this build, best first. */
ATTN_API int attn_kernel_count(void);

/* NULL if index is out of range. */
ATTN_API const attn_kernel_info *attn_kernel_get(int index);

/* NULL if no kernel has that name. */
ATTN_API const attn_kernel_info *attn_kernel_find(const char *name);

/* Why this CPU cannot run the kernel, or NULL if it can. Honours ATTN_MAX_ISA. Thread-local, valid until the next call; like a failing
 * call, it and attn_kernel_rejects may change attn_last_error(). */
ATTN_API const char *attn_kernel_unusable(const attn_kernel_info *kernel);

/* Why the kernel cannot take the problem on this CPU, or NULL if it can. Thread-local, valid until the next call. */
ATTN_API const char *attn_kernel_rejects(const attn_kernel_info *kernel, const attn_problem *problem);

/* Kernels that the source has but this build lacks: name and reason, by index; NULL beyond the last. */
ATTN_API const char *attn_kernel_not_built(int index, const char **reason);

/* The tiers that this CPU and its operating system allow, joined by spaces, lowest first: "c avx2 avx512". */
ATTN_API const char *attn_cpu_tiers(void);

#ifdef __cplusplus
}
#endif

#include "attn/mha.h" /* attn_mha_*: whole layers, with projections */

#endif
