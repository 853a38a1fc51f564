/* SPDX-License-Identifier: MIT */
/* Items that visit ranks one after the other: keys that pass queries, queries that pass keys, keys with their gradients.
 *
 * A rank knows its visits and their order before the first message. It has some buffers. Receives of the next visits are
 * posted as buffers become free, in the order of the visits; own items leave at the start, and receives of those that come
 * back are posted before.
 *
 * No rank waits for ever. Items that do not change: a rank takes its visits in the order of items, and items go from rank to
 * rank in ascending order. Then whoever waits does so for a smaller item, or for the same item on a smaller rank, so there
 * is no circle, whatever the number of buffers. Items that change have a step for each visit, the next one for the next
 * visit, and ranks take visits by step. With buffers for all visits of two steps, a rank at step n has received for step
 * n + 1, so that all sends of step n end (docs/scale.md). */
#include <stdlib.h>

#include "plan.h"

typedef struct travel {
  const mpi_journey *j;
  mpi_requests all;
  int64_t *visit_in; /* [buffers] the visit in it; -1: free */
  bool *worked;      /* [buffers] the visit has ended */
  bool *sent;        /* [buffers] the item has gone on, or goes no further */
  int64_t posted;    /* visits that have a buffer, or need none */
  int first_slot;    /* requests of buffers follow those of own items: receive, send */
} travel;

/* An item that goes back has a tag of its own: its owner waits for it from the start. */
static int tag_of(const attn_mpi_plan *plan, int64_t item, bool back) {
  return (int)(FIRST_TAG + (2 * item + back) % (plan->tags - FIRST_TAG));
}

static attn_status start_send(travel *t, int slot, const char *item, mpi_leg leg, int to, int tag) {
  attn_mpi_plan *plan = t->j->plan;
  MPI_TRY(plan, MPI_Isend, item + leg.at, (int)leg.bytes, MPI_BYTE, comm_rank(plan, to), tag, plan->comm,
          &t->all.request[slot]);
  return ATTN_OK;
}

static attn_status start_receive(travel *t, int slot, char *item, mpi_leg leg, int from, int tag) {
  attn_mpi_plan *plan = t->j->plan;
  MPI_TRY(plan, MPI_Irecv, item + leg.at, (int)leg.bytes, MPI_BYTE, comm_rank(plan, from), tag, plan->comm,
          &t->all.request[slot]);
  return ATTN_OK;
}

static char *buffer_at(const travel *t, int64_t buffer) { return t->j->buffers + buffer * t->j->buffer_bytes; }
static int receive_slot(const travel *t, int64_t buffer) { return t->first_slot + 2 * (int)buffer; }
static int send_slot(const travel *t, int64_t buffer) { return receive_slot(t, buffer) + 1; }

/* A buffer whose visit has ended, and whose item has gone; -1: none. */
static int64_t free_buffer(const travel *t) {
  for (int64_t b = 0; b < t->j->buffer_count; b++)
    if (t->visit_in[b] < 0 || (t->worked[b] && t->all.request[send_slot(t, b)] == MPI_REQUEST_NULL)) return b;
  return -1;
}

/* Whether a visit's item may be received now. Items in turn come one by one from each rank, or two by two from owners:
 * an owner's link also carries what it passes on, and each message there gets an equal share. */
static bool may_receive(const travel *t, const mpi_visit *visit) {
  int under_way = 0;
  for (int64_t b = 0; t->j->in_turn && b < t->j->buffer_count; b++)
    under_way += t->all.request[receive_slot(t, b)] != MPI_REQUEST_NULL && t->j->visits[t->visit_in[b]].from == visit->from;
  return under_way < 1 + visit->first;
}

static attn_status send_on(travel *t, const mpi_visit *visit, int64_t buffer) {
  const mpi_journey *j = t->j;
  if (visit->to < 0) return ATTN_OK;
  const mpi_leg leg = visit->last ? j->back(j->plan, visit->item) : j->on(j->plan, visit->item);
  return start_send(t, send_slot(t, buffer), buffer_at(t, buffer), leg, visit->to,
                    tag_of(j->plan, visit->item, visit->last));
}

/* Items that do not change go on when they have come, also while the rank works on an earlier one. */
static attn_status pass_on(travel *t) {
  attn_status status = ATTN_OK;
  for (int64_t b = 0; b < t->j->buffer_count && status == ATTN_OK; b++) {
    if (t->visit_in[b] < 0 || t->sent[b] || t->all.request[receive_slot(t, b)] != MPI_REQUEST_NULL) continue;
    t->sent[b] = true;
    status = send_on(t, &t->j->visits[t->visit_in[b]], b);
  }
  return status;
}

