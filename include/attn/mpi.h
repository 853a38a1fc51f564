/* SPDX-License-Identifier: MIT */
/** @file
 * Attention of one sequence, or one batch of them, over the ranks of an MPI communicator: libattn_mpi, a library of its own
 * on top of libattn. docs/scale.md says when which way of dividing the work is faster, and how the memory grows.
 *
 * Each rank holds some rows of Q and some keys. It describes the whole problem and its own part once:
 *
 *     attn_problem whole;
 *     attn_problem_init(&whole, 1, 32, 8, tokens, tokens, 128, 128);
 *     attn_problem_set_causal(&whole, ATTN_ALIGN_TOP_LEFT);
 *     int64_t border;
 *     attn_mpi_border(&whole, NULL, MPI_COMM_WORLD, &border);  // shards of keys begin at its multiples
 *     attn_mpi_range own[2];
 *     const int count = attn_mpi_zigzag(tokens, border, rank, ranks, own);
 *     attn_mpi_shard shard = ATTN_STRUCT(attn_mpi_shard, .q = own, .q_count = count, .k = own, .k_count = count);
 *     attn_mpi_plan *plan;
 *     attn_mpi_plan_create(&whole, &shard, NULL, MPI_COMM_WORLD, &plan);
 *     attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);     // own rows and keys alone
 *     attn_mpi_plan_run(plan, &args, workspace, attn_mpi_plan_workspace(plan));
 *
 * **Bits.** A row gets the bits that attn_plan_run() gives it over all keys in one process, with the kernel that
 * attn_mpi_plan_kernel() names: for any number of ranks, any shards and any mode. Either states of rows go on
 * from piece to piece of the keys, in their order (ATTN_USE_STATE), or whole heads are computed.
 *
 * **Errors.** A call that fails on one rank fails on all ranks that wait for it, within seconds; attn_last_error() says
 * which rank and why. After that the plan can only be destroyed. A rank that waits longer than attn_mpi_options.timeout_s
 * for a message returns ATTN_UNSUPPORTED, and so does one whose MPI call fails.
 *
 * The library keeps no state outside its plans, and a plan has a communicator of its own (MPI_Comm_dup). MPI_THREAD_FUNNELED
 * is enough: only the calling thread calls MPI. All functions with a communicator or a plan of it are collective, but for
 * those that only read a plan. */
#ifndef ATTN_MPI_H
#define ATTN_MPI_H

#include <mpi.h>

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Tokens [begin, end) of the whole sequence; with VARLEN of all packed tokens. */
typedef struct attn_mpi_range {
  int64_t begin; /**< The first token. */
  int64_t end;   /**< The one behind the last; equal to begin in an empty range. */
} attn_mpi_range;

/** How the work is divided. Every mode gives the same bits. */
typedef enum attn_mpi_mode {
  ATTN_MPI_AUTO = 0, /**< The least time by the model of docs/scale.md. */
  /** Keys and values travel from rank to rank, in the order of the keys; queries stay (Liu et al. 2023,
   * https://arxiv.org/abs/2310.01889: ring attention). */
  ATTN_MPI_PASS_KV,
  /** Queries travel with what they have seen; keys stay: for few new queries and a long cache (Yang et al. 2024,
   * https://arxiv.org/abs/2411.01783, section 3.5). */
  ATTN_MPI_PASS_Q,
  /** Each rank gets all tokens of some heads (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509: Ulysses), or those of a
   * group of ranks, and the groups pass keys as in PASS_KV (Fang and Zhao 2024, https://arxiv.org/abs/2405.07719). */
  ATTN_MPI_EXCHANGE,
  /** Each rank attends to its own keys; what rows have seen there is joined in the order of keys. For kernels that split
   * keys at fixed borders themselves: decode (Dao et al. 2023: Flash-Decoding). */
  ATTN_MPI_SPLIT,
} attn_mpi_mode;

