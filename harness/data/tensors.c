/* SPDX-License-Identifier: MIT */
/* Memory of one case's tensors: spans from shapes and strides, guard zones or guard pages around them, and attn_args. */
#include "data/tensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/generate.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/operation.h"
#include "machine/affinity.h"

enum { ALIGNMENT = 64 };

/* ---- Shapes ------------------------------------------------------------------------------------------------------- */

static void describe(const attn_problem *p, bool latent, bench_buffer *t) {
  for (int i = 0; i < BENCH_TENSORS; i++) {
    const attn_operand given = attn_operand_of(p, (attn_operand_id)i), o = attn_operand_in_blocks(given);
    t[i] = (bench_buffer){.name = o.name,
                          .present = o.present,
                          .output = attn_is_output(p, (attn_operand_id)i),
                          .single = o.single,
                          .element_bytes = o.element_bytes,
                          .columns = given.extent[3],
                          .dtype = o.dtype};
    memcpy(t[i].extent, o.extent, sizeof o.extent);
    memcpy(t[i].stride, o.stride, sizeof o.stride);
  }
  t[BENCH_V].within_k = latent;
}

static bool is_latent(const bench_case *bench) { return bench_spec_is(&bench->spec, AXIS_LATENT, "on"); }

/* Sets first and bytes. False if the span overflows. */
static bool measure_buffer(bench_buffer *t) {
  int64_t low = 0, high = 0;
  t->first = 0;
  t->bytes = 0;
  for (int i = 0; i < 4; i++)
    if (!t->present || t->extent[i] <= 0) return t->extent[i] >= 0;
  for (int i = 0; i < 4; i++) {
    int64_t reach;
    if (__builtin_mul_overflow(t->extent[i] - 1, t->stride[i], &reach)) return false;
    if (__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) return false;
  }
  int64_t elements;
  if (__builtin_sub_overflow(high, low, &elements) || __builtin_add_overflow(elements, 1, &elements)) return false;
  t->first = -low;
  return !__builtin_mul_overflow((size_t)elements, t->element_bytes, &t->bytes) && t->bytes <= PTRDIFF_MAX / 2;
}