/* Posts receives while there are buffers: also while the rank waits, as others may wait for it then. */
static attn_status post(travel *t) {
  const mpi_journey *j = t->j;
  for (; t->posted < j->count; t->posted++) {
    const mpi_visit *visit = &j->visits[t->posted];
    if (visit->from < 0) continue; /* an own item that does not travel to itself */
    const int64_t buffer = free_buffer(t);
    if (buffer < 0 || !may_receive(t, visit)) return ATTN_OK;
    const mpi_leg leg = visit->first ? j->out(j->plan, visit->item) : j->on(j->plan, visit->item);
    t->visit_in[buffer] = t->posted;
    t->worked[buffer] = t->sent[buffer] = false;
    const attn_status status = start_receive(t, receive_slot(t, buffer), buffer_at(t, buffer), leg, visit->from,
                                             tag_of(j->plan, visit->item, false));
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status go_on(void *pointer) {
  travel *t = pointer;
  const attn_status status = t->j->carries ? ATTN_OK : pass_on(t);
  return status == ATTN_OK ? post(t) : status;
}

/* Receives of own items that come back, then they leave. */
static attn_status start_own_items(travel *t) {
  const mpi_journey *j = t->j;
  attn_status status = ATTN_OK;
  for (int64_t i = 0; i < j->own_count && status == ATTN_OK; i++) {
    const mpi_own_item *own = &j->own[i];
    if (own->from >= 0) {
      const mpi_leg leg = j->back(j->plan, own->item);
      status = start_receive(t, 2 * (int)i, own->back - leg.at, leg, own->from, tag_of(j->plan, own->item, true));
    }
  }
  if (status == ATTN_OK) status = post(t);
  for (int64_t i = 0; i < j->own_count && status == ATTN_OK; i++)
    if (j->own[i].to >= 0)
      status = start_send(t, 2 * (int)i + 1, j->own[i].out, j->out(j->plan, j->own[i].item), j->own[i].to,
                          tag_of(j->plan, j->own[i].item, false));
  return status;
}

static int64_t buffer_of(const travel *t, int64_t visit) {
  for (int64_t b = 0; b < t->j->buffer_count; b++)
    if (t->visit_in[b] == visit) return b;
  return -1;
}

/* Waits until the visit has a buffer: for the sends of earlier ones. */
static attn_status wait_for_buffer(travel *t, int64_t visit) {
  attn_status status = post(t);
  while (status == ATTN_OK && t->posted <= visit) {
    int oldest = -1;
    for (int64_t b = 0; b < t->j->buffer_count; b++)
      if (oldest < 0 || t->visit_in[b] < t->visit_in[oldest]) oldest = (int)b;
    status = mpi_wait(&t->all, send_slot(t, oldest), t->j->visits[t->visit_in[oldest]].to);
    if (status == ATTN_OK) status = post(t);
  }
  return status;
}

static attn_status visit_all(travel *t) {
  const mpi_journey *j = t->j;
  for (int64_t i = 0; i < j->count; i++) {
    const mpi_visit *visit = &j->visits[i];
    attn_status status = wait_for_buffer(t, i);
    const int64_t buffer = visit->from < 0 ? -1 : buffer_of(t, i);
    if (status == ATTN_OK && buffer >= 0) status = mpi_wait(&t->all, receive_slot(t, buffer), visit->from);
    if (status == ATTN_OK) status = j->work(j, visit, buffer < 0 ? NULL : buffer_at(t, buffer), &t->all);
    if (status == ATTN_OK && buffer >= 0 && j->carries) status = send_on(t, visit, buffer);
    if (status != ATTN_OK) return status;
    if (buffer >= 0) t->worked[buffer] = true;
  }
  return mpi_wait(&t->all, -1, -1);
}

/* ---- Items and visits ---- */

attn_status mpi_make_journey(mpi_journey *j, int64_t own, int64_t visits, int64_t stops) {
  j->own = malloc((size_t)max64(own, 1) * sizeof *j->own);
  j->visits = malloc((size_t)max64(visits, 1) * sizeof *j->visits);
  j->stops = malloc((size_t)max64(stops, 1) * sizeof *j->stops);
  if (j->own && j->visits && j->stops) return ATTN_OK;
  return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan_run needs room for %lld visits", (long long)visits);
}

void mpi_free_journey(mpi_journey *j) {
  free(j->own);
  free(j->visits);
  free(j->stops);
}

void mpi_add_item(mpi_journey *j, int64_t item, int home, int64_t step, int64_t count, char *out, char *back) {
  const mpi_stop *stops = j->stops;
  for (int64_t n = 0; n < count; n++)
    if (stops[n].owner == j->plan->rank)
      j->visits[j->count++] = (mpi_visit){.item = item,
                                          .station = stops[n].station,
                                          .step = step + n,
                                          .from = n > 0 ? stops[n - 1].owner : home,
                                          .to = n + 1 < count ? stops[n + 1].owner : home,
                                          .first = n == 0,
                                          .last = n + 1 == count};
  if (home != j->plan->rank) return;
  const int to = count > 0 ? stops[0].owner : -1, from = count > 0 ? stops[count - 1].owner : -1;
  j->own[j->own_count++] = (mpi_own_item){item, to, from, out, back};
}

static int by_step(const void *a, const void *b) {
  const mpi_visit *x = a, *y = b;
  if (x->step != y->step) return x->step < y->step ? -1 : 1;
  return x->item < y->item ? -1 : x->item > y->item;
}

attn_status mpi_travel(const mpi_journey *journey) {
  if (journey->carries) qsort(journey->visits, (size_t)journey->count, sizeof *journey->visits, by_step);
  const int64_t own = journey->own_count, buffers = journey->buffer_count, requests = 2 * (own + buffers);
  travel t = {.j = journey, .first_slot = 2 * (int)own};
  t.all = (mpi_requests){.plan = journey->plan, .count = (int)requests, .last = mpi_now(), .moved = go_on, .context = &t};
  t.visit_in = malloc((size_t)max64(buffers, 1) * sizeof *t.visit_in);
  t.worked = calloc((size_t)max64(buffers, 1), sizeof *t.worked);
  t.sent = calloc((size_t)max64(buffers, 1), sizeof *t.sent);
  attn_status status = mpi_make_requests(&t.all, requests);
  if (status == ATTN_OK && (!t.visit_in || !t.worked || !t.sent))
    status = attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan_run needs room for %d buffers", (int)buffers);
  for (int64_t b = 0; b < buffers && status == ATTN_OK; b++) t.visit_in[b] = -1;
  if (status == ATTN_OK) status = start_own_items(&t);
  if (status == ATTN_OK) status = visit_all(&t);
  mpi_free_requests(&t.all);
  free(t.visit_in);
  free(t.worked);
  free(t.sent);
  return status;
}
