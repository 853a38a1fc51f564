/* SPDX-License-Identifier: MIT */
/** @file
 * Attention on the CPU, in many implementations behind one interface.
 *
 * One call computes, for every batch b, query head h and query i,
 *
 *     o = sum_j p_j v_j,   p = softmax over the allowed keys j of s_j,   s_j = scale <q_i, k_j> + ...
 *
 * (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, eq. 1). docs/semantics.md defines every option, docs/library.md
 * shows each in use.
 *
 *     #include <attn/attn.h>
 *
 *     attn_problem problem;
 *     attn_problem_init(&problem, 1, 8, 8, 512, 512, 64, 64);   // batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v
 *     attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);   // float [batch][heads][seq][dim]
 *     if (attn_sdpa(&problem, &args) != ATTN_OK) puts(attn_last_error());
 *
 * To run one shape many times, make a plan once and run it with a workspace of your own. To choose the kernel, name it in
 * attn_options. A plan is immutable: any number of threads may run it at once, each with its own workspace.
 *
 * The library never aborts, prints (unless ATTN_VERBOSE=1 asks for it), pins threads, or writes outside what the strides
 * describe. It reads these environment variables when a plan is created: ATTN_KERNEL (a kernel name, used where
 * attn_options names none), ATTN_MAX_ISA (c, avx2, avx512, ...: use no higher tier), ATTN_VERBOSE, and once per process
 * ATTN_LOAD (attn_load_kernels()), ATTN_TUNING and ATTN_MACHINE (attn_tuning_load()).
 *
 * Functions that can fail return an attn_status and leave a sentence for attn_last_error().
 *
 * A struct that a program fills in begins with its size, which ATTN_STRUCT and the init functions set: so a program runs
 * with a newer library than the one it was compiled for (docs/library.md, "Versions"). attn/attn.hpp wraps all this for C++.
 *
 * C11 or later, C++11 or later. All sizes are in elements and all pointers in host memory unless said otherwise.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0 /**< Changes when programs have to change; the number of the shared library. */
#define ATTN_VERSION_MINOR 1 /**< Changes when something is added. */
#define ATTN_VERSION_PATCH 0 /**< Changes when errors are corrected. */

/** Marks what the shared libraries export. */
#if defined(ATTN_SHARED) && defined(_WIN32)
#define ATTN_API __declspec(dllexport)
#elif defined(ATTN_SHARED) && defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/** A struct of the API with its size set: attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o); fields
 * that are not named are 0. It is a compound literal, so &ATTN_STRUCT(attn_options, .threads = 2) may be an argument. In C++
 * it takes C++20. Without it, as in {.q = q, .k = k, .v = v, .o = o}, struct_size is 0, and the library reads the fields of
 * version 0.1. */
#ifdef __cplusplus
#define ATTN_STRUCT(type, ...) (type{.struct_size = sizeof(type), __VA_ARGS__})
#else
#define ATTN_STRUCT(type, ...) ((type){.struct_size = sizeof(type), __VA_ARGS__})
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/** The status that a call returns. Every value but ATTN_OK comes with a sentence from attn_last_error(). */
typedef enum attn_status {
  ATTN_OK = 0,              /**< Done. */
  ATTN_INVALID_ARGUMENT,    /**< A field holds what it must not hold. */
  ATTN_UNSUPPORTED,         /**< Legal, but no kernel (or not the named one) takes it on this CPU. */
  ATTN_UNKNOWN_KERNEL,      /**< No kernel of that name is registered. */
  ATTN_WORKSPACE_TOO_SMALL, /**< Fewer bytes than the workspace function says, or not 64-byte aligned. */
  ATTN_OUT_OF_MEMORY,       /**< An allocation failed. */
} attn_status;

/** The name of a status: "ATTN_OK", ...; never NULL. */
ATTN_API const char *attn_status_name(attn_status status);

/** One sentence on the last failed call of this thread: the field, its value and what would be right. It is "" if none
 * failed, and valid until the next failing call of this thread. */
ATTN_API const char *attn_last_error(void);

/** The version of the library that runs: "0.1.0". */
ATTN_API const char *attn_version(void);

/* ---- The problem: shape and semantics, no data -------------------------------------------------------------------- */

/** Storage type of a tensor. Arithmetic is float32 or better with each of them. The types of 8 bits and fewer are for K and
 * V only, and their values are what is stored (floats: Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433). A single
 * factor for all keys goes into attn_problem.scale; others go into args.k_scale and v_scale.
 *
 * The last two store 32 neighbours of a row as a block, as ggml does (https://github.com/ggml-org/ggml): strides stay in
 * elements, so .b, .h and .s are multiples of 32 and .d is 1. A row begins with a block. Where
 * its dim is no multiple of 32, the last block has further elements, which are ignored. Data needs no alignment. */
typedef enum attn_dtype {
  ATTN_F32 = 0, /**< float, IEEE binary32 */
  ATTN_F16,     /**< IEEE binary16 */
  ATTN_BF16,    /**< bfloat16: the upper half of a float32 */
  ATTN_F8_E4M3, /**< sign, 4 bits of exponent, 3 of fraction: up to 448; no infinity, NaN is 0x7f and 0xff */
  ATTN_F8_E5M2, /**< the upper half of a float16: up to 57344 */
  ATTN_I8,      /**< integers from -128 to 127 */
  ATTN_Q8_0,    /**< blocks of 34 bytes: a float16 d, then 32 int8 q; an element is d q */
  ATTN_Q4_0,    /**< blocks of 18 bytes: a float16 d, then 16 bytes of two n each; an element is d (n - 8). Byte i holds the
                     n of elements i, in its lower half, and i + 16 */
} attn_dtype;

/** The operation that a problem asks for: what is computed from which arguments. */
typedef enum attn_operation {
  ATTN_FORWARD = 0, /**< Attention: o, and lse where the problem has it, from all other arguments. */
  ATTN_BACKWARD,    /**< Gradients of q, k, v and more, from those of o and lse: attn_problem_set_backward(). */
} attn_operation;