static size_t round_bytes(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

static size_t zoned_bytes(const bench_buffer *t) { return round_bytes(t->bytes + 2 * BENCH_GUARD_BYTES, ALIGNMENT); }

size_t bench_tensors_size(const bench_case *bench) {
  bench_buffer buffers[BENCH_TENSORS];
  describe(&bench->problem, is_latent(bench), buffers);
  size_t total = 0;
  for (int i = 0; i < BENCH_TENSORS; i++) {
    if (!measure_buffer(&buffers[i])) return 0;
    if (buffers[i].present && !buffers[i].within_k && __builtin_add_overflow(total, zoned_bytes(&buffers[i]), &total))
      return 0;
  }
  return total;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

unsigned char bench_poison_of(attn_dtype dtype) {
  return attn_dtype_is_integer(dtype) ? BENCH_INTEGER_POISON : BENCH_INPUT_POISON;
}

/* Guard zones before and after; the data is aligned to 64 bytes. */
static bool allocate_zones(bench_buffer *t, size_t *allocated) {
  size_t bytes = zoned_bytes(t);
  unsigned char *memory = attn_aligned_alloc(ALIGNMENT, bytes);
  if (!memory) return false;
  *allocated += bytes;
  t->memory = memory;
  t->data = memory + BENCH_GUARD_BYTES;
  t->guard_before = BENCH_GUARD_BYTES;
  t->guard_after = bytes - BENCH_GUARD_BYTES - t->bytes;
  return true;
}

/* [inaccessible page][pages of data][inaccessible page], the data flush with the page after it, or before it. */
static bool allocate_pages(bench_buffer *t, bench_guard guard, size_t *allocated) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t inner = round_bytes(t->bytes + BENCH_GUARD_BYTES, page), bytes = inner + 2 * page;
  unsigned char *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  t->memory = memory;
  t->mapped_bytes = bytes;
  *allocated += bytes;
  if (mprotect(memory + page, inner, PROT_READ | PROT_WRITE)) return false;
  size_t zone = inner - t->bytes;
  t->guard_before = guard == BENCH_GUARD_PAGE_AFTER ? zone : 0;
  t->guard_after = guard == BENCH_GUARD_PAGE_AFTER ? 0 : zone;
  t->data = memory + page + t->guard_before;
  return true;
}

static bool allocate(bench_buffer *t, bench_guard guard, size_t *allocated) {
  if (!t->present || t->within_k) return true;
  bool done = guard == BENCH_GUARD_ZONES ? allocate_zones(t, allocated) : allocate_pages(t, guard, allocated);
  if (!done) return false;
  t->gap_byte = bench_poison_of(t->dtype);
  int guard_byte = t->output ? BENCH_OUTPUT_GUARD : t->gap_byte;
  memset(t->data - t->guard_before, guard_byte, t->guard_before);
  bench_pages_forget(t->data, t->bytes);
  bench_pages_fill(t->data, t->gap_byte, t->bytes, bench_threads_held());
  memset(t->data + t->bytes, guard_byte, t->guard_after);
  return true;
}

static void release(bench_buffer *t) {
  if (t->mapped_bytes)
    munmap(t->memory, t->mapped_bytes);
  else
    attn_aligned_free(t->memory);
}

/* First element in stride order; NULL if the problem has no such tensor. */
static void *origin(const bench_buffer *t) { return t->present ? t->data + (size_t)t->first * t->element_bytes : NULL; }

static attn_args point_into(const attn_problem *p, const bench_buffer *t) {
  attn_args args = {.struct_size = sizeof args};
  for (int i = 0; i < BENCH_TENSORS; i++) attn_operand_point(p, (attn_operand_id)i, &args, origin(&t[i]));
  return args;
}

/* Memory for every tensor, poisoned; on failure nothing is left allocated. */
static bool allocate_all(const attn_problem *problem, bool latent, bench_tensors *tensors, bench_guard guard) {
  *tensors = (bench_tensors){.problem = *problem};
  tensors->buffers = calloc(BENCH_TENSORS, sizeof *tensors->buffers);
  if (!tensors->buffers) return false;
  describe(problem, latent, tensors->buffers);
  for (int i = 0; i < BENCH_TENSORS; i++) {
    if (measure_buffer(&tensors->buffers[i]) && allocate(&tensors->buffers[i], guard, &tensors->bytes)) continue;
    bench_tensors_destroy(tensors);
    return false;
  }
  bench_buffer *v = &tensors->buffers[BENCH_V];
  if (v->within_k) v->data = tensors->buffers[BENCH_K].data;
  tensors->args = point_into(problem, tensors->buffers);
  return true;
}

attn_args bench_used_args(const attn_problem *p, const attn_args *given) {
  attn_args args = *given;
  for (attn_operand_id i = 0; i < ATTN_OPERANDS; i++)
    if (!attn_operand_of(p, i).present) attn_operand_point(p, i, &args, NULL);
  return args;
}

attn_args bench_forward_args(const attn_args *gradients) {
  const attn_operation_info *forward = &attn_operations[ATTN_FORWARD];
  attn_args args = *gradients;
#define TENSOR(constant, member, ...) \
  if (!((forward->inputs | forward->outputs) >> ATTN_OPERAND_##constant & 1)) args.member = NULL;
#include "kernels/common/problem/tensors.def"
#undef TENSOR
  return args;
}

bool bench_is_rewritten(const bench_tensors *t, bench_tensor which) {
  return t->both && attn_operations[ATTN_FORWARD].outputs >> which & 1;
}

bool bench_tensors_create_guarded(const bench_case *bench, bench_tensors *tensors, bench_guard guard) {
  if (!allocate_all(&bench->problem, is_latent(bench), tensors, guard)) return false;
  tensors->args.seed = bench->seed;
  tensors->both = bench->both;
  if (bench_tensors_fill(bench, tensors)) return true;
  bench_tensors_destroy(tensors);
  return false;
}

bool bench_tensors_create(const bench_case *bench, bench_tensors *tensors) {
  return bench_tensors_create_guarded(bench, tensors, BENCH_GUARD_ZONES);
}

bool bench_tensors_create_empty(const attn_problem *problem, bench_tensors *tensors) {
  return allocate_all(problem, false, tensors, BENCH_GUARD_ZONES);
}

bool bench_tensors_clone(const bench_tensors *source, bench_tensors *copy) {
  if (!allocate_all(&source->problem, source->buffers[BENCH_V].within_k, copy, BENCH_GUARD_ZONES)) return false;
  copy->args.seed = source->args.seed;
  copy->both = source->both;
  for (int i = 0; i < BENCH_TENSORS; i++) {
    const bench_buffer *from = &source->buffers[i];
    if (!from->present || from->within_k) continue;
    memcpy(copy->buffers[i].data, from->data, from->bytes);
    copy->buffers[i].gap_byte = from->gap_byte;
  }
  return true;
}

void bench_tensors_destroy(bench_tensors *tensors) {
  bench_tensors_forget_fresh(tensors);
  for (int i = 0; tensors->buffers && i < BENCH_TENSORS; i++) release(&tensors->buffers[i]);
  free(tensors->buffers);
  *tensors = (bench_tensors){0};
}
