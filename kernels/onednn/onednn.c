/* SPDX-License-Identifier: MIT */
/* oneDNN's C API, 2.6 and 3.x. */
#define _GNU_SOURCE /* RTLD_DEFAULT, sched_getaffinity */
#include "onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/registry/cpu.h"

/* ---- What is loaded ---- */

char attn_onednn_text[80] = "oneDNN";

/* The instruction sets that oneDNN chooses from, and the lowest of our tiers that allows each (AVX without AVX2 counts as
 * avx2). */
static const struct {
  unsigned isa; /* dnnl_cpu_isa_t; by number, because each version knows more of them */
  const char *name, *tier;
} isas[] = {
    {0x1, "SSE4.1", "c"},
    {0x3, "AVX", "avx2"},
    {0x7, "AVX2", "avx2"},
    {0xf, "AVX2-VNNI", "avx2"},
    {0x1f, "AVX2-VNNI-2", "avx2"},
    {0x27, "AVX-512", "avx512"},
    {0x67, "AVX512-VNNI", "avx512"},
    {0xe7, "AVX512-BF16", "avx512bf16"},
    {0x1ef, "AVX512-FP16", "avx512bf16"},
    {0x3e7, "AMX", "amx"},
    {0xfef, "AMX", "amx"},
    {0x1fef, "AMX-FP16", "amx"},
    {0x201ff, "AVX10.2", "avx512bf16"},
    {0x22fff, "AMX-2", "amx"},
};

/* Index into isas, -1 if it is none of them. */
static int chosen_isa(void) {
  const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
    if (isas[i].isa == isa) return (int)i;
  return -1;
}

static void write_text(void) {
  const dnnl_version_t *version = dnnl_version();
  const int isa = chosen_isa();
  snprintf(attn_onednn_text, sizeof attn_onednn_text, "oneDNN %d.%d.%d %s", version->major, version->minor, version->patch,
           isa < 0 ? "of unknown instructions" : isas[isa].name);
}

void attn_onednn_identify(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, write_text);
}

/* ---- Threads ---- */

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
/* The functions of the OpenMP runtime that libdnnl uses. It may not be libattn's: libattn may be built without OpenMP, or by
 * a compiler with another runtime. */
static void find_threads(onednn_library *library) {
  void *const get = dlsym(RTLD_DEFAULT, "omp_get_max_threads"), *const set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  memcpy(&library->get_threads, &get, sizeof get); /* ISO C has no cast from object to function pointers */
  memcpy(&library->set_threads, &set, sizeof set);
}

static const char *threads_unusable(void) {
  onednn_library library;
  find_threads(&library);
  if (library.get_threads && library.set_threads) return NULL;
  return "oneDNN's OpenMP runtime has no omp_set_num_threads, so its threads cannot be held";
}
#else
static void find_threads(onednn_library *library) {
  library->get_threads = NULL;
  library->set_threads = NULL;
}

/* TBB starts as many threads as the process may use CPUs. */
static const char *threads_unusable(void) {
  static _Thread_local char reason[240];
  cpu_set_t allowed;
  const bool own_threads = DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_TBB;
  if (!own_threads || sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) == 1) return NULL;
  snprintf(reason, sizeof reason,
           "this oneDNN computes on %d TBB threads of its own, whose number a C program cannot set; start the program with "
           "taskset -c N, so that they are one, or build with a oneDNN for OpenMP",
           CPU_COUNT(&allowed));
  return reason;
}
#endif

int attn_onednn_hold_threads(const onednn_library *library) {
  const int before = library->get_threads ? library->get_threads() : 1;
  if (before != 1) library->set_threads(1);
  return before;
}

void attn_onednn_restore_threads(const onednn_library *library, int before) {
  if (before != 1) library->set_threads(before);
}

/* ---- Whether it can be used ---- */

/* oneDNN chooses its instructions itself, once for the whole process. A choice that is not in the table counts as the
 * highest tier of this CPU. */