/** How a score s of query q and key k is computed. Only dot scores are scaled. */
typedef enum attn_score {
  /** scale * sum_d q_d k_d (Vaswani et al. 2017, section 3.2.1) */
  ATTN_SCORE_DOT = 0,
  /** sum_d w_d tanh(q_d + k_d), with q and k already projected (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473,
   * A.1.2) */
  ATTN_SCORE_ADDITIVE,
  /** -1/2 sum_d (w_d (q_d - k_d))^2: Nadaraya-Watson kernel regression (Nadaraya 1964, Watson 1964) */
  ATTN_SCORE_GAUSSIAN,
  /** args.scores holds s; q and k are not read (Synthesizer, Tay et al. 2021, https://arxiv.org/abs/2005.00743) */
  ATTN_SCORE_PRECOMPUTED,
} attn_score;

/** Where query 0 stands among the keys. Query i stands at key position i + offset. Causal masks, windows and ALiBi
 * distances all use that position. */
typedef enum attn_align {
  ATTN_ALIGN_TOP_LEFT = 0, /**< offset 0 */
  ATTN_ALIGN_BOTTOM_RIGHT, /**< offset = keys - queries of the sequence: the last query meets the last key */
  ATTN_ALIGN_OFFSET,       /**< offset = args.offsets[batch]: decoding with a KV cache */
} attn_align;

/** Bits of attn_problem.uses: what attn_args will bring. A bit that is set makes the pointer of the same name required;
 * where the bit is not set, the pointer must be NULL. */
enum {
  ATTN_USE_LSE = 1 << 0,     /**< write args.lse */
  ATTN_USE_BIAS = 1 << 1,    /**< args.bias is added to the scores; -inf masks */
  ATTN_USE_MASK = 1 << 2,    /**< args.mask: a key is allowed where it is not 0 */
  ATTN_USE_KV_LEN = 1 << 3,  /**< args.kv_len: keys of each batch */
  ATTN_USE_Q_LEN = 1 << 4,   /**< args.q_len: queries of each batch */
  ATTN_USE_ROW_LEN = 1 << 5, /**< args.row_len: keys of each query row; with TOP_LEFT or OFFSET alignment only */
  ATTN_USE_VARLEN = 1 << 6, /**< args.cu_seqlens_q and _k: packed sequences; excludes Q_LEN, ROW_LEN, KV_LEN but for PAGES */
  ATTN_USE_ALIBI = 1 << 7,  /**< args.alibi_slopes: minus slope times distance (Press et al. 2022, arXiv:2108.12409) */
  ATTN_USE_SINKS = 1 << 8,  /**< args.sinks: one more logit per head in the denominator */
  ATTN_USE_SCORE_WEIGHT = 1 << 9,     /**< args.score_weight: required by ADDITIVE, optional for GAUSSIAN (default 1) */
  ATTN_USE_PAGES = 1 << 10,           /**< args.page_table: k and v lie in pages; needs KV_LEN, also with VARLEN */
  ATTN_USE_STATE = 1 << 11,           /**< args.state: keys come in pieces, and rows go on from what they have seen */
  ATTN_USE_KV_SCALES = 1 << 12,       /**< args.k_scale, args.v_scale: factors of keys and values */
  ATTN_USE_KEY_BLOCKS = 1 << 13,      /**< args.kv_num_blocks, args.kv_indices: blocks of keys to visit; others are masked */
  ATTN_USE_FULL_KEY_BLOCKS = 1 << 14, /**< args.full_kv_num_blocks, args.full_kv_indices: blocks without args.mask */
  ATTN_USE_D_LSE = 1 << 15,           /**< BACKWARD: args.d_lse, the gradient of lse */
  ATTN_USE_D_BIAS = 1 << 16,          /**< BACKWARD: write args.d_bias */
  ATTN_USE_D_ALIBI = 1 << 17,         /**< BACKWARD: write args.d_alibi_slopes */
  ATTN_USE_D_SINKS = 1 << 18,         /**< BACKWARD: write args.d_sinks */
  ATTN_USE_D_SCORE_WEIGHT = 1 << 19,  /**< BACKWARD: write args.d_score_weight */
  ATTN_USE_ACCUMULATE = 1 << 20,      /**< BACKWARD: gradients are added to what stands in the outputs; no pointer */
};

/** Distances in elements between neighbours of a tensor [batch][heads][seq][dim]. Any sign; 0 broadcasts, but not in o and
 * lse, which must not overlap themselves. */
typedef struct attn_strides {
  int64_t b; /**< from one batch to the next */
  int64_t h; /**< from one head to the next */
  int64_t s; /**< from one token to the next */
  int64_t d; /**< from one element of a token to the next */
} attn_strides;

/** Distances in elements between neighbours of an array [batch][heads_q][seq_q][seq_k]. Any sign; 0 broadcasts. */
typedef struct attn_score_strides {
  int64_t b; /**< from one batch to the next */
  int64_t h; /**< from one query head to the next */
  int64_t q; /**< from one query to the next */
  int64_t k; /**< from one key to the next */
} attn_score_strides;

