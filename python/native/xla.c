/* SPDX-License-Identifier: MIT */
#include "xla.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "attn/extend.h"
#include "src/registry/cpu.h"
#include "threads.h"

/* ---- Layouts that XLA publishes: xla/ffi/api/c_api.h, version 0.3, of jaxlib's wheel (jax.ffi.include_dir()) --------- */

typedef struct xla_extension {
  size_t struct_size;
  int type;
  struct xla_extension *next;
} xla_extension;

#define XLA_HEAD      \
  size_t struct_size; \
  const xla_extension *extension_start

typedef struct xla_version {
  XLA_HEAD;
  int major_version, minor_version;
} xla_version;

typedef struct xla_error_create {
  XLA_HEAD;
  const char *message;
  int code;
} xla_error_create;

typedef struct xla_error_destroy {
  XLA_HEAD;
  xla_error *error;
} xla_error_destroy;

typedef struct xla_schedule {
  XLA_HEAD;
  void *context;
  void (*task)(void *data);
  void *data;
} xla_schedule;

typedef struct xla_num_threads {
  XLA_HEAD;
  void *context;
  int64_t *threads;
} xla_num_threads;

typedef struct xla_api {
  XLA_HEAD;
  xla_version version;
  const void *internal;
  xla_error *(*error_create)(xla_error_create *);
  void (*error_get_message)(void);
  void (*error_destroy)(xla_error_destroy *);
  void (*others[8])(void);
  xla_error *(*schedule)(xla_schedule *);
  xla_error *(*num_threads)(xla_num_threads *);
} xla_api;

typedef struct xla_buffer {
  XLA_HEAD;
  int type;
  void *data;
  int64_t rank;
  const int64_t *dims;
} xla_buffer;

/* Arguments and results; of attributes, `names` stands between types and values. */
typedef struct xla_list {
  XLA_HEAD;
  int64_t size;
  const int *types;
  xla_buffer *const *buffers;
} xla_list;

typedef struct xla_span {
  const char *text;
  size_t length;
} xla_span;

typedef struct xla_array {
  int type;
  size_t size;
  const void *data;
} xla_array;

typedef struct xla_attributes {
  XLA_HEAD;
  int64_t size;
  const int *types;
  const xla_span *const *names;
  const xla_array *const *values;
} xla_attributes;

struct xla_frame {
  XLA_HEAD;
  const xla_api *api;
  void *context;
  int stage;
  xla_list args, results;
  xla_attributes attributes;
};

typedef struct xla_metadata {
  size_t struct_size;
  xla_version version;
} xla_metadata;

typedef struct xla_metadata_extension {
  xla_extension base;
  xla_metadata *metadata;
} xla_metadata_extension;

enum { METADATA = 1, ARRAY = 1 };                                                         /* types */
enum { S32 = 4, S64 = 5, U32 = 8, U64 = 9, F32 = 11 };                                    /* dtypes */
enum { INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, UNIMPLEMENTED = 12, INTERNAL = 13 }; /* errors */

/* ---- Errors ---------------------------------------------------------------------------------------------------------- */

static xla_error *fail(const xla_api *api, int code, const char *message) {
  xla_error_create args = {.struct_size = sizeof args, .message = message, .code = code};
  return api->error_create(&args);
}

static xla_error *fail_as(const xla_api *api, attn_status status) {
  const int code = status == ATTN_OUT_OF_MEMORY ? RESOURCE_EXHAUSTED
                   : status == ATTN_UNSUPPORTED ? UNIMPLEMENTED
                                                : INVALID_ARGUMENT;
  return fail(api, code, attn_last_error());
}

/* ---- XLA's threads --------------------------------------------------------------------------------------------------- */

static bool forget_error(const xla_api *api, xla_error *error) {
  xla_error_destroy args = {.struct_size = sizeof args, .error = error};
  if (error) api->error_destroy(&args);
  return !error;
}

static bool schedule(const void *frame, void (*task)(void *data), void *data) {
  const xla_frame *f = frame;
  xla_schedule args = {.struct_size = sizeof args, .context = f->context, .task = task, .data = data};
  return forget_error(f->api, f->api->schedule(&args));
}