static const char *cap_unusable(const char *cap) {
  static _Thread_local char reason[200];
  if (!cap) return NULL;
  const int isa = chosen_isa();
  const char *tier = isa < 0 ? attn_tier_best() : isas[isa].tier;
  if (attn_tier_find(tier) <= attn_tier_find(cap)) return NULL;
  snprintf(reason, sizeof reason,
           "oneDNN chose %s (tier %s) itself, above the cap '%s'; ONEDNN_MAX_CPU_ISA in the environment would change it",
           isa < 0 ? "its instructions" : isas[isa].name, tier, cap);
  return reason;
}

const char *attn_onednn_unusable(const char *cap) {
  const char *reason = cap_unusable(cap);
  if (!reason && dnnl_engine_get_count(dnnl_cpu) == 0)
    reason = "oneDNN finds no CPU to compute on; a build for SYCL needs Intel's OpenCL CPU runtime in OCL_ICD_FILENAMES";
  return reason ? reason : threads_unusable();
}

/* Tries mmap: malloc, once such a block is freed, would from then on keep as much memory for itself. */
bool attn_onednn_can_create(void) {
  void *memory = mmap(NULL, ONEDNN_CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED && munmap(memory, ONEDNN_CODE_BYTES) == 0;
}

bool attn_onednn_can_execute(void) {
  const size_t handles = 16 << 10;
  void *volatile memory = malloc(handles); /* volatile: compilers leave out an allocation that nothing uses */
  free(memory);
  return memory;
}

void attn_onednn_close(onednn_library *library) {
  if (library->stream) dnnl_stream_destroy(library->stream);
  if (library->engine) dnnl_engine_destroy(library->engine);
  *library = (onednn_library){.engine = NULL};
}

static dnnl_status_t create_library(void *context) {
  onednn_library *library = context;
  const dnnl_status_t status = dnnl_engine_create(&library->engine, dnnl_cpu, 0);
  return status == dnnl_success ? dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags) : status;
}

dnnl_status_t attn_onednn_open(onednn_library *library) {
  *library = (onednn_library){.engine = NULL};
  const dnnl_status_t status = attn_onednn_guarded(create_library, library);
  if (status != dnnl_success) attn_onednn_close(library);
  find_threads(library);
  return status;
}

/* ---- Where 2.6 and 3.x differ ---- */

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t create_desc(onednn_desc *desc, int dimensions, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                 const dnnl_dims_t strides) {
  return dnnl_memory_desc_create_with_strides(desc, dimensions, sizes, type, strides);
}

static void destroy_desc(onednn_desc *desc) { dnnl_memory_desc_destroy(*desc); }

static dnnl_status_t create_memory(dnnl_memory_t *memory, const onednn_desc *desc, dnnl_engine_t engine, void *data) {
  return dnnl_memory_create(memory, *desc, engine, data);
}

static size_t scratch_bytes_of(dnnl_primitive_desc_t primitive) {
  return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0));
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef); }

static dnnl_status_t describe_product(const onednn_library *library, const onednn_operation *operation,
                                      dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  const onednn_desc *desc = operation->desc;
  return dnnl_matmul_primitive_desc_create(primitive, library->engine, desc[0], desc[1], NULL, desc[2], attributes);
}

static dnnl_status_t describe_softmax(const onednn_library *library, const onednn_operation *operation,
                                      dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  const onednn_desc *desc = operation->desc;
  return dnnl_softmax_forward_primitive_desc_create(primitive, library->engine, dnnl_forward_inference,
                                                    dnnl_softmax_accurate, desc[0], desc[1], 1, attributes);
}

static dnnl_status_t describe_conversion(const onednn_library *library, const onednn_operation *operation,
                                         dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  const onednn_desc *desc = operation->desc;
  return dnnl_reorder_primitive_desc_create(primitive, desc[0], library->engine, desc[1], library->engine, attributes);
}
#else
static dnnl_status_t create_desc(onednn_desc *desc, int dimensions, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                 const dnnl_dims_t strides) {
  return dnnl_memory_desc_init_by_strides(desc, dimensions, sizes, type, strides);
}