/** Shape and semantics of an attention, without data. attn_problem_init() fills in all of it; then change what differs. */
typedef struct attn_problem {
  size_t struct_size; /**< Bytes of this struct; attn_problem_init() sets it. */

  int64_t batch;    /**< Sequences, >= 0. */
  int64_t heads_q;  /**< Query heads: >= 1, a multiple of heads_kv. */
  int64_t heads_kv; /**< KV heads, >= 1. Query head h reads KV head h / (heads_q / heads_kv). */
  int64_t seq_q;    /**< Queries of a sequence, >= 0; with VARLEN of the longest one. */
  int64_t seq_k;    /**< Keys of a sequence, >= 0; with VARLEN of the longest one. */
  int64_t dim_qk;   /**< Elements of a query and of a key, >= 1. */
  int64_t dim_v;    /**< Elements of a value and of an output, >= 1. */

  attn_dtype dtype_q;  /**< Type of q: ATTN_F32, or the same as dtype_kv; any of 16 or 32 bits if that has 8. */
  attn_dtype dtype_kv; /**< Type of k and v. */
  attn_dtype dtype_o;  /**< Type of o: ATTN_F32, or the same as dtype_q. */

  attn_strides q_stride; /**< Strides of q. With VARLEN .b is ignored and .s walks packed tokens, also in the next four. */
  attn_strides k_stride; /**< Strides of k. With PAGES .b leads from one page to the next, .s from token to token within. */
  attn_strides v_stride; /**< Strides of v, likewise. */
  attn_strides o_stride; /**< Strides of o. */

  attn_strides lse_stride;          /**< Strides of lse; .d is ignored. */
  attn_score_strides bias_stride;   /**< Strides of bias. */
  attn_score_strides mask_stride;   /**< Strides of mask. */
  attn_score_strides scores_stride; /**< Strides of scores. */

  attn_score score; /**< The score function; default ATTN_SCORE_DOT. */
  float scale;      /**< Factor of dot scores, default 1/sqrt(dim_qk). 0 and negative are legal; NaN and inf are errors. */
  float softcap;    /**< > 0: s = softcap tanh(s / softcap), before bias (Gemma 2, arXiv:2408.00118); 0 = off. */

  attn_align align;     /**< Where query 0 stands among the keys. */
  int64_t window_left;  /**< Key j is allowed only if j >= i + offset - window_left; -1 = open. */
  int64_t window_right; /**< Key j is allowed only if j <= i + offset + window_right; -1 = open; causal is 0. */

  uint32_t uses;   /**< ATTN_USE_... bits: what args will bring. */
  int64_t total_q; /**< With VARLEN: tokens that q, o and lse hold; cu_seqlens_q may not exceed it. */
  int64_t total_k; /**< With VARLEN, but not PAGES: tokens that k and v hold; cu_seqlens_k may not exceed it. */
  int64_t score_weight_stride_h; /**< Elements from one query head's score_weight to the next one's; 0 = shared. */

  int64_t page_tokens;       /**< With PAGES: tokens of a page, a multiple of 16 in 16..1024. */
  int64_t pages;             /**< With PAGES: pages that k and v hold; page_table may name 0..pages-1. */
  int64_t page_table_stride; /**< Entries from one sequence's page_table to the next one's; 0 = shared. */

  attn_operation operation; /**< The operation that is computed; default ATTN_FORWARD. */

  attn_strides state_stride; /**< Strides of state; .d is ignored: the floats of a row lie side by side. */

  int64_t window_first; /**< Keys below stay allowed where window_left ends before them; 0 = none (docs/semantics.md). */
  int64_t key_begin;    /**< Key j is allowed only if j >= key_begin: with key_end, a piece of the keys. */
  int64_t key_end;      /**< Key j is allowed only if j < key_end; 0 = open. */

  /** The first so many keys and values are the same for all sequences, and every query sees them all: they may be read once,
   * from one sequence, for the queries of all (Ye et al. 2025, https://arxiv.org/abs/2501.01005: FlashInfer's cascade). A
   * multiple of page_tokens with PAGES; 0 = none. */
  int64_t shared_prefix;

  /** Strides of k_scale; 0 repeats: all 0, the default, is one number. Where .d is not 0, each channel (element of a key)
   * has a number of its own, for all keys of a head or tensor: .s must be 0 then, and .b with PAGES. */
  attn_strides k_scale_stride;
  attn_strides v_scale_stride; /**< Strides of v_scale, likewise; with STATE .d must be 0. */

  int64_t block_queries;             /**< With KEY_BLOCKS or FULL_KEY_BLOCKS: queries that share a list, a multiple of 16. */
  int64_t block_keys;                /**< Keys of a block, a multiple of 64. */
  attn_strides kv_num_blocks_stride; /**< Strides of both kv_num_blocks: .s leads to the next list; .d is ignored. */
  attn_strides kv_indices_stride;    /**< Strides of both kv_indices: .d leads to the next entry of a list. */

  /** With MASK: the mask has a column for each of so many newest keys of a sequence, the last one for its last key, and
   * hides no earlier key. Where a sequence has fewer keys, the first columns are not read. 0, the default = a column for
   * each key. */
  int64_t mask_keys;

  attn_strides d_o_stride;            /**< BACKWARD: strides of d_o; any value, 0 broadcasts. */
  attn_strides d_lse_stride;          /**< Strides of d_lse, likewise; .d is ignored. */
  attn_strides d_q_stride;            /**< Strides of d_q. */
  attn_strides d_k_stride;            /**< Strides of d_k. */
  attn_strides d_v_stride;            /**< Strides of d_v. */
  attn_score_strides d_bias_stride;   /**< Strides of d_bias. 0: the gradient is summed over that axis. */
  attn_score_strides d_scores_stride; /**< Strides of d_scores, likewise. */

  /** Probability, >= 0 and below 1, with which an element of softmax(S) is dropped, as in training (Vaswani et al. 2017,
   * section 5.4); the others are divided by 1 - dropout. It counts as a multiple of 2^-16. args.seed and offset say which
   * elements: attn_dropout_mask(). lse is that without dropout. 0 = off; with neither STATE nor shared_prefix. */
  float dropout;
} attn_problem;

/** Fills in the shape, dense [batch][heads][seq][dim] strides for every tensor, float32, scale 1/sqrt(dim_qk), nothing
 * masked, no LSE. Checks nothing: attn_plan_create() does. Who changes a size later calls it again, or sets the strides,
 * too: strides may have any value, so those of another size pass for meant.
 *
 * The macro of this name sets struct_size and calls the function of this name, which fills in so many bytes. Who calls the
 * function itself, from another language for instance, sets struct_size first. So it is with every init function. */
ATTN_API void attn_problem_init(attn_problem *problem, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q,
                                int64_t seq_k, int64_t dim_qk, int64_t dim_v);

