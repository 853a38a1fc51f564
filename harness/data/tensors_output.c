/* SPDX-License-Identifier: MIT */
/* Checks of a kernel's output: poison, guard zones, gaps, hashes and packed copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "data/tensors.h"
#include "kernels/common/problem/operation.h"
#include "machine/affinity.h"

bench_owned bench_owned_elements(const bench_tensors *tensors, bench_tensor which) {
  const bench_buffer *t = &tensors->buffers[which];
  bench_owned owned = {.start = t->first};
  memcpy(owned.extent, t->extent, sizeof owned.extent);
  memcpy(owned.stride, t->stride, sizeof owned.stride);
  if (!t->present || tensors->problem.batch == 0) return (bench_owned){0}; /* sums over no batch are not written */
  if (tensors->problem.uses & ATTN_USE_VARLEN && which < (bench_tensor)ATTN_ROW_OPERANDS) {
    const bool of_keys = t->output && attn_operand_of(&tensors->problem, (attn_operand_id)which).of_keys;
    const int32_t *cu = of_keys ? tensors->args.cu_seqlens_k : tensors->args.cu_seqlens_q;
    owned.extent[2] = cu[tensors->problem.batch] - cu[0];
    owned.start += cu[0] * t->stride[2];
  }
  owned.count = owned.extent[0] * owned.extent[1] * owned.extent[2] * owned.extent[3];
  return owned;
}

/* True if the owned elements fill the span: then there are no gaps, and their bytes are those of the span. */
static bool is_dense(const bench_buffer *t, const bench_owned *owned) {
  return (size_t)owned->count * t->element_bytes == t->bytes;
}

void bench_tensors_poison_output(bench_tensors *tensors, uint8_t poison, int threads) {
  for (int i = 0; i < BENCH_TENSORS; i++) {
    bench_buffer *t = &tensors->buffers[i];
    if (!t->present || !t->output) continue;
    bench_pages_fill(t->data, poison, t->bytes, threads);
    t->gap_byte = poison;
  }
}

/* ---- Walking the owned elements -------------------------------------------------------------------------------------- */

/* Calls visit(context, row) for every run of extent[3] elements along the last dimension; row is the place of the first. */
static void for_each_row(const bench_owned *owned, void (*visit)(void *context, int64_t row), void *context) {
  for (int64_t b = 0; b < owned->extent[0]; b++)
    for (int64_t h = 0; h < owned->extent[1]; h++)
      for (int64_t s = 0; s < owned->extent[2]; s++)
        visit(context, owned->start + b * owned->stride[0] + h * owned->stride[1] + s * owned->stride[2]);
}

/* Elements of an output as 32-bit words that do not depend on the factor of V. */
typedef struct canonical {
  attn_dtype dtype;
  float inverse; /* 1 / factor */
} canonical;

typedef struct row_walk {
  const bench_buffer *tensor;
  const bench_owned *owned;
  unsigned char *bytes; /* packed copy, or the map of owned elements */
  uint64_t hash;
  canonical form;
} row_walk;

static void copy_row(void *context, int64_t row) {
  row_walk *walk = context;
  size_t size = walk->tensor->element_bytes;
  for (int64_t d = 0; d < walk->owned->extent[3]; d++, walk->bytes += size)
    memcpy(walk->bytes, walk->tensor->data + (size_t)(row + d * walk->owned->stride[3]) * size, size);
}

static void mark_row(void *context, int64_t row) {
  row_walk *walk = context;
  for (int64_t d = 0; d < walk->owned->extent[3]; d++) walk->bytes[row + d * walk->owned->stride[3]] = 1;
}

size_t bench_tensors_output_bytes(const bench_tensors *tensors) {
  size_t bytes = 0;
  for (int i = 0; i < BENCH_TENSORS; i++)
    if (tensors->buffers[i].output)
      bytes += (size_t)bench_owned_elements(tensors, (bench_tensor)i).count * tensors->buffers[i].element_bytes;
  return bytes;
}

