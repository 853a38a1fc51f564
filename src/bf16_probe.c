/* SPDX-License-Identifier: MIT */
/* The probe: both kernels in turns on one thread, a head of 96 queries and 256 keys of 64 values in the caches. Each counts
 * with its best time, so that interruptions do not decide. */
#include "bf16_probe.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "attn/kernel.h"
#include "float_mode.h"
#include "kernels/common/aligned.h"
#include "registry.h"
#include "wall_clock.h"

enum { QUERIES = 96, KEYS = 256, DIM = 64, TURNS = 8, TASK_BYTES = 1 << 20 };

/* What a kernel reads and writes; all zeros are as quick as other numbers. */
typedef struct probe_memory {
  uint16_t q[QUERIES * DIM], k[KEYS * DIM], v[KEYS * DIM], o[QUERIES * DIM];
  _Alignas(ATTN_MEMORY_ALIGN) char unit[TASK_BYTES], scratch[TASK_BYTES];
} probe_memory;

static attn_problem probe_problem(void) {
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, QUERIES, KEYS, DIM, DIM);
  p.dtype_q = p.dtype_kv = p.dtype_o = ATTN_BF16;
  return p;
}

/* Infinity if the kernel is not here or needs more memory than there is. */
static double time_ns(const char *name, probe_memory *memory) {
  const attn_kernel *kernel = attn_registry_find(name);
  const attn_args args = ATTN_STRUCT(attn_args, .q = memory->q, .k = memory->k, .v = memory->v, .o = memory->o);
  attn_schedule schedule = {.problem = probe_problem(), .units = 1, .wave_units = 1};
  if (!kernel || !kernel->plan(&schedule.problem, &(attn_machine){.threads = 1}, &schedule)) return INFINITY;
  if (schedule.unit_bytes > TASK_BYTES || schedule.scratch_bytes > TASK_BYTES) return INFINITY;
  const double start = attn_wall_clock_ns();
  for (int phase = 0; phase < schedule.phases; phase++)
    for (int64_t item = 0; item < schedule.items[phase]; item++)
      kernel->run(&schedule, &args, (attn_task){phase, 0, item}, memory->unit, memory->scratch);
  return attn_wall_clock_ns() - start;
}

static double gain;

static void measure(void) {
  probe_memory *memory = attn_aligned_alloc(ATTN_MEMORY_ALIGN, sizeof *memory);
  double dot = INFINITY, widening = INFINITY;
  if (!memory) return;
  memset(memory, 0, sizeof *memory);
  const uint64_t mode = attn_float_mode_enter();
  for (int turn = 0; turn < TURNS; turn++) {
    dot = fmin(dot, time_ns("flash_avx512bf16", memory));
    widening = fmin(widening, time_ns("flash_avx512", memory));
  }
  attn_float_mode_leave(mode);
  attn_aligned_free(memory);
  if (dot > 0 && dot < INFINITY && widening < INFINITY) gain = widening / dot;
}

double attn_bf16_gain(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, measure);
  return gain;
}