/** Sets the size that attn_problem_init() reads, and returns its argument. */
static inline attn_problem *attn_problem_sized(attn_problem *problem) {
  problem->struct_size = sizeof *problem;
  return problem;
}
/** Sets struct_size and calls the function of this name. */
#define attn_problem_init(problem, ...) attn_problem_init(attn_problem_sized(problem), __VA_ARGS__)

/** Causal masking: each query sees the keys up to its own position. Sets align, and window_right to 0. */
ATTN_API void attn_problem_set_causal(attn_problem *problem, attn_align align);

/** Sets dense [batch][seq][heads][dim] strides for q, k, v and o. lse stays [batch][heads][seq]. */
ATTN_API void attn_problem_set_bshd(attn_problem *problem);

/** Packed sequences: sets dense [tokens][heads][dim] strides for q, k, v and o, lse [heads][total_q], total_q, total_k and
 * ATTN_USE_VARLEN (Dao 2023, https://arxiv.org/abs/2307.08691: the varlen interface of FlashAttention-2). */
ATTN_API void attn_problem_set_varlen(attn_problem *problem, int64_t total_q, int64_t total_k);

/** Keys and values in pages: sets dense [pages][heads][page_tokens][dim] strides for k and v, page_table
 * [batch][seq_k / page_tokens, rounded up], ATTN_USE_PAGES and ATTN_USE_KV_LEN. Key j of sequence b is token j % page_tokens
 * of page page_table[b][j / page_tokens] (Kwon et al. 2023, https://arxiv.org/abs/2309.06180: PagedAttention). */
ATTN_API void attn_problem_set_pages(attn_problem *problem, int64_t page_tokens, int64_t pages);

/** Lists of the blocks of keys that each block of queries visits: sets block_queries, block_keys, dense strides [batch]
 * [heads_kv][blocks of queries] and [batch][heads_kv][blocks of queries][blocks of keys] for the lists, and
 * ATTN_USE_KEY_BLOCKS. The lists are those of PyTorch's BlockMask (Dong et al. 2024, https://arxiv.org/abs/2412.05496:
 * FlexAttention); to share them among heads or sequences, set .h or .b of both strides to 0. */
ATTN_API void attn_problem_set_key_blocks(attn_problem *problem, int64_t block_queries, int64_t block_keys);

/** A boolean mask of the newest keys alone, such as that of a tree of speculative tokens: sets mask_keys, dense strides of
 * mask [batch][heads_q][seq_q][mask_keys], and ATTN_USE_MASK. */
ATTN_API void attn_problem_set_newest_mask(attn_problem *problem, int64_t mask_keys);

/** The gradients of this attention: sets operation to ATTN_BACKWARD, ATTN_USE_LSE, and strides of gradients to those of
 * their tensors: d_q_stride to q_stride, d_bias_stride to bias_stride, and so on. Where those of q, k, v or o are 0, set the
 * gradient's to others: outputs must not overlap themselves.
 *
 * With P = exp(S - lse), D = rowsum(d_o o) and dP = d_o V^T (Dao et al. 2022, https://arxiv.org/abs/2205.14135, section
 * B.2),
 *
 *     dS = P (dP - D),   d_q = scale dS K,   d_k = scale dS^T Q,   d_v = P^T d_o
 *
 * o and lse are inputs, as the forward call has left them. docs/semantics.md has the formulas for all options. Types are
 * those of the tensors: d_o has dtype_o, d_q dtype_q, d_k and d_v dtype_kv; sums are float32 and rounded once. Takes no
 * PAGES, STATE, KV_SCALES or lists of key blocks.
 *
 *     attn_problem_set_backward(&problem);        // after all that the forward problem has
 *     attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .d_q = d_q,
 *                                  .d_k = d_k, .d_v = d_v);
 *     attn_sdpa(&problem, &args);                 // or attn_plan_create(), attn_plan_run() */
ATTN_API void attn_problem_set_backward(attn_problem *problem);

/** Shows dropout: writes 1 to `mask`, a dense [batch][heads_q][seq_q][seq_k], for each element that a call with this
 * problem, seed and offset keeps, and 0 for those that it drops. The rule is in docs/semantics.md (Salmon et al. 2011,
 * https://doi.org/10.1145/2063384.2063405: Philox 4x32-10). It depends on batch, head, query and key alone, with VARLEN
 * counted within the sequence. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_dropout_mask(const attn_problem *problem, uint64_t seed, uint64_t offset, uint8_t *mask);

/** Checks every field, as attn_plan_create() will. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_problem_validate(const attn_problem *problem);

/* ---- The data of one call ----------------------------------------------------------------------------------------- */

/** The pointers of one call. Element types follow the problem's dtypes. Pointers of tensors without elements may be NULL.
 * Data must be aligned to its element. Lengths out of range are errors. Reading and writing stay within what shape and
 * strides describe. */
