/* SPDX-License-Identifier: MIT */
/* The files of libattn_mpi share this: the plan, the parts of the problem, calls of libattn on parts, messages. */
#ifndef ATTN_MPI_PLAN_H
#define ATTN_MPI_PLAN_H

#include "attn/extend.h"
#include "attn/mpi.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"

/* Rows or keys [begin, end) that one rank holds side by side, from its own row or key `at` on. */
typedef struct mpi_part {
  int64_t begin, end;
  int owner;
  int64_t at;
} mpi_part;

static inline int64_t part_length(const mpi_part *part) { return part->end - part->begin; }

/* Parts of all ranks. */
typedef struct mpi_parts {
  mpi_part *part;
  int64_t count;
  int64_t most; /* the longest one */
} mpi_parts;

/* Where rows and keys of a call lie: in the rank's own tensors, or packed in a message. */
typedef enum mpi_place { OWN_PLACE, MESSAGE_PLACE } mpi_place;

/* A plan of libattn for parts of so many rows and keys. */
typedef struct mpi_call {
  int64_t rows, keys;
  mpi_place of_rows, of_keys;
  attn_problem problem;
  attn_plan *plan;
} mpi_call;

/* Keys and values as a message holds them: [token][batch][KV head][element], or pages [page][batch][KV head][token of the
 * page][element]; those of K, then V, then factors of tokens. With VARLEN all sequences are one batch. */
typedef struct mpi_box {
  int64_t k_row, v_row;                /* elements of a row */
  int64_t k_bytes, v_bytes;            /* bytes of a row */
  bool k_factors, v_factors;           /* travel with the tokens */
  int64_t rows;                        /* rows of one token: batch x KV heads */
  attn_strides k, v, k_scale, v_scale; /* the meaning is that of attn_problem */
} mpi_box;

/* Where the parts of a box of some tokens begin, in bytes. */
typedef struct mpi_box_layout {
  int64_t k, v, k_scale, v_scale, bytes;
} mpi_box_layout;

struct attn_mpi_plan {
  MPI_Comm comm;    /* MPI_COMM_NULL: none yet */
  MPI_Comm joining; /* the same, while MPI_Comm_idup() is under way */
  int rank, ranks, tags;
  int first, stride;       /* rank r is rank first + r * stride of comm */
  attn_problem whole, own; /* own: strides of this rank's tensors */
  attn_options compute;
  char kernel[64]; /* the choice of rank 0, with splits and unit; rows get its bits */
  attn_mpi_mode mode;
  int group;           /* ranks among which EXCHANGE divides heads */
  attn_mpi_plan *ring; /* EXCHANGE: this rank's heads, which the groups pass keys for; NULL = there is one group */
  attn_mpi_network network;
  attn_mpi_run_fn run;
  void *run_context;
  double timeout_s;
  int64_t unit;   /* keys between borders */
  int64_t splits; /* keys between borders of the kernel: unit is a multiple, of whole pages */
  int64_t own_rows, own_keys;
  int64_t asked_piece_keys, asked_block_rows; /* 0 = chosen */
  int asked_group;
  mpi_parts rows, keys; /* ranges of shards, by rank */
  int64_t *first_rows;  /* [ranks + 1]: those of each rank */
  int64_t *rank_splits; /* [ranks]: splits of each rank's keys, for SPLIT */
  mpi_parts pieces;     /* keys in messages, in their order */
  mpi_parts blocks;     /* rows in calls, in their order */
  mpi_parts stations;   /* keys of one rank side by side, in their order */
  bool holds_all;       /* each rank has all rows, */
  bool overlaps;        /* or some rows are those of several ranks */
  mpi_box box;
  mpi_call *calls;
  int call_count;
  int64_t keys_of_calls;        /* most keys of a call */
  int64_t more_numbers;         /* beside those of mpi_attend(), for calls of a mode */
  int32_t *numbers;             /* lengths and offsets of one call */
  size_t call_bytes, workspace; /* the largest workspace of a call, and of a run */
  bool broken;                  /* a run has failed: messages may be under way */
  double model_s[ATTN_MPI_SPLIT + 1];
  const char *refusal[ATTN_MPI_SPLIT + 1]; /* why the problem does not go with a mode; NULL = it does */
  char description[3000];
};

static inline int comm_rank(const attn_mpi_plan *plan, int rank) { return plan->first + rank * plan->stride; }

static inline bool finds_gradients(const attn_mpi_plan *plan) { return plan->whole.operation == ATTN_BACKWARD; }

/* Sequences that lie apart in tensors: with VARLEN all are one. */
static inline int64_t batch_of(const attn_problem *p) { return attn_uses(p, ATTN_USE_VARLEN) ? 1 : p->batch; }