static void destroy_desc(onednn_desc *desc) { (void)desc; }

static dnnl_status_t create_memory(dnnl_memory_t *memory, const onednn_desc *desc, dnnl_engine_t engine, void *data) {
  return dnnl_memory_create(memory, desc, engine, data);
}

static size_t scratch_bytes_of(dnnl_primitive_desc_t primitive) {
  return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0));
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }

static dnnl_status_t describe_product(const onednn_library *library, const onednn_operation *operation,
                                      dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  const onednn_desc *desc = operation->desc;
  dnnl_matmul_desc_t matmul;
  const dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], NULL, &desc[2]);
  return status == dnnl_success ? dnnl_primitive_desc_create(primitive, &matmul, attributes, library->engine, NULL) : status;
}

static dnnl_status_t describe_softmax(const onednn_library *library, const onednn_operation *operation,
                                      dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  dnnl_softmax_desc_t softmax;
  const dnnl_status_t status = dnnl_softmax_forward_desc_init(&softmax, dnnl_forward_inference, &operation->desc[0], 1);
  return status == dnnl_success ? dnnl_primitive_desc_create(primitive, &softmax, attributes, library->engine, NULL)
                                : status;
}

static dnnl_status_t describe_conversion(const onednn_library *library, const onednn_operation *operation,
                                         dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive) {
  const onednn_desc *desc = operation->desc;
  return dnnl_reorder_primitive_desc_create(primitive, &desc[0], library->engine, &desc[1], library->engine, attributes);
}
#endif

/* ---- Operations ---- */

void attn_onednn_close_operation(onednn_operation *operation) {
  if (operation->primitive) dnnl_primitive_destroy(operation->primitive);
  for (int i = 0; i < operation->operands; i++) destroy_desc(&operation->desc[i]);
  if (operation->scratch_bytes) destroy_desc(&operation->work);
  memset(operation, 0, sizeof *operation);
}

static dnnl_status_t add_operand(onednn_operation *operation, int role, const onednn_matrix *matrix) {
  const dnnl_dims_t sizes = {matrix->rows, matrix->columns}, strides = {matrix->row_stride, matrix->column_stride};
  const dnnl_status_t status = create_desc(&operation->desc[operation->operands], 2, sizes, matrix->type, strides);
  if (status == dnnl_success) operation->role[operation->operands++] = role;
  return status;
}

static dnnl_status_t add_work(onednn_operation *operation, size_t bytes) {
  const dnnl_dims_t size = {(int64_t)bytes}, stride = {1};
  if (bytes == 0) return dnnl_success;
  const dnnl_status_t status = create_desc(&operation->work, 1, size, dnnl_u8, stride);
  if (status == dnnl_success) operation->scratch_bytes = bytes;
  return status;
}

/* The caller brings the working memory, and arithmetic is float32, whatever the environment sets as default. */
static dnnl_status_t create_attributes(dnnl_primitive_attr_t *attributes) {
  dnnl_status_t status = dnnl_primitive_attr_create(attributes);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_fpmath_mode(*attributes, dnnl_fpmath_mode_strict);
  return status;
}

typedef dnnl_status_t (*describe_fn)(const onednn_library *library, const onednn_operation *operation,
                                     dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *primitive);

/* How an operation is made, with objects that are needed only meanwhile. */
typedef struct making {
  const onednn_library *library;
  describe_fn describe;
  bool accumulate, create;
  int operands;
  int role[ONEDNN_OPERANDS];
  const onednn_matrix *operand[ONEDNN_OPERANDS];
  onednn_operation *operation;
  dnnl_primitive_attr_t attributes;
  dnnl_post_ops_t ops;
  dnnl_primitive_desc_t primitive;
} making;

static dnnl_status_t add_sum(making *m) {
  dnnl_status_t status = dnnl_post_ops_create(&m->ops);
  if (status == dnnl_success) status = append_sum(m->ops);
  return status == dnnl_success ? dnnl_primitive_attr_set_post_ops(m->attributes, m->ops) : status;
}