typedef struct attn_args {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */

  const void *q; /**< Queries [batch][heads_q][seq_q][dim_qk] by q_stride. */
  const void *k; /**< Keys [batch][heads_kv][seq_k][dim_qk] by k_stride, or [pages][heads_kv][page_tokens][dim_qk]. */
  const void *v; /**< Values [batch][heads_kv][seq_k][dim_v] by v_stride, likewise. */
  void *o;       /**< Output [batch][heads_q][seq_q][dim_v] by o_stride. */
  float *lse;    /**< Output [batch][heads_q][seq_q] by lse_stride: the natural logarithm of the sum of exp(s), -inf for an
                    empty row. It never includes the sink. */

  const float *bias;         /**< Added to the scores: [batch][heads_q][seq_q][seq_k] by bias_stride. */
  const uint8_t *mask;       /**< 0 = masked: [batch][heads_q][seq_q][seq_k] by mask_stride. */
  const float *scores;       /**< For PRECOMPUTED only: [batch][heads_q][seq_q][seq_k] by scores_stride. */
  const float *score_weight; /**< w of ADDITIVE and GAUSSIAN: [heads_q][dim_qk] by score_weight_stride_h. */

  const int32_t *kv_len;       /**< Keys of each batch: [batch], each in 0..seq_k. */
  const int32_t *q_len;        /**< Queries of each batch: [batch], each in 0..seq_q. Rows beyond give o = 0, lse = -inf. */
  const int32_t *row_len;      /**< Keys of each query: [batch][seq_q], dense, each in 0..seq_k. */
  const int32_t *cu_seqlens_q; /**< Where each sequence begins among the packed queries: [batch + 1], not decreasing, within
                                  0..total_q, in steps of at most seq_q. */
  const int32_t *cu_seqlens_k; /**< Where each sequence begins among the packed keys: [batch + 1]; NULL with PAGES. */
  const int32_t *offsets;      /**< For ATTN_ALIGN_OFFSET only: key position of query 0, [batch]; any value. */
  const float *alibi_slopes;   /**< ALiBi slope of each query head: [heads_q]. */
  const float *sinks;          /**< Sink logit of each query head: [heads_q] (Xiao et al. 2024, arXiv:2309.17453). */
  const int32_t *page_table;   /**< Pages of each sequence, in order: [batch][..] by page_table_stride, each in 0..pages-1.
                                  Entries of pages that no query sees are not read. */

  float *state; /**< Read and written: [batch][heads_q][seq_q] rows of attn_state_floats(dim_v) floats by state_stride. With
                   STATE, o and lse may be NULL: then the state alone goes on. */

  const float *k_scale; /**< With KV_SCALES, but not PRECOMPUTED: each key is its elements of k times its number here,
                           [batch][heads_kv][seq_k] by k_scale_stride, or [pages][heads_kv][page_tokens]; or each
                           element has one, [dim_qk] by k_scale_stride.d. */
  const float *v_scale; /**< With KV_SCALES: each value is its elements of v times its number here, likewise; or [dim_v]. */

  const int32_t *kv_num_blocks; /**< Entries of each list: [batch][heads_kv][seq_q / block_queries, rounded up] by
                                   kv_num_blocks_stride, each in 0..seq_k / block_keys, rounded up. */
  const int32_t *kv_indices; /**< Lists of key blocks, [..][..][..][entries] by kv_indices_stride: block n has the keys from
                                n block_keys on. Entries may come in any order; those behind the list's number are not
                                read. */
  const int32_t *full_kv_num_blocks; /**< With FULL_KEY_BLOCKS: the same for lists of blocks */
  const int32_t *full_kv_indices;    /**< in which args.mask does not count. A block in both lists is such a block. */

  const void *d_o;    /**< BACKWARD: gradient of o, [batch][heads_q][seq_q][dim_v] by d_o_stride. o and lse are inputs. */
  const float *d_lse; /**< With D_LSE: gradient of lse, [batch][heads_q][seq_q] by d_lse_stride. */
  /** Outputs. Each may be NULL: it is not wanted then. Rows without keys, and keys that no query sees, have zeros. */
  void *d_q;             /**< [batch][heads_q][seq_q][dim_qk] by d_q_stride. */
  void *d_k;             /**< [batch][heads_kv][seq_k][dim_qk] by d_k_stride, summed over the query heads that share it. */
  void *d_v;             /**< [batch][heads_kv][seq_k][dim_v] by d_v_stride, likewise. */
  float *d_bias;         /**< With D_BIAS: [batch][heads_q][seq_q][seq_k] by d_bias_stride. */
  float *d_scores;       /**< For PRECOMPUTED only: [batch][heads_q][seq_q][seq_k] by d_scores_stride. */
  float *d_score_weight; /**< With D_SCORE_WEIGHT: [heads_q][dim_qk] by score_weight_stride_h; 0: the sum over heads. */
  float *d_alibi_slopes; /**< With D_ALIBI: [heads_q]. */
  float *d_sinks;        /**< With D_SINKS: [heads_q]. */

  uint64_t seed;   /**< With dropout: the generator's key. The gradients of a call take the call's seed and offset. */
  uint64_t offset; /**< And a number that differs from call to call under one seed. */
} attn_args;

/* ---- Plan and run ------------------------------------------------------------------------------------------------- */

/** All decisions about one problem: kernel, tiles, tasks, memory. Immutable. */
typedef struct attn_plan attn_plan;

/** One task of a parallel loop. `worker` is in 0..workers-1. */
typedef void (*attn_task_fn)(void *context, int64_t task, int worker);

/** A caller's own thread pool. It must call task(context, i, worker) exactly once for each i in 0..tasks-1, in any order,
 * never two at once with the same worker, and return when all are done. */
typedef void (*attn_parallel_for)(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context);

/** The contents of a tuning file, read by attn_tuning_load(). Immutable. */
typedef struct attn_tuning attn_tuning;

/** How a plan or a layer is to be made. A field that is 0 is the default, and so is a NULL pointer in place of options. */
typedef struct attn_options {
  size_t struct_size;  /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const char *kernel;  /**< A registered name; NULL = ATTN_KERNEL, else automatic. Never replaced silently. */
  const char *max_isa; /**< Highest tier to use; NULL = no cap beyond ATTN_MAX_ISA. */
  /** 0 = OpenMP's default (1 without OpenMP), or as few as pay for so small a call. With parallel_for: its workers, >= 1. A
   * call uses fewer threads where the system allows no more, and one thread in a child of fork() whose parent has used
   * OpenMP threads. */
  int threads;
  attn_parallel_for parallel_for; /**< The caller's thread pool; NULL = OpenMP where built in, else serial. */
  void *pool;                     /**< Passed to parallel_for. */
  /** Which kernel and how many threads, where the fields above leave that open; NULL = the file that ATTN_TUNING names, or
   * the costs of this CPU's class. It must live as long as the call, or the layers that are made with it. */
  const attn_tuning *tuning;
  /** 1: a row gets the same bits whether one query or a thousand are computed, however a prompt is cut into calls. The
   * automatic choice is then among kernels that promise it, by the shape of a head, types and masks alone: never by seq_q or
   * seq_k. A named kernel must promise it. Single rows take longer. */
  int steady;
} attn_options;