/* 0: there are none. */
static int count_threads(const xla_frame *f) {
  int64_t threads = 0;
  xla_num_threads args = {.struct_size = sizeof args, .context = f->context, .threads = &threads};
  if (f->api->struct_size < sizeof *f->api || !forget_error(f->api, f->api->num_threads(&args))) return 0;
  return threads < 0 ? 0 : threads > 4096 ? 4096 : (int)threads;
}

/* ---- A call ---------------------------------------------------------------------------------------------------------- */

/* XLA asks which version of its interface this is. Fields are only ever added to structs of one major version. */
static xla_error *tell_version(const xla_frame *f) {
  const xla_metadata_extension *asked = (const xla_metadata_extension *)(const void *)f->extension_start;
  asked->metadata->version.major_version = 0;
  asked->metadata->version.minor_version = f->api && f->api->version.major_version == 0 ? f->api->version.minor_version : 3;
  return NULL;
}

static bool read_call(const xla_frame *f, compiled *c) {
  const xla_attributes *a = &f->attributes;
  if (a->size != 1 || a->types[0] != ARRAY || a->values[0]->type != S64 || a->values[0]->size * 8 != sizeof *c) return false;
  memcpy(c, a->values[0]->data, sizeof *c);
  return c->operands == f->args.size && c->results == f->results.size;
}

/* The bits of a seed or of an offset; numbers with a sign keep it. */
static uint64_t read_bits(const xla_buffer *b) {
  switch (b->type) {
    case S32: return (uint64_t)(int64_t) * (const int32_t *)b->data;
    case U32: return *(const uint32_t *)b->data;
    default: return *(const uint64_t *)b->data;
  }
}

static void put(attn_args *args, args_place place, const xla_buffer *b) {
  char *field = (char *)args + place;
  if (place == offsetof(attn_args, seed) || place == offsetof(attn_args, offset)) {
    const uint64_t bits = read_bits(b);
    memcpy(field, &bits, sizeof bits);
  } else {
    memcpy(field, &b->data, sizeof b->data);
  }
}

static void clear_padding(const compiled *c, const attn_args *args, int result, const xla_buffer *b) {
  int64_t elements = 1;
  for (int64_t i = 0; i < b->rank; i++) elements *= b->dims[i];
  args_clear_padding(&c->wanted.problem, args, c->result[result] == offsetof(attn_args, lse), b->data, elements,
                     b->type == F32 ? 4 : 2);
}

static void complete(compiled *c, attn_args *args) {
  attn_problem *p = &c->wanted.problem;
  args_complete_scales(p, args);
  if (c->longest[0]) p->seq_q = args_longest(args->cu_seqlens_q, p->batch);
  if (c->longest[1]) p->seq_k = args_longest(args->cu_seqlens_k, p->batch);
}

/* Names as the registry's own, which the cache of plans compares. */
static void find_names(compiled *c) {
  const attn_kernel_info *kernel = c->kernel[0] ? attn_kernel_find(c->kernel) : NULL;
  const int tier = c->max_isa[0] ? attn_tier_find(c->max_isa) : -1;
  if (kernel) c->wanted.kernel = kernel->name;
  if (tier >= 0) c->wanted.max_isa = attn_tier_isa(tier);
}

static attn_status run(compiled *c, const attn_args *args) {
  c->wanted.default_threads = c->wanted.threads ? 0 : attn_parallel_default_threads();
  return planned_compute(&c->wanted, args);
}

xla_error *attn_python_xla(const xla_frame *f) {
  if (f->extension_start && f->extension_start->type == METADATA) return tell_version(f);
  compiled c;
  if (!read_call(f, &c)) return fail(f->api, INTERNAL, "the program was compiled for another version of libattn");
  attn_args args = ATTN_STRUCT(attn_args, .seed = c.seed, .offset = c.offset);
  for (int i = 0; i < c.operands; i++) put(&args, c.operand[i], f->args.buffers[i]);
  for (int i = 0; i < c.results; i++) put(&args, c.result[i], f->results.buffers[i]);
  for (int i = 0; i < c.results; i++) clear_padding(&c, &args, i, f->results.buffers[i]);
  complete(&c, &args);
  find_names(&c);
  const lent_pool pool = {.threads = count_threads(f), .schedule = schedule, .pool = f};
  threads_lend(pool.threads ? &pool : NULL);
  const attn_status status = run(&c, &args);
  threads_lend(NULL);
  return status == ATTN_OK ? NULL : fail_as(f->api, status);
}