void bench_tensors_gather_output(const bench_tensors *tensors, void *packed) {
  row_walk walk = {.bytes = packed};
  for (int i = 0; i < BENCH_TENSORS; i++) {
    bench_owned owned = bench_owned_elements(tensors, (bench_tensor)i);
    walk.tensor = &tensors->buffers[i];
    walk.owned = &owned;
    if (walk.tensor->output) for_each_row(&owned, copy_row, &walk);
  }
}

/* ---- Hashes ---------------------------------------------------------------------------------------------------------- */

/* Four independent lanes keep the multiplier busy; the tail is padded with zeros. It is no cryptographic hash. */
uint64_t bench_hash_bytes(uint64_t hash, const unsigned char *data, size_t bytes) {
  const uint64_t prime = 0x9fb21c651e98df25u;
  uint64_t lane[4] = {hash, hash + 1, hash + 2, hash + 3};
  size_t done = 0;
  for (; done + 32 <= bytes; done += 32)
    for (int i = 0; i < 4; i++) {
      uint64_t word;
      memcpy(&word, data + done + 8 * i, sizeof word);
      lane[i] = (lane[i] ^ word) * prime;
      lane[i] ^= lane[i] >> 29;
    }
  for (; done < bytes; done++) lane[0] = ((lane[0] ^ data[done]) * prime) ^ (lane[0] >> 29);
  for (int i = 0; i < 4; i++) hash = ((hash ^ lane[i]) * prime) ^ (hash >> 31);
  return hash ^ bytes;
}

static uint32_t bits_of(float x) {
  const float y = x != x ? NAN : x + 0.0f; /* -0 + 0 = +0 */
  uint32_t bits;
  memcpy(&bits, &y, sizeof bits);
  return bits;
}

/* The bits of the element divided by V's factor. For float16 the factor is 1 or -1, so only the element's sign changes. */
static uint32_t canonical_word(canonical c, const unsigned char *element) {
  uint32_t wide;
  uint16_t narrow;
  if (c.dtype == ATTN_F32) {
    float x;
    memcpy(&x, element, sizeof x);
    return bits_of(x * c.inverse);
  }
  memcpy(&narrow, element, sizeof narrow);
  if (c.dtype == ATTN_F16) {
    const bool is_nan = (narrow & 0x7fff) > 0x7c00;
    return is_nan ? 0x7fff : (narrow & 0x7fff) == 0 ? 0 : c.inverse < 0 ? narrow ^ 0x8000u : narrow;
  }
  float x;
  wide = (uint32_t)narrow << 16;
  memcpy(&x, &wide, sizeof x);
  return bits_of(x * c.inverse);
}

/* Hashes `count` elements, `stride` bytes apart. */
static uint64_t hash_elements(uint64_t hash, canonical c, const unsigned char *data, int64_t count, int64_t stride) {
  enum { WORDS = 256 };
  uint32_t word[WORDS];
  for (int64_t done = 0; done < count; done += WORDS) {
    const int64_t part = count - done < WORDS ? count - done : WORDS;
    for (int64_t i = 0; i < part; i++) word[i] = canonical_word(c, data + (done + i) * stride);
    hash = bench_hash_bytes(hash, (const unsigned char *)word, (size_t)part * sizeof *word);
  }
  return hash;
}

static void hash_row(void *context, int64_t row) {
  row_walk *walk = context;
  const int64_t size = (int64_t)walk->tensor->element_bytes;
  walk->hash = hash_elements(walk->hash, walk->form, walk->tensor->data + row * size, walk->owned->extent[3],
                             walk->owned->stride[3] * size);
}

uint64_t bench_tensors_output_hash(const bench_tensors *tensors) {
  const float inverse = (float)(1 / bench_v_factor(tensors));
  row_walk walk = {.hash = 0};
  for (int i = 0; i < BENCH_TENSORS; i++) {
    bench_owned owned = bench_owned_elements(tensors, (bench_tensor)i);
    walk.tensor = &tensors->buffers[i];
    walk.owned = &owned;
    walk.form = (canonical){walk.tensor->dtype, attn_operations[tensors->problem.operation].linear >> i & 1 ? inverse : 1};
    if (!walk.tensor->output) continue;
    if (is_dense(walk.tensor, &owned))
      walk.hash = hash_elements(walk.hash, walk.form, walk.tensor->data, owned.count, (int64_t)walk.tensor->element_bytes);
    else
      for_each_row(&owned, hash_row, &walk);
  }
  return walk.hash;
}