/** Checks the problem and makes all choices. options may be NULL. On failure *plan is NULL and attn_last_error() says why.
 * Every status is possible but ATTN_WORKSPACE_TOO_SMALL. */
ATTN_API attn_status attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);

/** Bytes of workspace that one run needs: a multiple of 64, 0 if none. */
ATTN_API size_t attn_plan_workspace(const attn_plan *plan);

/** Keys of a piece, for a plan whose problem has ATTN_USE_STATE: a piece begins at a multiple of so many keys, counted from
 * key 0 of the sequence. The last piece may end anywhere. 0 for other plans. It depends on the kernel, dtypes and dims
 * alone. */
ATTN_API int64_t attn_plan_piece_keys(const attn_plan *plan);

/** Computes o (and lse), which may not overlap the inputs. `workspace` is 64-byte aligned and private to this call; what it
 * held before does not matter, and what it holds after means nothing. Allocates nothing. For a fixed kernel on one CPU a
 * row's bits depend on that row's inputs alone: not on batch, thread count or workspace.
 *
 * Returns ATTN_INVALID_ARGUMENT for a pointer or a length that does not fit the problem, ATTN_WORKSPACE_TOO_SMALL, or
 * ATTN_OK. */
ATTN_API attn_status attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);

/** A few lines: kernel, tiles, threads, workspace and why it was chosen. Lives as long as the plan. */
ATTN_API const char *attn_plan_describe(const attn_plan *plan);

/** The name of the kernel that the plan runs. */
ATTN_API const char *attn_plan_kernel(const attn_plan *plan);

/** Frees the plan. NULL is fine. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/** Plan, workspace and run in one call, with the kernel chosen automatically. Returns what any of the three returns. */
ATTN_API attn_status attn_sdpa(const attn_problem *problem, const attn_args *args);

/** Merges partial results over disjoint sets of keys into the result over all of them. Each part is an (O, LSE) pair as
 * attn_plan_run() leaves it without sinks. Ring attention, caches in pieces and split keys need it (Dao et al. 2023,
 * https://arxiv.org/abs/2307.08691, section 3.1).
 *
 *     lse = log sum_p exp(lse_p),   o = sum_p exp(lse_p - lse) o_p
 *
 * There are `parts` >= 1 parts; o[p] is a dense float [rows][dim_v], lse[p] a float [rows]. A part whose LSE is -inf has
 * seen no key and is left out of that row; if all are left out, O = 0 and LSE = -inf. o_out and lse_out have the same
 * shapes and may be one of the parts' own arrays; lse_out may be NULL. Parts are folded in order, in float32, as
 * attn_partial_merge() does: |o_p| times `parts` must stay below FLT_MAX. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_merge(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse,
                                float *o_out, float *lse_out);

/** Attention of rows over some of their keys before the division: the state of streaming softmax (Milakov & Gimelshein 2018,
 * https://arxiv.org/abs/1805.02867). With s the scores of a row, all that the problem adds to them included,
 *
 *     P_j = 2^(s_j log2(e) - reference),   sum = sum_j P_j,   o = sum_j P_j v_j
 *
 * so attention over these keys is o / sum, and its LSE ln(2) reference + ln(sum). Any reference near the largest score in
 * log2 units will do. Rows are dense, in the order of an LSE. An (O, LSE) pair is the state {O, LSE log2(e), 1}. The last
 * three fields are 0 but for rows of args.state: attn_partial_of_state(). */
typedef struct attn_partial {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  float *o;           /**< [rows][dim_v], not divided yet */
  float *reference;   /**< [rows] in log2 units; -inf: the row has seen no key, and its o and sum are not read. */
  float *sum;         /**< [rows], or [rows][sums] */

  int64_t stride; /**< Floats from one row to the next in each array; 0 = dense rows of dim_v, 1, 1 and sums floats. */
  int64_t sums;   /**< Parts of a row's sum, side by side: 0 or 1 = one. A fold adds them up, in order, into the first. */
  float *reference_low; /**< NULL, or [rows]: what the references have beyond a float. */
} attn_partial;

/** Parts of a row's sum in args.state. */
enum { ATTN_STATE_SUMS = 16 };

/** Floats of a row of args.state: o [dim_v], the parts of the sum [ATTN_STATE_SUMS], and the reference as a float and the
 * rest of it. A kernel leaves as many parts as its vectors have lanes, so that it can go on with the same bits; the others
 * are 0. */
static inline int64_t attn_state_floats(int64_t dim_v) { return (int64_t)((uint64_t)dim_v + ATTN_STATE_SUMS + 2); }

/** Dense rows of args.state as what attn_partial_merge() and attn_partial_finish() take. */
static inline attn_partial attn_partial_of_state(float *state, int64_t dim_v) {
  attn_partial partial;
  partial.struct_size = sizeof partial;
  partial.o = state;
  partial.sum = state + dim_v;
  partial.reference = partial.sum + ATTN_STATE_SUMS;
  partial.reference_low = partial.reference + 1;
  partial.stride = attn_state_floats(dim_v);
  partial.sums = ATTN_STATE_SUMS;
  return partial;
}

/** Sets the references of all rows to -inf, by the problem's state_stride: no row has seen a key. What else stands in the
 * state then does not matter. Returns ATTN_OK or ATTN_INVALID_ARGUMENT.
 *
 *     attn_state_start(&problem, state);                  // problem.uses has ATTN_USE_STATE, align is ATTN_ALIGN_OFFSET
 *     for (int64_t first = 0; first < keys; first += n) { // n = attn_plan_piece_keys(plan), or a multiple of it
 *       kv_len[0] = keys - first < n ? keys - first : n;
 *       offsets[0] = position - first;                    // of query 0, as distances count from the piece's first key
 *       args.k = k + first * dim_qk;  args.v = v + first * dim_v;
 *       attn_plan_run(plan, &args, workspace, bytes);     // o, if given: attention over all keys so far
 *     } */