/** The part of the problem that a rank holds. */
typedef struct attn_mpi_shard {
  size_t struct_size;      /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const attn_mpi_range *q; /**< Rows of Q, O and LSE, in ascending order. They stand one after the other in args.q. Several
                              ranks may hold the same rows: each computes them. */
  int64_t q_count;         /**< Ranges of rows; 0 = none. */
  /** Keys and values, in ascending order. They stand one after the other in args.k and args.v. Over all ranks they cover
   * each key once. With VARLEN but not PAGES a range begins and ends at multiples of attn_mpi_border(), counted from the
   * first key of the sequence that it is in; else at multiples, counted from key 0. The last key is a border too. */
  const attn_mpi_range *k;
  int64_t k_count; /**< Ranges of keys; 0 = none. */
  /** Strides of this rank's tensors, and page_tokens, pages and page_table_stride of its keys: a problem whose seq_q and
   * seq_k are the number of own rows and keys. What else it says is ignored. NULL = as attn_problem_init() sets them. */
  const attn_problem *layout;
} attn_mpi_shard;

/** Speeds that the model goes by. 0 = a usual value, or what attn_mpi_plan_create() measures in some milliseconds. */
typedef struct attn_mpi_network {
  size_t struct_size;  /**< Bytes of this struct; ATTN_STRUCT sets it. */
  double latency_s;    /**< Seconds that a short message takes. */
  double bytes_per_s;  /**< Bytes a second from one rank to another. */
  double macs_per_s;   /**< Multiply-adds a second that attention does on a rank. */
  double memory_per_s; /**< Bytes of keys and values a second that one query reads on a rank. */
} attn_mpi_network;

/** Runs one plan of libattn: what attn_mpi_options.run may replace, for a simulation or a trace. */
typedef attn_status (*attn_mpi_run_fn)(void *context, const attn_plan *plan, const attn_problem *problem,
                                       const attn_args *args, void *workspace, size_t workspace_bytes);

/** How a plan is to be made. A field that is 0 is the default, and so is a NULL pointer in place of options. All ranks give
 * the same. */
typedef struct attn_mpi_options {
  size_t struct_size;              /**< Bytes of this struct; ATTN_STRUCT sets it. */
  attn_mpi_mode mode;              /**< How the work is divided. */
  const attn_options *compute;     /**< All ranks name the same kernel; threads, pool, tier may differ. */
  int64_t piece_keys;              /**< Most keys of a message, rounded to a border; 0 = chosen. */
  int64_t block_rows;              /**< Most rows of a call, and of a message of queries; 0 = chosen. */
  double timeout_s;                /**< Seconds to wait for a message before the call fails; 0 = 600. */
  const attn_mpi_network *network; /**< Speeds for ATTN_MPI_AUTO; NULL = measured. */
  attn_mpi_run_fn run;             /**< NULL = attn_plan_run(). */
  void *run_context;               /**< Passed to run. */
  /** ATTN_MPI_EXCHANGE: heads are divided within groups of so many ranks that follow each other, and keys pass from group to
   * group. 0 = chosen; the number of ranks is one group. It divides the number of ranks and of query heads, and either
   * divides that of KV heads or is a multiple of it. */
  int group_ranks;
} attn_mpi_options;

/** All decisions about one problem on one communicator. It runs one call at a time. */
typedef struct attn_mpi_plan attn_mpi_plan;

/** Keys between the borders of shards, for a kernel that goes on from key to key: the one that attn_mpi_plan_create() will
 * take. Rank 0 chooses it for all, by its options, environment and CPU, so ranks may have unlike CPUs. `compute` may be
 * NULL. Collective, with the same problem on all ranks; MPI_COMM_SELF is one process. Returns ATTN_OK or what
 * attn_mpi_plan_create() returns, on every rank: a rank that cannot run the kernel is an error. */
ATTN_API attn_status attn_mpi_border(const attn_problem *whole, const attn_options *compute, MPI_Comm communicator,
                                     int64_t *keys);