static uint64_t hash_inputs(const bench_tensors *tensors, bool rewritten) {
  uint64_t hash = 0;
  for (int i = 0; i < BENCH_TENSORS; i++) {
    const bench_buffer *t = &tensors->buffers[i];
    if (t->present && !t->output && bench_is_rewritten(tensors, (bench_tensor)i) == rewritten)
      hash = bench_hash_bytes(hash, t->data, t->bytes);
  }
  return hash;
}

uint64_t bench_tensors_input_hash(const bench_tensors *tensors) { return hash_inputs(tensors, false); }
uint64_t bench_tensors_rewritten_hash(const bench_tensors *tensors) { return hash_inputs(tensors, true); }

/* ---- Damage ---------------------------------------------------------------------------------------------------------- */

/* Index of the first byte that is not `expected`, or -1. */
static int64_t first_other(const unsigned char *data, size_t bytes, unsigned char expected) {
  for (size_t i = 0; i < bytes; i++)
    if (data[i] != expected) return (int64_t)i;
  return -1;
}

static bool guard_damaged(bench_buffer *t) {
  unsigned char expected = t->output ? BENCH_OUTPUT_GUARD : bench_poison_of(t->dtype);
  int64_t before = first_other(t->data - t->guard_before, t->guard_before, expected);
  int64_t after = first_other(t->data + t->bytes, t->guard_after, expected);
  if (before >= 0)
    snprintf(t->damage, sizeof t->damage, "%s: guard before the tensor overwritten, %lld bytes ahead of its start", t->name,
             (long long)((int64_t)t->guard_before - before));
  else if (after >= 0)
    snprintf(t->damage, sizeof t->damage, "%s: guard after the tensor overwritten at byte %lld", t->name, (long long)after);
  return before >= 0 || after >= 0;
}

/* Elements of an output that belong to no row must still hold the poison. */
static bool gap_damaged(const bench_tensors *tensors, bench_tensor which) {
  bench_buffer *t = &tensors->buffers[which];
  bench_owned owned = bench_owned_elements(tensors, which);
  if (!t->present || is_dense(t, &owned)) return false;
  size_t elements = t->bytes / t->element_bytes;
  row_walk walk = {.tensor = t, .owned = &owned, .bytes = calloc(elements, 1)};
  snprintf(t->damage, sizeof t->damage, "%s: no memory to look at its gaps", t->name);
  if (!walk.bytes) return true;
  for_each_row(&owned, mark_row, &walk);
  bool damaged = false;
  for (size_t i = 0; i < elements && !damaged; i++) {
    damaged = !walk.bytes[i] && first_other(t->data + i * t->element_bytes, t->element_bytes, t->gap_byte) >= 0;
    if (damaged)
      snprintf(t->damage, sizeof t->damage, "%s: written at element %lld of its span, which belongs to no row", t->name,
               (long long)i);
  }
  free(walk.bytes);
  return damaged;
}

const char *bench_tensors_damage(const bench_tensors *tensors) {
  for (int i = 0; i < BENCH_TENSORS; i++) {
    bench_buffer *t = &tensors->buffers[i];
    if (t->present && guard_damaged(t)) return t->damage;
  }
  for (int i = 0; i < BENCH_TENSORS; i++)
    if (tensors->buffers[i].output && gap_damaged(tensors, (bench_tensor)i)) return tensors->buffers[i].damage;
  return NULL;
}

/* ---- Another V, or for gradients another d_o ------------------------------------------------------------------------ */
/* Its output is known without another check: o is linear in V, gradients are in d_o, and a factor of -1 or of a power of two
 * commutes with every rounding to nearest, as long as nothing leaves the range of normal numbers. */