ATTN_API attn_status attn_state_start(const attn_problem *problem, float *state);

/** Folds a piece, which is over other keys, into the state of the same rows. Pieces are to come in the order of their keys,
 * from a state whose references are -inf; then a row's bits depend on the pieces alone: the state may be kept between calls,
 * or handed to another thread or process, at any border. A row of the piece without a key leaves the state as it is; a NaN
 * spreads. Each fold rounds o and sum twice to float32, beside a weight within 2^-23. The arrays of the two do not overlap.
 * Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_partial_merge(int64_t rows, int64_t dim_v, const attn_partial *piece, const attn_partial *state);

/** Attention over the state's keys: o = state->o / sum, a dense float [rows][dim_v], and lse [rows], which may be NULL. A
 * row without a key gives O = 0 and LSE = -inf. o may be state->o, lse state->reference or state->sum. Returns ATTN_OK or
 * ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_partial_finish(int64_t rows, int64_t dim_v, const attn_partial *state, float *o, float *lse);

/* ---- Which kernel is quickest here -------------------------------------------------------------------------------- */

/** The result of attn_tune() for one kernel with one number of threads. */
typedef struct attn_tune_entry {
  const char *kernel; /**< Its name; lives as long as the process. */
  int32_t threads;    /**< Threads of a call. */
  int32_t rounds;     /**< Rounds that timed it. 0 = none, and what follows is 0: the report's not_timed says why. */
  double time_ns;     /**< Nanoseconds of a call: the median over the rounds. */
  double time_low_ns; /**< From here to time_high_ns the median lies with a probability of 95 %, whatever the distribution */
  double time_high_ns; /**< is (order statistics); 0 and INFINITY where fewer than six rounds give no such interval. */
  double ratio;        /**< Its time over that of the first entry: the median over the rounds that both were in. */
  double ratio_low;    /**< Its interval likewise: above 1, the first entry is quicker beyond doubt. */
  double ratio_high;   /**< Its end. */
} attn_tune_entry;

enum { ATTN_TUNE_ENTRIES = 64 /**< Entries that a report has room for. */ };

/** The result of attn_tune(): its measurements, quickest first. */
typedef struct attn_tune_report {
  size_t struct_size;    /**< Bytes of this struct; attn_tune() sets it. */
  int32_t count;         /**< Entries: quickest first, those that were not timed at the end. */
  int32_t timed;         /**< Entries that were timed: at least 1. */
  int32_t left_out;      /**< Pairs of a kernel and a number of threads beyond ATTN_TUNE_ENTRIES, which were not tried. */
  int32_t rounds;        /**< Rounds of the whole call. Entries far behind the first were not in all of them. */
  double seconds;        /**< Seconds that the call took. */
  const char *automatic; /**< The kernel that the library would have chosen; it is among the entries. */
  int32_t automatic_threads;                /**< Threads that the library would have chosen. */
  int32_t reserved;                         /**< 0 */
  attn_tune_entry entry[ATTN_TUNE_ENTRIES]; /**< [count] */
  const char *not_timed[ATTN_TUNE_ENTRIES]; /**< [count] Why an entry has no time, in words; lives as long as the process.
                                               NULL = it has one. */
} attn_tune_report;

/** Times what takes the problem, on the caller's own data and with the caller's strides, for about `seconds`: every kernel
 * of this process with one thread, with all, and with powers of two between, or with options->threads; only the one that
 * options->kernel or ATTN_KERNEL names, and none above options->max_isa. options may be NULL. All run in turn, again and
 * again, and o (and lse) hold the first entry's answer at the end. What takes longer than that time allows is not called.
 * One thread is tried first. Several threads are left out where other programs took their CPUs in half of the rounds or
 * more, unless they were quicker beyond doubt all the same.
 *
 *     attn_tune_report report;
 *     if (attn_tune(&problem, &args, NULL, 0.5, &report) == ATTN_OK) {
 *       attn_options best = ATTN_STRUCT(attn_options, .kernel = report.entry[0].kernel, .threads = report.entry[0].threads);
 *       ...
 *
 * It allocates the largest workspace of these plans, below 1 GiB unless the automatic choice needs more, and 100 KB, and
 * frees them. Any number of threads may call it, but only one at a time can measure.
 *
 * Returns ATTN_OK, or what attn_plan_create() and attn_plan_run() return. */
ATTN_API attn_status attn_tune(const attn_problem *problem, const attn_args *args, const attn_options *options,
                               double seconds, attn_tune_report *report);

/** Sets the size that attn_tune() reads, and returns its argument. */
static inline attn_tune_report *attn_tune_report_sized(attn_tune_report *report) {
  if (report) report->struct_size = sizeof *report;
  return report;
}
/** Sets struct_size and calls the function of this name. */
#define attn_tune(problem, args, options, seconds, report) \
  attn_tune(problem, args, options, seconds, attn_tune_report_sized(report))

/** Reads a tuning file, which `attnbench tune` has measured on this machine: what kernels cost, and from which size on
 * threads pay. Plans that get it by attn_options.tuning choose by its rules and costs; where it has none for a problem, or
 * no kernel that it names can run, they choose by the costs of this CPU's class. attn_plan_describe() says what decided and
 * by what margin. With a tuning file, too, the kernel depends on the shape of one sequence alone.
 *
 * The environment variable ATTN_TUNING names such a file for all plans of the process without attn_options.tuning. It is
 * read once. If it cannot be read, no plan is created, and the sentence says why. Programs with more rights than their
 * caller ignore it.
 *
 * The library has costs for some classes of CPUs. The first plan that needs them times some small calls for a few
 * milliseconds and takes the class whose costs fit best; ATTN_MACHINE names a class in place of that.
 *
 * Returns ATTN_OK; ATTN_INVALID_ARGUMENT where the file cannot be read or a line is wrong, with its number; ATTN_UNSUPPORTED
 * if it was measured on another CPU, with another version of the library, or another build of a kernel. With ATTN_TUNING
 * the costs of the class count in the last case, and attn_plan_describe() says why. */