static inline int64_t state_row_bytes(const attn_problem *p) { return float_bytes(attn_state_floats(p->dim_v)); }

/* ---- messages.c: MPI calls that never wait for ever ---- */

/* The status and sentence of a failed MPI call. */
attn_status mpi_failed(attn_mpi_plan *plan, const char *call, int error);
#define MPI_TRY(plan, call, ...)                                         \
  do {                                                                   \
    const int error_ = call(__VA_ARGS__);                                \
    if (error_ != MPI_SUCCESS) return mpi_failed((plan), #call, error_); \
  } while (0)

enum { ABORT_TAG = 0, FIRST_TAG = 1, MOST_MESSAGE = 1 << 30 };

double mpi_now(void);

/* Requests that are under way. */
typedef struct mpi_requests {
  attn_mpi_plan *plan;
  MPI_Request *request;
  int *done; /* room for the indices */
  int count;
  double last;                         /* time at which something ended, or the run began */
  attn_status (*moved)(void *context); /* NULL, or called when something has ended */
  void *context;
} mpi_requests;

/* Room for so many requests, none of which is under way. mpi_free_requests() also follows a failure. */
attn_status mpi_make_requests(mpi_requests *all, int64_t room);
void mpi_free_requests(mpi_requests *all);

/* Lets messages go on. Fails if another rank has failed. */
attn_status mpi_poll(mpi_requests *all);
/* Waits until request `index` has ended, or all for -1. `rank` is named if that takes too long; -1: some rank. */
attn_status mpi_wait(mpi_requests *all, int index, int rank);

/* Tells the other ranks that this one has failed, and returns `status`. */
attn_status mpi_abort_run(attn_mpi_plan *plan, attn_status status);

/* A collective operation's request, waited for. */
attn_status mpi_wait_one(attn_mpi_plan *plan, MPI_Request *request);

/* Begins to send or receive any number of bytes: appends requests to all->request, which has room for them. */
attn_status mpi_send(mpi_requests *all, const void *data, int64_t bytes, int to, int64_t tag);
attn_status mpi_receive(mpi_requests *all, void *data, int64_t bytes, int from, int64_t tag);
static inline int64_t mpi_messages_of(int64_t bytes) { return ceil_div(bytes, MOST_MESSAGE); }

/* ---- plan.c ---- */

/* Problem, options of calls and network, which may be NULL, of a plan; refuses problems that no mode takes. */
attn_status mpi_read_problem(attn_mpi_plan *plan, const attn_problem *whole, const attn_options *compute,
                             const attn_mpi_network *network);
/* A communicator of the plan's own. */
attn_status mpi_join_ranks(attn_mpi_plan *plan, MPI_Comm communicator);
/* The first failure of all ranks, with its sentence, on every rank. */
attn_status mpi_agree(attn_mpi_plan *plan, attn_status own);
/* The numbers that all ranks must give alike. */
attn_status mpi_agree_on_problem(attn_mpi_plan *plan, const attn_mpi_options *o);

/* ---- kernel.c: rank 0 chooses for all ---- */

/* Sets kernel, splits and unit of the plan to what this rank would choose. */
attn_status mpi_find_kernel(attn_mpi_plan *plan);
/* Sets them to what rank 0 chooses. Fails on all ranks if one of them cannot run it. */
attn_status mpi_choose_kernel(attn_mpi_plan *plan);

/* ---- parts.c: who holds and needs what ---- */

int64_t mpi_all_keys(const attn_problem *p); /* with VARLEN those of all sequences */
attn_status mpi_gather_parts(attn_mpi_plan *plan, const attn_mpi_shard *shard);
attn_status mpi_cut_parts(attn_mpi_plan *plan, int64_t piece_keys, int64_t block_rows);
/* Sets rows and keys of a ring to those of groups of `group` ranks of the plan, side by side in the order of tokens. */
attn_status mpi_join_groups(const attn_mpi_plan *plan, attn_mpi_plan *ring);
void mpi_free_parts(attn_mpi_plan *plan);

/* Whether some row of the part may see a key of the other. */
bool mpi_sees(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, const mpi_part *keys);
bool mpi_rank_sees(const attn_mpi_plan *plan, const attn_args *args, int rank, const mpi_part *keys);

/* ---- box.c: keys and rows in messages ---- */

void mpi_box_of(attn_mpi_plan *plan);
mpi_box_layout mpi_lay_out_box(const attn_mpi_plan *plan, int64_t keys);
/* Heads [begin, end). */
typedef struct mpi_heads {
  int64_t begin, end;
} mpi_heads;

/* K, V, and factors of the tokens of each: bytes of a row of one, 0 where it does not travel. */
enum { BOX_TENSORS = 4 };
int64_t mpi_tensor_bytes(const attn_mpi_plan *plan, int tensor);
attn_strides mpi_box_strides(const attn_mpi_plan *plan, int64_t heads, int64_t row);
/* Copies own keys of a part, of some KV heads, each tensor to a place of its own. */
void mpi_pack_heads(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, mpi_heads heads,
                    char *const to[]);
/* Copies own keys of a part into a box. */
void mpi_pack_keys(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, char *to);

/* Bytes of packed rows [batch][heads][rows][dim]. */
int64_t mpi_query_bytes(const attn_mpi_plan *plan, int64_t rows);
/* Copies rows of one head of one sequence between a tensor and dense rows. */
void mpi_copy_rows(attn_dtype dtype, char *tensor, int64_t at, const attn_strides *stride, int64_t rows, int64_t columns,
                   char *dense, bool to_tensor);
/* Copies own rows of some heads, [token][batch][head][column], to or from a packed place; returns its end. Tokens of no
 * sequence are left out. */
char *mpi_copy_tokens(const attn_mpi_plan *plan, const attn_args *args, attn_dtype dtype, void *tensor,
                      const attn_strides *stride, int64_t columns, const mpi_part *part, mpi_heads heads, char *packed,
                      bool to_tensor);
void mpi_pack_rows(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, char *to);

/* ---- calls.c: libattn on parts ---- */

/* Finds or makes the plan of a call. */
attn_status mpi_find_call(attn_mpi_plan *plan, int64_t rows, int64_t keys, mpi_place of_rows, mpi_place of_keys,
                          const mpi_call **call);
/* Makes the plan of another problem: plan->calls[plan->call_count - 1] then. */
attn_status mpi_add_call(attn_mpi_plan *plan, const mpi_call *like);
/* Those of all blocks with all parts of the keys: own ones alone, where they are to lie in the own tensors. */
attn_status mpi_find_calls(attn_mpi_plan *plan, const mpi_parts *keys, mpi_place of_rows, mpi_place of_keys);
/* Those of mpi_finish(). */
attn_status mpi_find_last_calls(attn_mpi_plan *plan);
attn_status mpi_run_call(attn_mpi_plan *plan, const mpi_call *call, const attn_args *args, void *workspace);
void mpi_free_calls(attn_mpi_plan *plan);

/* Rows of a call: in the own tensors, or in a message (q then points to packed rows). */
typedef struct mpi_row_view {
  const mpi_part *part;
  mpi_place place;
  const void *q;
  float *state;
} mpi_row_view;

/* Rows see the keys of `keys`, which lie in `box`, or in the own tensors where that is NULL. */
attn_status mpi_attend(attn_mpi_plan *plan, const attn_args *args, const mpi_row_view *rows, const mpi_part *keys,
                       const char *box, void *workspace);
/* O and LSE of own rows from their states. */
attn_status mpi_finish(attn_mpi_plan *plan, const attn_args *args, const mpi_row_view *rows, void *workspace);
/* Adds the gradients of rows of one part and keys of another: all tensors are float32, rows dense, keys as in a box. */
attn_status mpi_differentiate(attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, const mpi_part *keys,
                              void *workspace);
/* States of rows that have seen no key. */
void mpi_start_states(const attn_mpi_plan *plan, int64_t rows, float *state);

/* ---- rounds.c: blocks of all ranks for all ranks ---- */

typedef struct mpi_blocks {
  attn_mpi_plan *plan;
  int radix;                                               /* the same on all ranks */
  int64_t slot_bytes;                                      /* the largest block, or more */
  int64_t (*bytes)(const void *context, int from, int to); /* those of a block */
  const void *context;
} mpi_blocks;

/* Seconds of all rounds by the best radix, where a rank has so many bytes for others. radix may be NULL. */
double mpi_seconds_of_rounds(const attn_mpi_network *network, int ranks, double bytes, int *radix);
/* Slot i has the block for the rank i above this one (behind the last one follows the first); then that of the rank i below
 * it. `sent` and `received` have room for all slots. */
attn_status mpi_swap_blocks(const mpi_blocks *blocks, char *slots, char *sent, char *received, mpi_requests *all, int tag);
/* `blocks` begins with the own one; then that of the rank below follows, and so on. A block is bytes(context, rank, rank).
 */
attn_status mpi_gather_blocks(const mpi_blocks *blocks, char *to, mpi_requests *all, int tag);

/* ---- travel.c: items that visit ranks one after the other ---- */

/* A visit of this rank: item from rank `from`, then on to rank `to`; -1: it does not travel, or ends here. */
typedef struct mpi_visit {
  int64_t item, station, step;
  int from, to;
  bool first, last; /* comes from its owner; goes back to it */
} mpi_visit;

/* The part of an item that a message has. */
typedef struct mpi_leg {
  int64_t at, bytes;
} mpi_leg;

/* An item of this rank: where it begins, and where it comes back to. */
typedef struct mpi_own_item {
  int64_t item;
  int to, from; /* -1: it does not leave, or does not come back */
  char *out, *back;
} mpi_own_item;

/* A station on the way of an item. */
typedef struct mpi_stop {
  int64_t station;
  int owner;
} mpi_stop;

typedef struct mpi_journey {
  attn_mpi_plan *plan;
  const attn_args *args;
  void *call_workspace;
  mpi_own_item *own; /* with visits and stops: room of mpi_make_journey() */
  int64_t own_count;
  mpi_visit *visits; /* in the order of items; mpi_travel() sorts those that carry by step */
  int64_t count;
  mpi_stop *stops;
  char *buffers;
  int64_t buffer_count, buffer_bytes;
  bool in_turn; /* one item at a time comes from a rank */
  bool carries; /* a visit changes the item: it goes on when the visit has ended, else when it has come */
  mpi_leg (*out)(const attn_mpi_plan *plan, int64_t item);  /* from its owner, */
  mpi_leg (*on)(const attn_mpi_plan *plan, int64_t item);   /* from visit to visit, */
  mpi_leg (*back)(const attn_mpi_plan *plan, int64_t item); /* to its owner */
  /* item: NULL where it did not travel */
  attn_status (*work)(const struct mpi_journey *journey, const mpi_visit *visit, char *item, mpi_requests *all);
  void *context;
} mpi_journey;

/* Room for so many own items, visits of this rank, and stops of an item. mpi_free_journey() also follows a failure. */
attn_status mpi_make_journey(mpi_journey *j, int64_t own, int64_t visits, int64_t stops);
void mpi_free_journey(mpi_journey *j);
/* An item of rank `home` that passes `count` of j->stops, the first one at step `step`, and goes home: the visits of this
 * rank, and the item if it is an own one. */
void mpi_add_item(mpi_journey *j, int64_t item, int home, int64_t step, int64_t count, char *out, char *back);
attn_status mpi_travel(const mpi_journey *journey);

/* ---- Modes: what they need, and a run ---- */

typedef struct mpi_mode {
  const char *name;
  const char *(*refuses)(const attn_mpi_plan *plan); /* NULL, or why */
  attn_status (*lay_out)(attn_mpi_plan *plan);       /* makes calls, sets plan->workspace */
  attn_status (*run)(attn_mpi_plan *plan, const attn_args *args, char *workspace);
} mpi_mode;
/* Why rows cannot travel; NULL if they can. */
const char *mpi_rows_stay(const attn_mpi_plan *plan);
/* Sets plan->workspace for items of up to `most` things that fit into a message; an error names attn_mpi_options.`option`.
 */
attn_status mpi_take_layout(attn_mpi_plan *plan, int64_t bytes, int64_t item_bytes, int64_t most, const char *things,
                            const char *option);
extern const mpi_mode mpi_pass_kv, mpi_pass_q, mpi_exchange, mpi_split, mpi_backward;
const mpi_mode *mpi_mode_of(const attn_mpi_plan *plan, attn_mpi_mode mode); /* not ATTN_MPI_AUTO */

/* Keys of a message, where nothing was asked for: two pieces or more of a range of mean length, so that one goes on while
 * the next comes, but not shorter than calls of libattn are fast for. Zigzag's two ranges of the last rank are one. */
int64_t mpi_piece_keys(int64_t keys, int64_t ranges);
/* Rows of a message: four blocks of a range are under way. */
int64_t mpi_block_rows(int64_t range);
/* Ranges of keys of all ranks, where each has as many. */
int64_t mpi_even_ranges(const attn_mpi_plan *plan);
/* Parts, calls and workspace of the plan's mode. */
attn_status mpi_lay_out_plan(attn_mpi_plan *plan);
void mpi_free_plan(attn_mpi_plan *plan); /* but for its communicator; NULL is fine */

/* ---- model.c ---- */

/* Whether EXCHANGE can divide heads among groups of so many ranks: evenly, and KV heads as evenly as their query heads. */
bool mpi_has_groups(const attn_mpi_plan *plan, int group);
/* A line for each mode: its time by the model, or why it does not take the problem. */
void mpi_describe_modes(const attn_mpi_plan *plan, char *text, size_t bytes);
/* Fills in plan->network and plan->model_s, and chooses among the modes that take the problem. */
attn_status mpi_choose_mode(attn_mpi_plan *plan, const attn_mpi_network *network, attn_mpi_mode wanted);

#endif
