/* SPDX-License-Identifier: MIT */
/* Flash attention in the tile unit (AMX): TDPBF16PS multiplies 16 x 32 by 32 x 16 values and adds the 16 x 16 results in
 * float32, at 16 times the rate of AVX-512's float32 multiply-adds. Values are one bfloat16 or a sum of several; parameter:
 * PARTS (parts_amx.h).
 *
 * Queries are in lanes: S^T = K Q^T and O^T = V^T P^T. So P leaves the exponentials in the layout that the unit takes, and
 * maxima, sums and rescaling are vertical. The unit of work is a job, 64 keys for a tile of 32 queries. While the vectors
 * compute softmax of one job, the unit computes the output of the job before it and the scores of the job behind it
 * (body_amx.h), across tiles of queries.
 *
 *   parts_amx.h        values as sums of bfloat16
 *   shape_amx.h        what stands in memory in which order
 *   pack_amx.h         Q, K and V into that order
 *   softmax_amx.h      P from S, two keys of 16 queries at a time
 *   body_amx.h         the products, with softmax between them
 *   query_tile_amx.h   a tile of queries: masks, further terms of scores, references, output rows
 *   flash_amx.h        the schedule: which job comes when */
#ifndef ATTN_FLASH_AMX_H
#define ATTN_FLASH_AMX_H

#include "query_tile_amx.h"

#include "kernels/common/problem/rejects.h"
#include "kernels/common/problem/terms.h"

enum {
  MOST_ROWS = 1024,      /* tiles of a task, which share a super-block of keys */
  MOST_LISTED = 1 << 16, /* bytes of what the lists of a task say of blocks */
  BLOCKS_AHEAD = 3,      /* from the block at work to that whose bias or mask is prefetched */
  JOBS = 3               /* before, now, next */
};

#if PARTS > 1
static const char *takes_f32(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: its products take bf16 parts of values";
  if (attn_uses(p, ATTN_USE_KV_SCALES)) return "its products take float32 values as they are, without ATTN_USE_KV_SCALES";
  if (p->dtype_q != ATTN_F32) return "it splits float32 inputs into parts: dtype_q must be ATTN_F32";
  if (p->dtype_kv != ATTN_F32) return "it splits float32 inputs into parts: dtype_kv must be ATTN_F32";
  return NULL;
}
#endif

/* ---- Memory of a thread ---- */

/* Blocks of keys in a super-block, which stays in level 2 while tiles pass: K and V of all keys, if they take half of it.
 * Else three eighths of it: the next super-block is fetched before this one ends. */
static int64_t blocks_of_super(const attn_problem *p, const attn_machine *machine) {
  const int64_t blocks = blocks_of(p->seq_k), level2 = machine->caches().level2;
  const int64_t bytes = (block_values(p->dim_qk) + block_values(p->dim_v)) * (int64_t)sizeof(uint16_t);
  if (blocks <= level2 / 2 / bytes) return max64(1, blocks);
  return ceil_div(blocks, ceil_div(blocks, max64(1, level2 / 8 * 3 / bytes)));
}