ATTN_API attn_status attn_tuning_load(const char *path, attn_tuning **tuning);

/** Frees it. NULL is fine. */
ATTN_API void attn_tuning_destroy(attn_tuning *tuning);

/** The lines that a tuning file of this machine and process begins with: format, CPU, library, and the code version of every
 * kernel. Writes at most `bytes` with the 0 at the end, and returns how many there are without it; text may be NULL. */
ATTN_API size_t attn_tuning_head(char *text, size_t bytes);

/* ---- The registry ------------------------------------------------------------------------------------------------- */

/** The rounding that a kernel declares. The error limits of docs/numerics.md are computed from it. */
typedef struct attn_numerics {
  double exp_error;  /**< Largest relative error of its exp. */
  double p_rounding; /**< Unit roundoff of P before the product with V, where K and V have 16 bits: 0 = kept in float32, 2^-8
                        = narrowed to their type; with f16 that is 2^-11. With float32 K and V, P stays float32. */
  double input_flush;    /**< Inputs of smaller magnitude may be taken as 0 (denormal bf16 in tile units); 0 = none. */
  double input_rounding; /**< Unit roundoff of Q, K, P and V in the products, where these round float32 values; 0 = they take
                            them exactly. The automatic choice has no kernel that rounds them. */
  double query_rounding; /**< Largest error of an element of Q in the products, relative to the largest of its row, where
                            they take Q as integers; 0 = they don't. The automatic choice has no such kernel. */
} attn_numerics;

/** Facts about a kernel that are known without running it. */
typedef struct attn_kernel_info {
  const char *name;       /**< "flash_avx512" */
  const char *algorithm;  /**< "flash" */
  const char *isa;        /**< Its tier: "c", "portable", "avx2", ... */
  const char *library;    /**< "", or the library behind it with its version; never NULL. */
  const char *summary;    /**< One line. */
  attn_numerics numerics; /**< How it rounds. */
} attn_kernel_info;

/** Number of kernels: of this build and of the plug-ins that are loaded. */
ATTN_API int attn_kernel_count(void);

/** The kernel at `index`, best first; NULL if index is not in 0..attn_kernel_count()-1. */
ATTN_API const attn_kernel_info *attn_kernel_get(int index);

/** The kernel of that name; NULL if there is none. */
ATTN_API const attn_kernel_info *attn_kernel_find(const char *name);

/** The operation that the kernel computes; ATTN_FORWARD for NULL. */
ATTN_API attn_operation attn_kernel_operation(const attn_kernel_info *kernel);

/** Why this CPU cannot run the kernel, or NULL if it can. Honours ATTN_MAX_ISA. The text belongs to this thread and is
 * valid until the next call. Like a failing call, this function and attn_kernel_rejects() may change attn_last_error(). */
ATTN_API const char *attn_kernel_unusable(const attn_kernel_info *kernel);

/** Why the kernel cannot take the problem on this CPU, or NULL if it can. The text belongs to this thread and is valid
 * until the next call. */
ATTN_API const char *attn_kernel_rejects(const attn_kernel_info *kernel, const attn_problem *problem);

/** Kernels that the source has but this process lacks: the name, and in *reason why; NULL if index is beyond the last.
 * Kernels of plug-ins that are not loaded are among them. The text belongs to this thread and is valid until the next call.
 */
ATTN_API const char *attn_kernel_not_built(int index, const char **reason);

/** Loads a plug-in: a shared object with further kernels. `plugin` is a path with a slash in it ("./libmine.so"), or the
 * name of one of libattn's own: "openblas", "onednn" (attn_plugin_name()). The file of a name, libattn_NAME.so, is looked
 * for beside libattn.so, or beside the program that libattn.a is linked into; in the folder attn-MAJOR there; in that folder
 * of the installation; and where the loader looks. A path may end in the symbol of one set of kernels in a file that has
 * several: "./libmine.so:symbol" (ATTN_EXPORT_KERNELS_AS in attn/kernel.h).
 *
 * Its kernels rank behind those that are there, so they run only when they are named or nothing else takes the problem. They
 * stay until the process ends. To load a plug-in again does nothing. Any number of threads may call this at once and use
 * kernels meanwhile. attn/kernel.h says how to write one.
 *
 * Returns ATTN_OK; ATTN_INVALID_ARGUMENT for what is no name; ATTN_UNSUPPORTED if the file is missing, is no plug-in or was
 * built for another version of the library, or if a name of its kernels is taken: then none of its kernels is there. A
 * kernel whose tier this CPU lacks is no failure (attn_kernel_unusable()).
 *
 * The environment variable ATTN_LOAD holds names and paths, separated by colons (on Windows by semicolons), that are loaded
 * before the library looks for a kernel the first time. If one cannot be, no plan is created, and the sentence says why.
 * A path in it has no symbol, as the colon separates. Programs with more rights than their caller ignore it. */
ATTN_API attn_status attn_load_kernels(const char *plugin);

/** The file, or FILE:SYMBOL, that the kernel was loaded from; NULL for a kernel of the library itself. */
ATTN_API const char *attn_kernel_file(const attn_kernel_info *kernel);

/** The names of libattn's own plug-ins, whether they are there or not: "openblas", "onednn"; NULL if index is beyond the
 * last. */
ATTN_API const char *attn_plugin_name(int index);

/** The tiers that this CPU and its operating system allow, lowest first, separated by spaces: "c portable avx2". AMX needs a
 * permission that Linux gives to the whole process, which then cannot have small signal stacks (sigaltstack). A plan that
 * uses AMX asks for it; until it has been refused, AMX counts as allowed here and in attn_kernel_unusable(). */
ATTN_API const char *attn_cpu_tiers(void);

#ifdef __cplusplus
}
#endif

#include "attn/mha.h" /* attn_mha_*: whole layers, with projections */

#endif
