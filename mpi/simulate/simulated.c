/* SPDX-License-Identifier: MIT */
/* Functions that stand in the place of others in a simulation: waiting, and copies of data that nobody reads. */
#include "simulated.h"

#include "mpi/plan.h"

#undef MPI_Testsome

/* ---- Waiting. Ranks are threads of one process that run one at a time ---- */

enum { MOST_RANKS = 4096 };

/* The requests that a rank asked for last, and which one has ended while it waited; -1: none. The library must not see that
 * one as ended before it asks, so something else than MPI_REQUEST_NULL stands in its place. */
static struct {
  MPI_Request *requests;
  int count, ended;
} asked[MOST_RANKS];

static int this_rank(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int simulated_testsome(int count, MPI_Request *requests, int *ended, int *indices, MPI_Status *statuses) {
  const int rank = this_rank(), waited = asked[rank].requests == requests ? asked[rank].ended : -1;
  asked[rank].requests = requests;
  asked[rank].count = count;
  asked[rank].ended = -1;
  *ended = waited >= 0;
  if (waited < 0) return MPI_Testsome(count, requests, ended, indices, statuses);
  requests[waited] = MPI_REQUEST_NULL;
  indices[0] = waited;
  return MPI_SUCCESS;
}

/* No rank fails. */
int simulated_iprobe(int *there, MPI_Status *status) {
  *there = 0;
  *status = (MPI_Status){0};
  return MPI_SUCCESS;
}

int simulated_yield(void) {
  const int rank = this_rank(), count = asked[rank].count;
  int index = 0;
  const int error = count == 1 ? MPI_Wait(asked[rank].requests, MPI_STATUS_IGNORE)
                               : MPI_Waitany(count, asked[rank].requests, &index, MPI_STATUS_IGNORE);
  if (error != MPI_SUCCESS || index == MPI_UNDEFINED) return 0;
  asked[rank].ended = index;
  asked[rank].requests[index] = (MPI_Request)(void *)&asked[rank];
  return 0;
}

int simulated_allgather(const void *own, int count, MPI_Datatype type, void *all, const int *counts, const int *starts,
                        MPI_Comm comm) {
  int ranks;
  MPI_Comm_size(comm, &ranks);
  const int error = counts ? MPI_Gatherv(own, count, type, all, counts, starts, type, 0, comm)
                           : MPI_Gather(own, count, type, all, count, type, 0, comm);
  if (error != MPI_SUCCESS) return error;
  return MPI_Bcast(all, counts ? starts[ranks - 1] + counts[ranks - 1] : count * ranks, type, 0, comm);
}

int simulated_idup(MPI_Comm old, MPI_Comm *made, MPI_Request *request) {
  *made = old;
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

int simulated_free(MPI_Comm *made) {
  *made = MPI_COMM_NULL;
  return MPI_SUCCESS;
}

/* ---- Copies: the linker puts these in the place of the others (--wrap) ---- */

void __wrap_mpi_start_states(const attn_mpi_plan *plan, int64_t rows, float *state);
void __wrap_mpi_pack_keys(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, char *to);
void __wrap_mpi_pack_heads(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, mpi_heads heads,
                           char *const to[]);
void __wrap_mpi_pack_rows(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, char *to);
char *__wrap_mpi_copy_tokens(const attn_mpi_plan *plan, const attn_args *args, attn_dtype dtype, void *tensor,
                             const attn_strides *stride, int64_t columns, const mpi_part *part, mpi_heads heads,
                             char *packed, bool to_tensor);

void __wrap_mpi_start_states(const attn_mpi_plan *plan, int64_t rows, float *state) { (void)plan, (void)rows, (void)state; }

void __wrap_mpi_pack_keys(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, char *to) {
  (void)plan, (void)args, (void)keys, (void)to;
}

void __wrap_mpi_pack_heads(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, mpi_heads heads,
                           char *const to[]) {
  (void)plan, (void)args, (void)keys, (void)heads, (void)to;
}

void __wrap_mpi_pack_rows(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, char *to) {
  (void)plan, (void)args, (void)rows, (void)to;
}

char *__wrap_mpi_copy_tokens(const attn_mpi_plan *plan, const attn_args *args, attn_dtype dtype, void *tensor,
                             const attn_strides *stride, int64_t columns, const mpi_part *part, mpi_heads heads,
                             char *packed, bool to_tensor) {
  (void)args, (void)tensor, (void)stride, (void)to_tensor;
  return packed +
         part_length(part) * batch_of(&plan->whole) * (heads.end - heads.begin) * attn_elements_bytes(dtype, columns);
}