static dnnl_status_t make(void *context) {
  making *m = context;
  onednn_operation *operation = m->operation;
  dnnl_status_t status = create_attributes(&m->attributes);
  if (status == dnnl_success && m->accumulate) status = add_sum(m);
  for (int i = 0; i < m->operands && status == dnnl_success; i++) status = add_operand(operation, m->role[i], m->operand[i]);
  if (status == dnnl_success) status = m->describe(m->library, operation, m->attributes, &m->primitive);
  if (status == dnnl_success) status = add_work(operation, scratch_bytes_of(m->primitive));
  if (status == dnnl_success && m->create) status = dnnl_primitive_create(&operation->primitive, m->primitive);
  return status;
}

static dnnl_status_t open_operation(making m) {
  memset(m.operation, 0, sizeof *m.operation);
  const dnnl_status_t status = attn_onednn_guarded(make, &m);
  if (m.primitive) dnnl_primitive_desc_destroy(m.primitive);
  if (m.ops) dnnl_post_ops_destroy(m.ops);
  if (m.attributes) dnnl_primitive_attr_destroy(m.attributes);
  if (status != dnnl_success) attn_onednn_close_operation(m.operation);
  return status;
}

dnnl_status_t attn_onednn_open_product(const onednn_library *library, const onednn_product *product, bool create,
                                       onednn_operation *operation) {
  return open_operation((making){.library = library,
                                 .describe = describe_product,
                                 .accumulate = product->accumulate,
                                 .create = create,
                                 .operands = 3,
                                 .role = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                 .operand = {&product->a, &product->b, &product->c},
                                 .operation = operation});
}

dnnl_status_t attn_onednn_open_softmax(const onednn_library *library, const onednn_matrix *x, bool create,
                                       onednn_operation *operation) {
  return open_operation((making){.library = library,
                                 .describe = describe_softmax,
                                 .create = create,
                                 .operands = 2,
                                 .role = {DNNL_ARG_SRC, DNNL_ARG_DST},
                                 .operand = {x, x},
                                 .operation = operation});
}

dnnl_status_t attn_onednn_open_conversion(const onednn_library *library, const onednn_matrix *from, const onednn_matrix *to,
                                          bool create, onednn_operation *operation) {
  return open_operation((making){.library = library,
                                 .describe = describe_conversion,
                                 .create = create,
                                 .operands = 2,
                                 .role = {DNNL_ARG_FROM, DNNL_ARG_TO},
                                 .operand = {from, to},
                                 .operation = operation});
}

typedef struct execution {
  const onednn_library *library;
  const onednn_operation *operation;
  void *const *operands;
  void *work;
  dnnl_exec_arg_t args[ONEDNN_OPERANDS + 1];
  int count;
} execution;

static dnnl_status_t execute(void *context) {
  execution *e = context;
  const onednn_operation *operation = e->operation;
  dnnl_status_t status = dnnl_success;
  while (e->count < operation->operands && status == dnnl_success) {
    const int i = e->count++;
    e->args[i].arg = operation->role[i];
    status = create_memory(&e->args[i].memory, &operation->desc[i], e->library->engine, e->operands[i]);
  }
  if (status == dnnl_success && operation->scratch_bytes) {
    const int i = e->count++;
    e->args[i].arg = DNNL_ARG_SCRATCHPAD;
    status = create_memory(&e->args[i].memory, &operation->work, e->library->engine, e->work);
  }
  if (status == dnnl_success) status = dnnl_primitive_execute(operation->primitive, e->library->stream, e->count, e->args);
  return status == dnnl_success ? dnnl_stream_wait(e->library->stream) : status;
}

dnnl_status_t attn_onednn_execute(const onednn_library *library, const onednn_operation *operation, void *const *operands,
                                  void *work) {
  execution e = {.library = library, .operation = operation, .operands = operands, .work = work};
  const dnnl_status_t status = attn_onednn_guarded(execute, &e);
  for (int i = 0; i < e.count; i++)
    if (e.args[i].memory) dnnl_memory_destroy(e.args[i].memory);
  return status;
}