/* Plan data. */
typedef struct thread_layout {
  int64_t s, again, turned, nowhere, p, q, v, o, tiles, listed, total; /* offsets in bytes, and the size */
  int64_t per_super;                                                   /* blocks of keys in a super-block */
  bool cold; /* the call prefetches for the next tasks (cold_lines.h) */
} thread_layout;
_Static_assert(sizeof(thread_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* Tiles whose O^T exist at once. With one super-block these are the tile at work and the one before. Where tiles go on from
 * states, all of them and a place for products without a job. */
static int64_t outputs_of(const attn_problem *p, int64_t rows, int64_t per_super) {
  const int64_t tiles = ceil_div(rows, TILE_QUERIES);
  if (attn_uses(p, ATTN_USE_STATE)) return tiles + 1;
  return blocks_of(p->seq_k) <= per_super ? 2 : tiles;
}

/* Offsets and size; per_super is known. */
static bool thread_layout_of(const attn_problem *p, int64_t rows, thread_layout *at) {
  const int64_t tiles = ceil_div(rows, TILE_QUERIES), depth_qk = depth_of(p->dim_qk), depth_v = depth_of(p->dim_v);
  const memory_part parts[] = {
      {&at->s, SCORES, sizeof(float)},
      {&at->p, 2 * PARTS * KEY_BLOCK * TILE_QUERIES, sizeof(uint16_t)},
      {&at->q, 2 * PARTS * STEP * depth_qk, sizeof(uint16_t)},
      {&at->o, outputs_of(p, rows, at->per_super) * depth_v, SUMS * sizeof(float)},
      {&at->nowhere, SUMS, sizeof(float)},
      {&at->again, SCORES, sizeof(float)},
      {&at->turned, SCORES, sizeof(float)},
      {&at->v, PARTS * GROUPS * STEP * depth_v, sizeof(uint16_t)},
      {&at->tiles, tiles, sizeof(query_tile)},
      {&at->listed, attn_lists_keys(p) ? lists_of(tiles * TILE_QUERIES) : 0, blocks_of(p->seq_k)},
  };
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

static uint16_t *values_at(void *memory, int64_t offset) { return (uint16_t *)(void *)floats_at(memory, offset); }

/* Rows of a task: as many as may share a super-block of keys, unless threads would idle. O^T of their tiles waits in a
 * quarter of level 2 if there are several super-blocks, and what their lists say of blocks in MOST_LISTED bytes. */
static int64_t rows_of_task(const attn_problem *p, const attn_machine *machine) {
  const int64_t heads = max64(1, p->batch * p->heads_q), output_row = depth_of(p->dim_v) * DEPTH * (int64_t)sizeof(float);
  const int64_t threads = machine->threads, output_bytes = machine->caches().level2 / 4;
  int64_t rows = MOST_ROWS;
  while (rows > 4 * TILE_QUERIES && rows * output_row > output_bytes) rows /= 2;
  while (attn_lists_keys(p) && rows > TILE_QUERIES && lists_of(rows) * blocks_of(p->seq_k) > MOST_LISTED) rows /= 2;
  while (threads > 1 && rows > 4 * TILE_QUERIES && heads * ceil_div(p->seq_q, rows) < 8 * threads) rows /= 2;
  while (threads > 1 && rows > TILE_QUERIES && heads * ceil_div(p->seq_q, rows) < 2 * threads) rows /= 2;
  return min64(rows, round_up(max64(p->seq_q, 1), TILE_QUERIES));
}

static bool flash_amx_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  const int64_t most = INT64_MAX / 64, rows = rows_of_task(p, machine);
  thread_layout *at = (void *)schedule->own;
  if (p->dim_qk > most / 4096 || p->dim_v > most / 4096) return false;
  if (p->seq_k > 0 && round_up(p->dim_qk, DEPTH) + round_up(p->dim_v, DEPTH) > most / round_up(p->seq_k, KEY_BLOCK))
    return false;
  at->per_super = blocks_of_super(p, machine);
  at->cold = !fits_level_2(p, machine);
  if (!thread_layout_of(p, rows, at)) return false;
  plan_phases(p, rows, KEY_BLOCK, packed_values(p) * (int64_t)sizeof(uint16_t), at->total, schedule);
  return true;
}

/* ---- Jobs ---- */

/* 64 keys for a tile of queries. */
typedef struct job {
  bool exists, starts, last; /* starts, last: this is the first or the last block of its tile */
  bool masked;               /* some query does not see some key */
  bool biased;               /* softmax adds the bias, instead of adjust_block */
  query_tile *tile;
  int64_t block;
  const uint16_t *q;
  uint32_t visible[GROUPS * TILE_QUERIES]; /* if masked */
} job;

/* A task: what stays the same from job to job. */
typedef struct attention {
  const row_block *block; /* the task's rows; its pointers to memory are not used */
  uint16_t *unit;
  query_tile *tiles;
  float *s, *again;
  float *nowhere, *unused_o; /* unused_o: NULL where a tile's first job starts its O anew */
  uint16_t *p[2], *q[2], *v;
  pending_sums pending;
  const uint16_t *k;       /* the first key of the KV head, if all lie in one run */
  int64_t in_place_blocks; /* blocks of K that are read in place */
  int64_t k_block;         /* values from a block of K to the next */
  int64_t per_super;       /* blocks of keys in a super-block */
  int depth_qk, depth_v;
  body_function *body[SCORE_KINDS];
  bool adjusted;  /* scores are more than dot products times a positive scale */
  bool adds_bias; /* changed by no more than a bias of adjacent keys, which softmax can add */
  float *turned;  /* bias with queries in lanes; its first half is that of `turned_for` */
  const float *turned_for;
  cold_lines cold;
  bool first_again; /* the next task begins with this one's first super-block */
} attention;

/* Where the loop over super-blocks of keys, tiles and blocks stands. */
typedef struct walk {
  int64_t first_tile, end_tile, end_block, per_super;
  int64_t super, tile, block, packed_tile;
  int slot; /* where Q stands */
} walk;

static walk start_walk(const attention *a, int64_t first_tile, int64_t end_tile) {
  walk w = {.first_tile = first_tile, .end_tile = end_tile, .per_super = a->per_super, .packed_tile = -1};
  w.super = INT64_MAX;
  for (int64_t i = first_tile; i < end_tile; i++) {
    const query_tile *t = &a->tiles[i];
    if (t->first_block < t->end_block) w.super = min64(w.super, round_down(t->first_block, w.per_super));
    w.end_block = max64(w.end_block, t->end_block);
  }
  w.tile = first_tile;
  return w;
}

static void fill_in_job(const attention *a, walk *w, job *next) {
  query_tile *t = &a->tiles[w->tile];
  if (w->packed_tile != w->tile) {
    w->packed_tile = w->tile;
    w->slot = !w->slot;
    pack_queries(a->block, t->row, t->range, a->q[w->slot]);
  }
  next->exists = true;
  next->starts = !t->started;
  next->last = w->block + 1 == t->end_block;
  next->biased = a->adds_bias && !next->masked && t->row + TILE_QUERIES <= a->block->rows;
  next->tile = t;
  next->block = w->block;
  next->q = a->q[w->slot];
  t->started = true;
}

/* Whether the walk's block holds keys for its tile, and is therefore worth a job. */
static bool block_matters(const attention *a, const walk *w, job *next) {
  const query_tile *t = &a->tiles[w->tile];
  const int64_t key = w->block * KEY_BLOCK;
  if (attn_lists_keys(a->block->problem) && both_halves_are(a->block, t, w->block, BLOCK_UNLISTED)) return false;
  next->masked = t->all_begin > key || key + KEY_BLOCK > t->all_end || a->block->careful ||
                 !both_halves_are(a->block, t, w->block, BLOCK_FULL);
  if (w->block + 1 == t->end_block) { /* a tile's last block is its job in any case */
    if (next->masked) visible_keys(a->block, t, key, next->visible);
    return true;
  }
  if (bias_takes_all(a->block, t, key)) return false;
  return !next->masked || visible_keys(a->block, t, key, next->visible);
}

static void find_job(const attention *a, walk *w, job *next) {
  for (; w->super < w->end_block; w->super += w->per_super, w->tile = w->first_tile)
    for (; w->tile < w->end_tile; w->tile++, w->block = 0) {
      const query_tile *t = &a->tiles[w->tile];
      for (w->block = max64(w->block, max64(w->super, t->first_block));
           w->block < min64(t->end_block, w->super + w->per_super); w->block++)
        if (block_matters(a, w, next)) {
          fill_in_job(a, w, next);
          w->block++;
          return;
        }
    }
  next->exists = false;
}

/* ---- One job's operands ---- */

/* A block of K that is read in place. */
static const uint16_t *k_at(const attention *a, int64_t block) {
  const row_block *rows = a->block;
  if (a->k) return a->k + block * a->k_block;
  const attn_key_run run = attn_key_run_at(rows->problem, rows->args, rows->seq, rows->head, block * KEY_BLOCK);
  return (const uint16_t *)rows->args->k + run.k;
}

static score_work scores_of(const attention *a, const job *j, float *s) {
  const bool in_place = j->block < a->in_place_blocks;
  const int64_t value = sizeof(uint16_t), stride = in_place ? a->block->problem->k_stride.s : DEPTH;
  return (score_work){.s = s,
                      .q = j->q,
                      .k = in_place ? k_at(a, j->block) : packed_k(a->block->problem, a->unit, j->block),
                      .k_stride = stride * value,
                      .k_step = (in_place ? DEPTH : STEP) * value,
                      .k_group = (in_place ? 32 * stride : PARTS * a->depth_qk * STEP) * value};
}

static const uint16_t *values_of(const attention *a, const job *j) {
  return a->unit + j->block * block_values(a->block->problem->dim_v);
}

/* A copy of V^T without the keys that no query of the tile sees. */
static const uint16_t *seen_values(const attention *a, const job *j) {
  const uint16_t *v = values_of(a, j);
  uint64_t seen = 0;
  if (!j->masked) return v;
  for (int i = 0; i < TILE_QUERIES; i++) seen |= j->visible[i] | (uint64_t)j->visible[TILE_QUERIES + i] << 32;
  for (int64_t i = 0; i < PARTS * a->depth_v * GROUPS * STEP; i++) {
    const int64_t key = i / STEP % GROUPS * 32 + i % 32;
    a->v[i] = seen >> key & 1 ? v[i] : 0;
  }
  return a->v;
}

/* Without a job, products of finite or other values go where the first job's output will start anew, or where nobody reads
 * them. */
static output_work output_of(const attention *a, const job *before, const job *now, const uint16_t *p) {
  if (!before->exists)
    return (output_work){.o = a->unused_o ? a->unused_o : now->tile->o, .starts = true, .v = values_of(a, now), .p = p};
  return (output_work){.o = before->tile->o,
                       .starts = before->starts,
                       .v = a->block->careful ? seen_values(a, before) : values_of(a, before),
                       .p = p};
}

/* The softmax of a job's scores. Adjusted scores are scaled already. */
static softmax_work softmax_of(const attention *a, const job *j, const float *s, uint16_t *p, float *sum, bool adjusted) {
  return (softmax_work){.s = s,
                        .p = p,
                        .visible = j->visible,
                        .minus_ref = j->tile->minus_ref,
                        .sum = sum,
                        .scale = adjusted ? 1 : a->block->problem->scale * LOG2_E};
}

static const float *bias_of(const attention *a, const job *j) {
  const attn_score_strides *stride = &a->block->problem->bias_stride;
  return a->block->args->bias + score_offset_of(a->block, stride, j->tile->row, j->block * KEY_BLOCK);
}

/* Lets softmax of `now` add its bias, and turns the beginning of the bias of `next`. */
static void give_bias(attention *a, const job *now, const job *next, softmax_work *x) {
  x->bias_stride = a->block->problem->bias_stride.q;
  x->turned = a->turned;
  x->bias[0] = bias_of(a, now);
  x->bias[1] = next->exists && next->biased ? bias_of(a, next) : x->bias[0];
  if (a->turned_for != x->bias[0]) turn_first_bias(x->bias[0], x->bias_stride, a->turned);
  a->turned_for = x->bias[1];
}

/* ---- Lines for later ---- */

/* Lets softmax of `blocks` blocks prefetch a pair of lines for each pair of keys: the first two lines of each row, next time
 * the next two. False if no lines are left. */
static bool ask_for_rows(line_walk *from, int64_t blocks, softmax_work *x) {
  const int64_t rows = blocks * KEY_BLOCK / 2;
  if (from->rows <= 0) return false;
  x->wanted_step = (uintptr_t)(from->row * LINE_BYTES) + from->gap;
  x->wanted = from->next + (uintptr_t)((from->row - from->left) * LINE_BYTES);
  from->left -= 2;
  if (from->left > 0) return true;
  from->left = from->row;
  from->next += (uintptr_t)rows * x->wanted_step;
  from->rows -= rows;
  return true;
}

/* The bias or mask of a later block of the walk, a row for each pair of keys. */
static void ask_for_terms(const attention *a, const walk *w, const job *now, const attn_score_strides *stride,
                          const void *tensor, size_t size, softmax_work *x) {
  const int64_t super = round_down(now->block, w->per_super), block = now->block + BLOCKS_AHEAD;
  const int64_t end = min64(now->tile->end_block, super + w->per_super);
  const bool beyond = block >= end; /* in the next tile of queries, then */
  const int64_t row = now->tile->row + (beyond ? TILE_QUERIES : 0);
  const int64_t key = (beyond ? max64(super, now->tile->first_block) + block - end : block) * KEY_BLOCK;
  x->wanted = (uintptr_t)tensor + (uintptr_t)score_offset_of(a->block, stride, row, key) * size;
  x->wanted_step = (uintptr_t)stride->q * size;
}

/* Lets the last tiles of a super-block prefetch K and V^T of the next one: half of these tiles K, half V^T, 4 KiB in each
 * block. K goes by columns of two lines, the first half of its rows before the second. */
static void ask_for_super(const attention *a, const walk *w, const job *now, softmax_work *x) {
  const int64_t super = round_down(now->block, w->per_super), block = now->block - super;
  const int64_t next = super + w->per_super < w->end_block ? super + w->per_super : a->first_again ? 0 : -1;
  const int64_t tiles = round_up(max64(a->depth_qk, a->depth_v), 2), left = w->end_tile - 1 - now->tile->row / TILE_QUERIES;
  const int64_t part = left % tiles;
  if (next < 0 || left >= 2 * tiles || w->per_super >= w->end_block || attn_lists_keys(a->block->problem)) return;
  if (left < tiles) {
    x->wanted_step = 2 * LINE_BYTES;
    x->wanted = (uintptr_t)packed_v(a->block->problem, a->unit, next) +
                (uintptr_t)(part * w->per_super + block) * (KEY_BLOCK / 2) * x->wanted_step;
  } else if (a->k) {
    const int64_t row = next * KEY_BLOCK + (part % 2 * w->per_super + block) * (KEY_BLOCK / 2);
    x->wanted_step = (uintptr_t)a->block->problem->k_stride.s * sizeof(uint16_t);
    x->wanted = (uintptr_t)(a->k + part / 2 * 2 * DEPTH) + (uintptr_t)row * x->wanted_step;
  }
}

/* Gives softmax the lines to prefetch: first those of the bias, of the mask, or of the next super-block, which are needed
 * soonest. If there are none, cold lines of O, V, K or Q. */
static void give_lines(attention *a, const walk *w, const job *now, int64_t blocks, softmax_work *x) {
  const attn_problem *p = a->block->problem;
  cold_lines *cold = &a->cold;
  if (now->biased)
    ask_for_terms(a, w, now, &p->bias_stride, a->block->args->bias, sizeof(float), x);
  else if (attn_uses(p, ATTN_USE_MASK) && p->mask_keys == 0)
    ask_for_terms(a, w, now, &p->mask_stride, a->block->args->mask, 1, x);
  else
    ask_for_super(a, w, now, x);
  if (!cold->any || x->wanted_step != 0) return;
  cold->any = ask_for_rows(&cold->o, blocks, x) || ask_for_rows(&cold->v, blocks, x) || ask_for_rows(&cold->k, blocks, x) ||
              ask_for_rows(&cold->q, blocks, x);
}

/* ---- References ---- */

/* P of a job once more, with references that suit: its scores may be gone, so they are computed again, too. */
static NO_INLINE void move_references(attention *a, const job *j, const __mmask16 moving[2], uint16_t *p, float *sum) {
  const score_work scores = scores_of(a, j, a->again);
  store_pending(&a->pending, a->nowhere);
  scores_alone(&a->pending, &scores, a->depth_qk);
  store_pending(&a->pending, a->nowhere);
  if (a->adjusted) adjust_block(a->block, j->tile->row, j->block * KEY_BLOCK, a->again);
  const softmax_work x = softmax_of(a, j, a->again, p, sum, a->adjusted);
  for (int half = 0; half < 2; half++) {
    const vec largest = vec_mul(largest_scores(a->again, j->masked ? j->visible : NULL, half), vec_set1(x.scale));
    move_half(j->tile, half, moving[half], largest, j->starts ? 0 : a->depth_v);
  }
  softmax_alone(&x, j->masked);
}

/* Sees to it that the references suit the job's P, and adds its sums. */
static void settle_job(attention *a, const job *j, uint16_t *p, float *sum) {
  query_tile *t = j->tile;
  __mmask16 moving[2];
  for (int half = 0; half < 2; half++)
    moving[half] = misfits(vec_load(t->sum + half * HALF), vec_load(sum + half * HALF),
                           j->masked ? sees_block(j->visible, half) : (__mmask16)-1);
  if (__builtin_expect(moving[0] | moving[1], 0)) move_references(a, j, moving, p, sum);
  for (int half = 0; half < 2; half++)
    vec_store(t->sum + half * HALF, vec_add(vec_load(t->sum + half * HALF), vec_load(sum + half * HALF)));
}

/* ---- The pipeline ---- */

/* Skips blocks, from `key_block` on, that every row of the tile visits without a mask; returns the next one. */
static int64_t end_of_full(const row_block *block, const query_tile *t, int64_t key_block) {
  while (key_block < t->end_block && both_halves_are(block, t, key_block, BLOCK_FULL)) key_block++;
  return key_block;
}

/* How many jobs behind `now` differ from it in nothing but their block, and have a next one that does not either: the body
 * goes through them without a look at each. */
static int64_t jobs_alike(const attention *a, const walk *w, const job *before, const job *now, const job *next) {
  const query_tile *t = now->tile;
  if (!before->exists || before->tile != t || !next->exists || next->tile != t || a->adjusted) return 0;
  if (before->masked || now->masked || next->masked) return 0;
  if (before->block + 1 != now->block || now->block + 1 != next->block) return 0;
  int64_t seen = min64(min64(t->end_block, t->all_end / KEY_BLOCK), w->super + w->per_super);
  if (attn_has_block_kinds(a->block->problem)) seen = min64(seen, end_of_full(a->block, t, next->block));
  const int64_t run = attn_run_keys(a->block->problem, a->block->seq, next->block * KEY_BLOCK) / KEY_BLOCK;
  return max64(0, min64(seen, a->in_place_blocks > 0 ? next->block + run : seen) - 1 - next->block);
}

/* Does softmax of `now`, beside the output of `before` and the scores of `next`, and then of further blocks as long as jobs
 * are alike: `now` and `next` become the last pair of these. Returns by how many blocks they have moved. */
static int64_t run_jobs(attention *a, walk *w, const job *before, job *now, job *next, int flight) {
  const bool adjusted = a->adjusted && !now->biased;
  if (adjusted) {
    store_pending(&a->pending, a->nowhere);
    adjust_block(a->block, now->tile->row, now->block * KEY_BLOCK, a->s);
  }
  const output_work output = output_of(a, before, now, a->p[!flight]);
  const score_work scores = scores_of(a, next->exists ? next : now, a->s);
  float sum[TILE_QUERIES];
  softmax_work x = softmax_of(a, now, a->s, a->p[flight], sum, adjusted);
  if (now->biased) give_bias(a, now, next, &x);
  const block_run run = {.blocks = 1 + jobs_alike(a, w, before, now, next),
                         .k_block = a->k_block,
                         .v_block = block_values(a->block->problem->dim_v),
                         .total = now->tile->sum,
                         .other_p = a->p[!flight]};
  give_lines(a, w, now, run.blocks, &x);
  body_function *body = a->body[now->masked ? MASKED : now->biased ? BIASED : PLAIN];
  const int64_t moved = body(&a->pending, &output, a->depth_v, &scores, a->depth_qk, &x, &run) - 1;
  if (moved > 0) {
    now->block += moved;
    next->block += moved;
    next->last = next->block + 1 == next->tile->end_block;
    w->block += moved;
  }
  settle_job(a, now, a->p[(flight + moved) % 2], sum);
  if (before->exists && before->last) finish_tile(a->block, before->tile);
  return moved;
}

static void run_pipeline(attention *a, walk w) {
  job jobs[JOBS], *before = &jobs[0], *now = &jobs[1], *next = &jobs[2];
  before->exists = false;
  find_job(a, &w, now);
  if (!now->exists) return;
  const score_work first = scores_of(a, now, a->s);
  scores_alone(&a->pending, &first, a->depth_qk);
  for (int flight = 0; now->exists; flight = !flight) {
    find_job(a, &w, next);
    flight = (int)(flight + run_jobs(a, &w, before, now, next, flight)) % 2;
    job *free = before;
    before = now;
    now = next;
    next = free;
    if (now->exists) continue;
    const output_work output = output_of(a, before, before, a->p[flight]);
    output_alone(&a->pending, &output, a->depth_v);
    store_pending(&a->pending, a->nowhere);
    finish_tile(a->block, before->tile);
  }
}

/* All tiles of a task, then those with rows that were not finite once more. */
static void attend(attention *a, row_block *block, int64_t tiles) {
  a->block = block;
  block->first_try = true;
  _tile_loadconfig(&eight_tiles);
  run_pipeline(a, start_walk(a, 0, tiles));
  block->first_try = false;
  block->careful = true;
  for (int64_t i = 0; i < tiles; i++) {
    query_tile *t = &a->tiles[i];
    if (t->first_block >= t->end_block) finish_tile(block, t);
    if (!t->again) continue;
    start_tile(block, t->row, t->o, t);
    run_pipeline(a, start_walk(a, i, i + 1));
    for (uint32_t alone = t->alone; alone; alone &= alone - 1) {
      start_tile(block, t->row, t->o, t);
      t->only = __builtin_ctz(alone);
      run_pipeline(a, start_walk(a, i, i + 1));
    }
  }
  _tile_release();
}

static void compute(const attn_schedule *schedule, const attn_args *args, attn_task task, uint16_t *unit, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const task_rows rows = task_rows_of(schedule, args, task);
  if (rows.rows <= 0) return;
  const thread_layout *at = (const void *)schedule->own;
  row_block block = {.problem = p,
                     .args = args,
                     .seq = &rows.seq,
                     .b = rows.b,
                     .head = rows.head,
                     .first_row = rows.first_row,
                     .rows = rows.rows,
                     .rows_per_head = rows.rows,
                     .listed = (uint8_t *)(void *)floats_at(scratch, at->listed)};
  if (attn_lists_keys(p)) mark_lists(&block);
  attention a = {.unit = unit,
                 .tiles = (query_tile *)(void *)floats_at(scratch, at->tiles),
                 .s = floats_at(scratch, at->s),
                 .again = floats_at(scratch, at->again),
                 .turned = floats_at(scratch, at->turned),
                 .nowhere = floats_at(scratch, at->nowhere),
                 .v = values_at(scratch, at->v),
                 .pending = {floats_at(scratch, at->nowhere)},
                 .depth_qk = (int)depth_of(p->dim_qk),
                 .depth_v = (int)depth_of(p->dim_v),
                 .per_super = at->per_super,
                 .adjusted = p->softcap > 0 || attn_uses(p, ATTN_USE_BIAS | ATTN_USE_ALIBI) || !(p->scale > 0)};
  a.adds_bias = attn_uses(p, ATTN_USE_BIAS) && !attn_uses(p, ATTN_USE_ALIBI) && !(p->softcap > 0) && p->bias_stride.k == 1;
  for (int i = 0; i < 2; i++) {
    a.p[i] = values_at(scratch, at->p) + i * PARTS * KEY_BLOCK * TILE_QUERIES;
    a.q[i] = values_at(scratch, at->q) + i * PARTS * a.depth_qk * STEP;
  }
  const int64_t tiles = ceil_div(rows.rows, TILE_QUERIES), outputs = outputs_of(p, schedule->row_block, at->per_super);
  for (int64_t i = 0; i < tiles; i++)
    start_tile(&block, i * TILE_QUERIES, floats_at(scratch, at->o) + i % outputs * a.depth_v * SUMS, &a.tiles[i]);
  if (attn_uses(p, ATTN_USE_STATE)) a.unused_o = floats_at(scratch, at->o) + tiles * a.depth_v * SUMS;
  for (int kind = 0; kind < SCORE_KINDS; kind++) a.body[kind] = body_for(a.depth_v, a.depth_qk, (score_kind)kind);
  if (k_in_place(p)) a.in_place_blocks = rows.seq.len_k / KEY_BLOCK;
  a.k_block = k_in_place(p) ? KEY_BLOCK * p->k_stride.s : block_values(p->dim_qk);
  if (a.in_place_blocks > 0 && !attn_uses(p, ATTN_USE_PAGES))
    a.k = (const uint16_t *)args->k + attn_key_run_at(p, args, &rows.seq, rows.head, 0).k;
  a.cold = cold_lines_of(schedule, &block, at->cold);
  a.first_again = task.item + 1 < schedule->items[1];
  attend(&a, &block, tiles);
}

static void flash_amx_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                          void *scratch) {
  if (task.phase == 0)
    pack_keys(schedule, args, task, unit_memory);
  else
    compute(schedule, args, task, unit_memory, scratch);
}

/* Counts for the costs: tiles have 32 queries, and K and V are packed. */
static void terms_of(const attn_problem *p, double *terms) {
  const tile_walk steps = {.width = DEPTH,
                           .keys = KEY_BLOCK,
                           .tiles = (double)(attn_group(p) * ceil_div(p->seq_q, TILE_QUERIES)),
                           .seen = attn_tile_keys(p, TILE_QUERIES),
                           .copies = true};
  attn_tile_terms(p, &steps, terms);
}

#endif
