/* SPDX-License-Identifier: MIT */
/* The kernel whose bits rows get, and the borders of its keys. Rank 0 chooses for all, by its options, environment and CPU:
 * ranks alone would choose by probes of unlike or busy CPUs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "src/api/error.h"

enum { BACKWARD_TOKENS = 1024 };

static int64_t common_multiple(int64_t a, int64_t b) {
  int64_t x = a, y = b;
  while (y) {
    const int64_t rest = x % y;
    x = y;
    y = rest;
  }
  return a / x * b;
}

/* The problem of one process, as parts of it are computed: from pieces of keys, or gradients in float32. */
static attn_problem in_parts(const attn_problem *whole) {
  attn_problem p = *whole;
  if (p.operation == ATTN_BACKWARD) {
    p.dtype_q = p.dtype_kv = p.dtype_o = ATTN_F32;
    return p;
  }
  p.uses |= ATTN_USE_STATE;
  p.align = ATTN_ALIGN_OFFSET;
  const int64_t floats = attn_state_floats(p.dim_v);
  const int64_t rows = attn_uses(&p, ATTN_USE_VARLEN) ? p.total_q : p.seq_q;
  p.state_stride = (attn_strides){p.heads_q * rows * floats, rows * floats, floats, 1};
  return p;
}

/* Parts of gradients have borders of their own. */
static int64_t splits_of(const attn_plan *parts, const attn_problem *p) {
  return p->operation == ATTN_BACKWARD ? BACKWARD_TOKENS : max64(1, attn_plan_piece_keys(parts));
}

/* A plan of parts with the kernel that attn_plan_create() chooses for the whole, if that one takes parts. */
static attn_status plan_as_whole(const attn_mpi_plan *plan, const attn_problem *p, attn_plan **parts) {
  attn_options options = plan->compute;
  attn_plan *whole;
  attn_status status = attn_plan_create(&plan->whole, &options, &whole);
  if (status != ATTN_OK) return status;
  options.kernel = attn_plan_kernel(whole);
  const bool divided = attn_uses(p, ATTN_USE_VARLEN) && strcmp(attn_plan_kernel_of(whole, 1), options.kernel) != 0;
  status = divided ? ATTN_UNSUPPORTED : attn_plan_create(p, &options, parts);
  attn_plan_destroy(whole);
  return status == ATTN_OK ? status : attn_plan_create(p, &plan->compute, parts);
}

attn_status mpi_find_kernel(attn_mpi_plan *plan) {
  const attn_problem p = in_parts(&plan->whole);
  attn_plan *parts;
  const attn_status status =
      finds_gradients(plan) ? attn_plan_create(&p, &plan->compute, &parts) : plan_as_whole(plan, &p, &parts);
  if (status != ATTN_OK) return status;
  snprintf(plan->kernel, sizeof plan->kernel, "%s", attn_plan_kernel(parts));
  plan->unit = plan->splits = splits_of(parts, &p);
  if (attn_uses(&p, ATTN_USE_PAGES)) plan->unit = common_multiple(plan->unit, p.page_tokens);
  attn_plan_destroy(parts);
  return ATTN_OK;
}

/* Whether this rank can do what rank 0 has chosen. */
static attn_status try_kernel(attn_mpi_plan *plan) {
  const attn_problem p = in_parts(&plan->whole);
  attn_plan *parts;
  plan->compute.kernel = plan->kernel;
  const attn_status status = attn_plan_create(&p, &plan->compute, &parts);
  if (status != ATTN_OK) {
    char why[800];
    snprintf(why, sizeof why, "%s", attn_last_error());
    return attn_fail(
        status,
        "it cannot run %s, which rank 0 has chosen for all; attn_options.kernel must be one that every rank can "
        "run, or max_isa the lowest tier of all ranks: %s",
        plan->kernel, why);
  }
  const int64_t splits = splits_of(parts, &p);
  attn_plan_destroy(parts);
  REQUIRE(splits == plan->splits,
          "its %s divides keys at multiples of %" PRId64 ", that of rank 0 at multiples of %" PRId64
          "; all ranks must have the same version of libattn",
          plan->kernel, splits, plan->splits);
  return ATTN_OK;
}

attn_status mpi_choose_kernel(attn_mpi_plan *plan) {
  struct {
    char kernel[sizeof plan->kernel];
    int64_t splits, unit;
  } choice = {.unit = 0};
  MPI_Request request;
  attn_status status = mpi_agree(plan, plan->rank == 0 ? mpi_find_kernel(plan) : ATTN_OK);
  if (status != ATTN_OK) return status;
  memcpy(choice.kernel, plan->kernel, sizeof choice.kernel);
  choice.splits = plan->splits, choice.unit = plan->unit;
  MPI_TRY(plan, MPI_Ibcast, &choice, sizeof choice, MPI_BYTE, 0, plan->comm, &request);
  status = mpi_wait_one(plan, &request);
  if (status != ATTN_OK) return status;
  memcpy(plan->kernel, choice.kernel, sizeof choice.kernel);
  plan->splits = choice.splits, plan->unit = choice.unit;
  return mpi_agree(plan, try_kernel(plan));
}

attn_status attn_mpi_border(const attn_problem *whole, const attn_options *compute, MPI_Comm communicator, int64_t *keys) {
  attn_mpi_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_border needs %zu bytes", sizeof *plan);
  const attn_mpi_options none = ATTN_STRUCT(attn_mpi_options, .mode = ATTN_MPI_AUTO);
  attn_status status = mpi_join_ranks(plan, communicator);
  if (status == ATTN_OK && !keys) status = attn_fail(ATTN_INVALID_ARGUMENT, "keys is NULL; it must point to a number");
  if (plan->comm != MPI_COMM_NULL) {
    if (status == ATTN_OK) status = mpi_read_problem(plan, whole, compute, NULL);
    status = mpi_agree(plan, status);
    if (status == ATTN_OK) status = mpi_agree_on_problem(plan, &none);
    if (status == ATTN_OK) status = mpi_choose_kernel(plan);
    if (status == ATTN_OK) *keys = plan->unit;
  }
  attn_mpi_plan_destroy(plan);
  return status;
}