/** Shards that balance a causal mask: of 2 `ranks` equal chunks at multiples of `border`, rank r gets chunk r and chunk 2
 * ranks - 1 - r (https://github.com/zhuzilin/ring-flash-attention). Writes up to two ranges, joined where they meet, and
 * returns how many there are. */
ATTN_API int attn_mpi_zigzag(int64_t tokens, int64_t border, int rank, int ranks, attn_mpi_range ranges[2]);

/** Writes lines on what a plan over so many ranks would choose, if rank 0 were this process, with zigzag shards, and the
 * model's time of each mode; no rank is needed. compute and network may be NULL. Returns ATTN_OK, or what
 * attn_mpi_plan_create() returns. */
ATTN_API attn_status attn_mpi_explain(const attn_problem *whole, const attn_options *compute, int ranks,
                                      const attn_mpi_network *network, char *text, size_t bytes);

/** Checks the problem and makes all choices, the same on every rank. Every rank gives the same problem but for its strides,
 * the same options, and its own shard. Rank 0 chooses the kernel, as for attn_mpi_border(). On failure *plan is NULL on
 * every rank, and attn_last_error() names the first rank that failed, and why.
 *
 * Takes no lists of key blocks, newest mask, window_first, key_begin, key_end, shared_prefix, dropout, STATE or factors of
 * V's channels. Bias, mask, given scores and row_len are those of the own rows, [batch][heads_q][own rows][seq_k] and
 * [batch][own rows]; with them rows cannot travel, and the mode is PASS_KV or SPLIT; with VARLEN they are refused.
 *
 * After attn_problem_set_backward(&whole) the plan finds d_q of own rows, d_k and d_v of own keys, from q, k, v, o, lse and
 * d_o. Sums are float32, of parts of piece_keys rows and keys (0 = attn_mpi_border()), in a fixed order: the bits depend on
 * piece_keys, but not on ranks and shards, whose borders are its multiples, of rows too. They are not those of
 * attn_plan_run(). Other gradients, ACCUMULATE and given scores are refused.
 *
 * Returns ATTN_OK, ATTN_INVALID_ARGUMENT, ATTN_UNSUPPORTED, ATTN_OUT_OF_MEMORY or ATTN_UNKNOWN_KERNEL. */
ATTN_API attn_status attn_mpi_plan_create(const attn_problem *whole, const attn_mpi_shard *shard,
                                          const attn_mpi_options *options, MPI_Comm communicator, attn_mpi_plan **plan);

/** Bytes of workspace that a run needs on this rank: a multiple of 64. docs/scale.md has the formula: in PASS_KV it does not
 * grow with the number of ranks, and holds some pieces of keys beside the states of own rows. */
ATTN_API size_t attn_mpi_plan_workspace(const attn_mpi_plan *plan);

/** Computes o and lse of the own rows from the parts that all ranks hold. Arguments are those of attn_plan_run(), with q, o,
 * lse of own rows and k, v of own keys. Every rank gives the same kv_len, q_len, offsets, cu_seqlens, slopes, sinks,
 * weights and factors (but for those of tokens): the whole problem's. With PAGES page_table has the pages of own keys, in
 * order: own key n of sequence b is token n % page_tokens of page page_table[b][n / page_tokens].
 *
 * Returns ATTN_OK, or the status of the first failure on some rank. */
ATTN_API attn_status attn_mpi_plan_run(attn_mpi_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);

/** Lines on mode, kernel, pieces, memory, and the model's time of each mode. Lives as long as the plan. */
ATTN_API const char *attn_mpi_plan_describe(const attn_mpi_plan *plan);

/** The mode that the plan uses: never ATTN_MPI_AUTO. */
ATTN_API attn_mpi_mode attn_mpi_plan_mode(const attn_mpi_plan *plan);

/** The name of the kernel whose bits rows get, chosen by rank 0: attn_options.kernel for the same in one process. */
ATTN_API const char *attn_mpi_plan_kernel(const attn_mpi_plan *plan);

/** Frees the plan and its communicator. NULL is fine. */
ATTN_API void attn_mpi_plan_destroy(attn_mpi_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