enum { ONE_THREAD = 1 << 14 }; /* elements: for fewer, waking a team costs more than it saves */

/* A number between these stays in range when it is multiplied by 4, and by every P that is not near the ends of the range
 * itself. */
static const float LEAST = 0x1p-60f, MOST = 0x1p60f;

/* Element i as a float32, of which a smaller element is the upper part, or of a block its factor. So bfloat16 and integers
 * keep their values, and other types only their sign. Poison is a NaN. */
static float load(const bench_buffer *v, int64_t i) {
  uint32_t word = 0;
  float x;
  if (attn_dtype_is_integer(v->dtype)) return v->data[i] == bench_poison_of(v->dtype) ? NAN : (float)(int8_t)v->data[i];
  if (v->element_bytes == sizeof word) {
    memcpy(&word, v->data + i * 4, sizeof word);
  } else if (v->element_bytes == 1) {
    word = v->data[i] == BENCH_INPUT_POISON ? UINT32_MAX : (uint32_t)v->data[i] << 24; /* poison stays what it is: a NaN */
  } else {
    uint16_t upper;
    memcpy(&upper, v->data + i * (int64_t)v->element_bytes, sizeof upper);
    word = (uint32_t)upper << 16;
  }
  memcpy(&x, &word, sizeof x);
  return x;
}

static void store(bench_buffer *v, int64_t i, float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  const uint16_t upper = (uint16_t)(word >> 16);
  if (attn_dtype_is_integer(v->dtype))
    v->data[i] = isnan(x) ? bench_poison_of(v->dtype) : (unsigned char)(int8_t)x;
  else if (v->element_bytes == sizeof word)
    memcpy(v->data + i * 4, &word, sizeof word);
  else if (v->element_bytes == 1)
    v->data[i] = (unsigned char)(word >> 24);
  else
    memcpy(v->data + i * (int64_t)v->element_bytes, &upper, sizeof upper);
}

static int64_t elements_of(const bench_buffer *v) { return (int64_t)(v->bytes / v->element_bytes); }

/* The input that outputs are linear in. */
static bench_buffer *linear_input(const bench_tensors *t) {
  return &t->buffers[attn_operations[t->problem.operation].linear_in];
}

/* Whether powers of two are exact, too: not in float16, nor in 8 bits, which hold few of them. A sink may be so large that
 * it leaves outputs near zero. NaN, which fills gaps, stays NaN. */
static bool takes_powers(const bench_tensors *t) {
  const bench_buffer *v = linear_input(t);
  const attn_problem *p = &t->problem;
  bool within = (v->dtype == ATTN_F32 || v->dtype == ATTN_BF16) && !(p->uses & ATTN_USE_SINKS);
  for (int i = 0; i < BENCH_TENSORS; i++) within = within && !(t->buffers[i].output && t->buffers[i].dtype == ATTN_F16);
  for (int64_t i = 0; i < elements_of(v) && within; i++) {
    const float x = fabsf(load(v, i));
    within = !(x > MOST || (x > 0 && x < LEAST));
  }
  return within;
}

double bench_v_factor(const bench_tensors *t) {
  if (t->kv_of) t = t->kv_of;
  static const double size[] = {1, 2, 4};
  return (t->v_step % 2 ? -1 : 1) * (t->v_powers ? size[t->v_step % 3] : 1);
}

void bench_tensors_renew_v(bench_tensors *t, int threads) {
  bench_buffer *v = linear_input(t);
  if (t->kv_of || v->within_k || attn_uses(&t->problem, ATTN_USE_D_LSE)) return; /* d_lse would have to change as well */
  const int64_t count = elements_of(v);
  if (!t->v_step) t->v_powers = takes_powers(t);
  const double before = bench_v_factor(t);
  t->v_step++;
  const float factor = (float)(bench_v_factor(t) / before);
  const int team = count < ONE_THREAD ? 1 : threads;
#pragma omp parallel num_threads(attn_parallel_available(team)) if (team > 1)
  {
    if (team > 1) bench_thread_settle();
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) store(v, i, factor * load(v, i));
  }
}
