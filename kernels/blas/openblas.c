/* SPDX-License-Identifier: MIT */
/* OpenBLAS: its product, its name, its threads. Its symbols may carry a prefix (the builds of PyPI: scipy_). */
#include "openblas.h"

#include <assert.h>
#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "src/registry/cpu.h"

#define PASTE_NAMES(prefix, symbol) prefix##symbol
#define PASTE(prefix, symbol)       PASTE_NAMES(prefix, symbol)
#define BLAS(symbol)                PASTE(ATTN_OPENBLAS_PREFIX, symbol)

static void sgemm(const library_product *p) {
  BLAS(cblas_sgemm)
  (CblasRowMajor, p->a_transposed ? CblasTrans : CblasNoTrans, p->b_transposed ? CblasTrans : CblasNoTrans, (blasint)p->rows,
   (blasint)p->columns, (blasint)p->depth, 1.0f, p->a, (blasint)p->a_stride, p->b, (blasint)p->b_stride,
   p->accumulate ? 1.0f : 0.0f, p->c, (blasint)p->c_stride);
}

/* ---- Threads ---- */

enum { BUILT_ON_OPENMP = 2 }; /* answer of openblas_get_parallel() in such a build */

/* A build on OpenMP ignores the number that was set, and takes the calling thread's number from OpenMP. */
void attn_openblas_product(const library_product *product) {
  assert(product->rows > 0 && product->columns > 0 && product->depth > 0);
#ifdef _OPENMP
  if (BLAS(openblas_get_parallel)() == BUILT_ON_OPENMP) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    sgemm(product);
    omp_set_num_threads(threads);
    return;
  }
#endif
  sgemm(product);
}

/* Sets OpenBLAS's number of threads. In a build on OpenMP it sets that of the calling thread's parallel regions, too. */
static void set_threads(int threads) {
#ifdef _OPENMP
  const int of_regions = omp_get_max_threads();
  BLAS(openblas_set_num_threads)(threads);
  if (omp_get_max_threads() != of_regions) omp_set_num_threads(of_regions);
#else
  BLAS(openblas_set_num_threads)(threads);
#endif
}

static struct {
  pthread_mutex_t mutex;
  int64_t holds;
  int threads_before;
} held = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void attn_openblas_hold(void) {
  pthread_mutex_lock(&held.mutex);
  if (held.holds++ == 0) {
    held.threads_before = BLAS(openblas_get_num_threads)();
    if (held.threads_before != 1) set_threads(1);
  }
  pthread_mutex_unlock(&held.mutex);
}

void attn_openblas_release(void) {
  pthread_mutex_lock(&held.mutex);
  if (--held.holds == 0 && held.threads_before != 1 && BLAS(openblas_get_num_threads)() == 1)
    set_threads(held.threads_before);
  pthread_mutex_unlock(&held.mutex);
}

int attn_openblas_most_threads(void) {
  const char *text = strstr(BLAS(openblas_get_config)(), "MAX_THREADS=");
  const int threads = text ? atoi(text + strlen("MAX_THREADS=")) : 0;
  return threads > 0 ? threads : 1; /* a build without threads does not say a number */
}

/* ---- Kernels ---- */

void attn_openblas_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch) {
  attn_composed_run(schedule, args, task, unit_memory, scratch, attn_openblas_product);
}

/* ---- Name ---- */

char attn_openblas_library[80] = "OpenBLAS";

static void write_name(void) {
  char version[40] = "";
  sscanf(BLAS(openblas_get_config)(), "OpenBLAS %39s", version);
  snprintf(attn_openblas_library, sizeof attn_openblas_library, "OpenBLAS%s%s %s", *version ? " " : "", version,
           BLAS(openblas_get_corename)());
}

static void identify(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, write_name);
}

/* ---- Which instructions it uses ---- */

/* The lowest tier that has the instructions of a core's sgemm; AVX without AVX2 counts as avx2. */
static const struct {
  const char *core, *isa;
} cores[] = {
    {"Prescott", "c"},
    {"Core2", "c"},
    {"Penryn", "c"},
    {"Dunnington", "c"},
    {"Atom", "c"},
    {"Nehalem", "c"},
    {"Athlon", "c"},
    {"Opteron", "c"},
    {"Opteron_SSE3", "c"},
    {"Barcelona", "c"},
    {"Bobcat", "c"},
    {"Nano", "c"},
    {"Sandybridge", "avx2"},
    {"Haswell", "avx2"},
    {"Zen", "avx2"},
    {"Bulldozer", "avx2"},
    {"Piledriver", "avx2"},
    {"Steamroller", "avx2"},
    {"Excavator", "avx2"},
    {"SkylakeX", "avx512"},
    {"Cooperlake", "avx512"},
    {"SapphireRapids", "avx512"},
};

/* NULL for a core that is not in the table. Then only one thing is known: the CPU can run its code, or OpenBLAS would not
 * have chosen it. */
static const char *isa_of_core(const char *core) {
  for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
    if (!strcasecmp(cores[i].core, core)) return cores[i].isa;
  return NULL;
}

/* OpenBLAS runs the code that OPENBLAS_CORETYPE names on any CPU, and crashes where the CPU lacks its instructions. */
const char *attn_openblas_unusable(const char *cap) {
  static _Thread_local char reason[200];
  const char *core = BLAS(openblas_get_corename)(), *known = isa_of_core(core);
  const char *isa = cap && !known ? attn_tier_best() : known;
  if (cap && attn_tier_find(isa) > attn_tier_find(cap))
    snprintf(
        reason, sizeof reason,
        "OpenBLAS chose its code for %s (tier %s) itself, above the cap '%s'; OPENBLAS_CORETYPE in the environment would "
        "change it",
        core, isa, cap);
  else if (known && attn_tier_unusable(attn_tier_find(known), NULL))
    snprintf(reason, sizeof reason, "OPENBLAS_CORETYPE chose OpenBLAS's code for %s (tier %s), which this CPU cannot run",
             core, known);
  else
    return NULL;
  return reason;
}

const attn_library_hooks attn_openblas_hooks = {
    .identify = identify,
    .unusable = attn_openblas_unusable,
    .most_threads = attn_openblas_most_threads,
    .begin_run = attn_openblas_hold,
    .end_run = attn_openblas_release,
};
