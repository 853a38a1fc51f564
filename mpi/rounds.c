/* SPDX-License-Identifier: MIT */
/* Blocks of all ranks for all ranks, in a few rounds: few messages instead of one for each other rank, which is what counts
 * while blocks are small (Bruck et al. 1997, https://doi.org/10.1109/71.642949). In the round of n = 1, radix, radix^2 ... a
 * rank sends to the ranks n, 2 n ... (radix - 1) n above it. With a radix of the number of ranks there is one round, and
 * each block goes straight to its rank. */
#include <string.h>

#include "plan.h"

static int rank_at(const mpi_blocks *b, int64_t distance) {
  const int64_t ranks = b->plan->ranks;
  return (int)(((b->plan->rank + distance) % ranks + ranks) % ranks);
}

/* ---- Which radix ---- */

/* Messages of a round after the first one each take this share of the latency: what a CPU and its network adapter are busy
 * with, the overhead of LogP (Culler et al. 1993). */
static const double OVERHEAD = 0.25;

static double seconds_with(const attn_mpi_network *network, int ranks, double bytes, int radix) {
  double seconds = 0;
  for (int64_t n = 1; n < ranks; n *= radix) {
    const int64_t messages = min64(radix, ceil_div(ranks, n)) - 1;
    const double moved = n * radix < ranks ? 1 - 1.0 / radix : 1 - (double)n / ranks;
    seconds += network->latency_s * (1 + OVERHEAD * (double)(messages - 1)) + moved * bytes / network->bytes_per_s;
  }
  return seconds;
}

double mpi_seconds_of_rounds(const attn_mpi_network *network, int ranks, double bytes, int *radix) {
  double least = 0;
  for (int r = 2; r <= ranks; r++) {
    const double seconds = seconds_with(network, ranks, bytes, r);
    if (r > 2 && seconds >= least) continue;
    least = seconds;
    if (radix) *radix = r;
  }
  return least;
}

/* ---- Every rank sends each other one a block ---- */

/* Bytes of the block in slot i of the rank at a distance. In rounds of less than n it came from the rank `i % n` below; it
 * is on its way to the rank i above that one. */
static int64_t bytes_in_slot(const mpi_blocks *b, int64_t distance, int64_t i, int64_t n) {
  const int64_t from = distance - i % n;
  return b->bytes(b->context, rank_at(b, from), rank_at(b, from + i));
}

/* Bytes of a message: the slots of the rank at a distance whose digit is j, copied to or from there; `to_slots` with the
 * sizes that they have after the round. */
static int64_t move_slots(const mpi_blocks *b, int64_t distance, int64_t n, int64_t j, char *message, char *slots,
                          bool to_slots) {
  int64_t bytes = 0;
  for (int64_t i = j * n; i < b->plan->ranks; i += i % n == n - 1 ? n * (b->radix - 1) + 1 : 1) {
    const int64_t block = bytes_in_slot(b, distance, i, n);
    char *slot = slots + i * b->slot_bytes;
    if (block > 0) memcpy(to_slots ? slot : message + bytes, to_slots ? message + bytes : slot, (size_t)block);
    bytes += block;
  }
  return bytes;
}

static int64_t bytes_of_message(const mpi_blocks *b, int64_t distance, int64_t n, int64_t j) {
  int64_t bytes = 0;
  for (int64_t i = j * n; i < b->plan->ranks; i += i % n == n - 1 ? n * (b->radix - 1) + 1 : 1)
    bytes += bytes_in_slot(b, distance, i, n);
  return bytes;
}

attn_status mpi_swap_blocks(const mpi_blocks *b, char *slots, char *sent, char *received, mpi_requests *all, int tag) {
  const int64_t ranks = b->plan->ranks;
  attn_status status = ATTN_OK;
  for (int64_t n = 1; n < ranks && status == ATTN_OK; n *= b->radix) {
    char *in = received, *out = sent;
    all->count = 0;
    for (int64_t j = 1; j < b->radix && j * n < ranks && status == ATTN_OK; j++) {
      const int64_t bytes = bytes_of_message(b, -j * n, n, j);
      status = mpi_receive(all, in, bytes, rank_at(b, -j * n), tag);
      in += bytes;
    }
    for (int64_t j = 1; j < b->radix && j * n < ranks && status == ATTN_OK; j++) {
      const int64_t bytes = move_slots(b, 0, n, j, out, slots, false);
      status = mpi_send(all, out, bytes, rank_at(b, j * n), tag);
      out += bytes;
    }
    if (status == ATTN_OK) status = mpi_wait(all, -1, -1);
    in = received;
    for (int64_t j = 1; j < b->radix && j * n < ranks && status == ATTN_OK; j++)
      in += move_slots(b, -j * n, n, j, in, slots, true);
  }
  return status;
}

/* ---- Every rank gets the blocks of all ---- */

/* Bytes of the blocks at distances [0, count) below the rank at a distance. */
static int64_t bytes_below(const mpi_blocks *b, int64_t distance, int64_t count) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    const int rank = rank_at(b, distance - i);
    bytes += b->bytes(b->context, rank, rank);
  }
  return bytes;
}

attn_status mpi_gather_blocks(const mpi_blocks *b, char *blocks, mpi_requests *all, int tag) {
  const int64_t ranks = b->plan->ranks;
  attn_status status = ATTN_OK;
  for (int64_t n = 1; n < ranks && status == ATTN_OK; n *= b->radix) {
    all->count = 0;
    for (int64_t j = 1; j < b->radix && j * n < ranks && status == ATTN_OK; j++)
      status = mpi_receive(all, blocks + bytes_below(b, 0, j * n), bytes_below(b, -j * n, min64(n, ranks - j * n)),
                           rank_at(b, -j * n), tag);
    for (int64_t j = 1; j < b->radix && j * n < ranks && status == ATTN_OK; j++)
      status = mpi_send(all, blocks, bytes_below(b, 0, min64(n, ranks - j * n)), rank_at(b, j * n), tag);
    if (status == ATTN_OK) status = mpi_wait(all, -1, -1);
  }
  return status;
}
