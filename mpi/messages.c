/* SPDX-License-Identifier: MIT */
/* MPI calls that never wait for ever. All waiting is a loop over MPI_Testsome that gives the CPU to others, looks for the
 * message of a rank that has failed, and ends when nothing has arrived for too long. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "plan.h"

double mpi_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

attn_status mpi_failed(attn_mpi_plan *plan, const char *call, int error) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  plan->broken = true;
  return attn_fail(ATTN_UNSUPPORTED, "%s failed on rank %d: %s", call, comm_rank(plan, plan->rank), text);
}

attn_status mpi_abort_run(attn_mpi_plan *plan, attn_status status) {
  plan->broken = true;
  const int code = (int)status;
  for (int rank = 0; rank < plan->ranks * plan->stride; rank++) { /* all of comm */
    MPI_Request request;
    if (rank == comm_rank(plan, plan->rank)) continue;
    if (MPI_Isend(&code, 1, MPI_INT, rank, ABORT_TAG, plan->comm, &request) != MPI_SUCCESS) continue;
    int done = 0; /* a message of one number goes at once */
    for (int tries = 0; !done && tries < 1000; tries++)
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
    if (!done) MPI_Request_free(&request);
  }
  return status;
}

/* Whether another rank has failed. */
static attn_status look_for_failure(attn_mpi_plan *plan) {
  int there = 0, code = ATTN_UNSUPPORTED;
  MPI_Status from;
  if (plan->comm == MPI_COMM_NULL) return ATTN_OK;
  MPI_TRY(plan, MPI_Iprobe, MPI_ANY_SOURCE, ABORT_TAG, plan->comm, &there, &from);
  if (!there) return ATTN_OK;
  MPI_TRY(plan, MPI_Recv, &code, 1, MPI_INT, from.MPI_SOURCE, ABORT_TAG, plan->comm, MPI_STATUS_IGNORE);
  plan->broken = true;
  return attn_fail((attn_status)code, "rank %d has failed with %s; its attn_last_error() says why", from.MPI_SOURCE,
                   attn_status_name((attn_status)code));
}

attn_status mpi_make_requests(mpi_requests *all, int64_t room) {
  all->request = malloc((size_t)max64(room, 1) * sizeof *all->request);
  all->done = malloc((size_t)max64(room, 1) * sizeof *all->done);
  if (!all->request || !all->done)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan_run needs room for %lld requests", (long long)room);
  for (int64_t i = 0; i < room; i++) all->request[i] = MPI_REQUEST_NULL;
  return ATTN_OK;
}

void mpi_free_requests(mpi_requests *all) {
  free(all->request);
  free(all->done);
}

attn_status mpi_poll(mpi_requests *all) {
  int ended = 0;
  if (all->count > 0) MPI_TRY(all->plan, MPI_Testsome, all->count, all->request, &ended, all->done, MPI_STATUSES_IGNORE);
  if (ended <= 0) return look_for_failure(all->plan); /* MPI_UNDEFINED, below 0: none is under way */
  all->last = mpi_now();
  return all->moved ? all->moved(all->context) : ATTN_OK;
}

static bool has_ended(const mpi_requests *all, int index) {
  for (int i = 0; index < 0 && i < all->count; i++)
    if (all->request[i] != MPI_REQUEST_NULL) return false;
  return index < 0 || all->request[index] == MPI_REQUEST_NULL;
}

/* Lets others have the CPU. Who has waited long sleeps, as ranks that share cores would only take turns at looking. */
static void give_way(double waited_s) {
  const struct timespec pause = {.tv_nsec = 50000};
  if (waited_s < 1e-3)
    sched_yield();
  else
    nanosleep(&pause, NULL);
}

attn_status mpi_wait(mpi_requests *all, int index, int rank) {
  const double start = mpi_now();
  while (!has_ended(all, index)) {
    const attn_status status = mpi_poll(all);
    if (status != ATTN_OK) return status;
    if (has_ended(all, index)) break;
    const double since = all->last > start ? all->last : start, waited = mpi_now() - since;
    if (waited > all->plan->timeout_s) {
      char name[32] = "some rank";
      if (rank >= 0) snprintf(name, sizeof name, "rank %d", comm_rank(all->plan, rank));
      return mpi_abort_run(all->plan, attn_fail(ATTN_UNSUPPORTED,
                                                "rank %d has waited %.0f s for a message of %s; it has ended or is slower "
                                                "than attn_mpi_options.timeout_s allows",
                                                comm_rank(all->plan, all->plan->rank), waited, name));
    }
    give_way(waited);
  }
  return ATTN_OK;
}

attn_status mpi_wait_one(attn_mpi_plan *plan, MPI_Request *request) {
  int done;
  mpi_requests one = {.plan = plan, .request = request, .done = &done, .count = 1, .last = mpi_now()};
  return mpi_wait(&one, 0, -1);
}

static int tag_of(const attn_mpi_plan *plan, int64_t tag) { return (int)(FIRST_TAG + tag % (plan->tags - FIRST_TAG)); }

attn_status mpi_send(mpi_requests *all, const void *data, int64_t bytes, int to, int64_t tag) {
  for (int64_t at = 0; at < bytes; at += MOST_MESSAGE)
    MPI_TRY(all->plan, MPI_Isend, (const char *)data + at, (int)min64(bytes - at, MOST_MESSAGE), MPI_BYTE,
            comm_rank(all->plan, to), tag_of(all->plan, tag), all->plan->comm, &all->request[all->count++]);
  return ATTN_OK;
}

attn_status mpi_receive(mpi_requests *all, void *data, int64_t bytes, int from, int64_t tag) {
  for (int64_t at = 0; at < bytes; at += MOST_MESSAGE)
    MPI_TRY(all->plan, MPI_Irecv, (char *)data + at, (int)min64(bytes - at, MOST_MESSAGE), MPI_BYTE,
            comm_rank(all->plan, from), tag_of(all->plan, tag), all->plan->comm, &all->request[all->count++]);
  return ATTN_OK;
}
