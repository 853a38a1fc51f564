/* SPDX-License-Identifier: MIT */
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ /* in gcc's words */
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { SLOT = 4 << 20, GUARD = 1 << 16 }; /* bytes for a tensor; the largest page size of our machines */

/* ---- Shape -------------------------------------------------------------------------------------------------------- */

/* Sizes at which vectors, tiles and blocks begin and end. */
static const uint8_t sizes[] = {1,  2,  3,  4,  5,  7,  8,  9,  11, 12, 13, 15, 16, 17, 20, 23,
                                24, 25, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 80, 96, 97, 129};
static const double most_work = 2e5; /* multiply-adds of one run */

static int64_t pick_size(fuzz_bytes *bytes) { return sizes[fuzz_byte(bytes) % sizeof sizes]; }
static int64_t pick(fuzz_bytes *bytes, int64_t least, int64_t most) { return least + fuzz_byte(bytes) % (most - least + 1); }

static double work_of(const attn_problem *p) {
  return (double)(p->batch * p->heads_q) * (double)((p->seq_q + 1) * (p->seq_k + 1)) * (double)(p->dim_qk + p->dim_v);
}

static void read_shape(fuzz_bytes *bytes, attn_problem *p) {
  const int64_t heads_kv = pick(bytes, 1, 3), group = pick(bytes, 1, 9);
  attn_problem_init(p, pick(bytes, 1, 3), heads_kv * group, heads_kv, pick_size(bytes), pick_size(bytes), pick_size(bytes),
                    pick_size(bytes));
  const uint8_t empty = fuzz_byte(bytes);
  if (empty == 1) p->seq_q = 0;
  if (empty == 2) p->seq_k = 0;
  if (empty == 3) p->batch = 0;
  while (work_of(p) > most_work) {
    if (p->batch > 1)
      p->batch--;
    else if (p->heads_q > p->heads_kv)
      p->heads_q -= p->heads_kv;
    else if (p->seq_q > p->seq_k)
      p->seq_q /= 2;
    else
      p->seq_k = p->seq_k * 3 / 4;
  }
}

static void read_types(fuzz_bytes *bytes, attn_problem *p) {
  const uint8_t types = fuzz_byte(bytes);
  const attn_dtype stored[] = {ATTN_F8_E4M3, ATTN_F8_E5M2, ATTN_I8, ATTN_Q8_0, ATTN_Q4_0};
  p->dtype_q = (attn_dtype)(types % 3);
  p->dtype_kv = types & 0x20 ? stored[(types >> 3 & 3) + (types >> 2 & 1)] : p->dtype_q;
  p->dtype_q = types & 0x40 ? ATTN_F32 : p->dtype_q;
  p->dtype_o = types & 0x80 ? ATTN_F32 : p->dtype_q;
}

static void read_meaning(fuzz_bytes *bytes, attn_problem *p) {
  static const float scales[] = {0, -0.5f, 1, 3, 100, 1e-20f}, caps[] = {0.5f, 5, 50, 1e-20f, 1e20f};
  const uint8_t scale = fuzz_byte(bytes), cap = fuzz_byte(bytes), score = fuzz_byte(bytes);
  if (scale & 0x80) p->scale = scales[scale % 6];
  if (cap & 0x80) p->softcap = caps[cap % 5];
  p->score = (attn_score)(score >= 0xc0 ? score % 4 : 0);
  p->align = (attn_align)(fuzz_byte(bytes) % 3);
  int64_t *const windows[] = {&p->window_left, &p->window_right};
  for (int i = 0; i < 2; i++) {
    const uint8_t window = fuzz_byte(bytes);
    *windows[i] = window < 0x80 ? -1 : window == 0xff ? INT64_MAX : window & 0x7f;
  }
  const uint8_t piece = fuzz_byte(bytes), end = fuzz_byte(bytes);
  if (piece & 0x80) p->window_first = piece & 0x1f;
  if (piece & 0x40) p->key_begin = end & 0x1f;
  if (piece & 0x20) p->key_end = p->key_begin + end;
}

static void read_uses(fuzz_bytes *bytes, attn_problem *p) {
  p->uses = (uint32_t)fuzz_byte(bytes) | (uint32_t)fuzz_byte(bytes) << 8;
  p->uses &= (ATTN_USE_FULL_KEY_BLOCKS << 1) - 1;
  if (p->uses & ATTN_USE_VARLEN) p->uses &= ~(uint32_t)(ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_ROW_LEN);
  if (p->uses & ATTN_USE_PAGES) p->uses |= ATTN_USE_KV_LEN;
  if ((p->uses & ATTN_USE_ROW_LEN) && p->align == ATTN_ALIGN_BOTTOM_RIGHT) p->align = ATTN_ALIGN_TOP_LEFT;
  if (p->score == ATTN_SCORE_ADDITIVE) p->uses |= ATTN_USE_SCORE_WEIGHT;
  if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN) p->uses &= ~(uint32_t)ATTN_USE_KV_SCALES;
  if (!(p->uses & ATTN_USE_STATE)) return;
  if (p->align == ATTN_ALIGN_BOTTOM_RIGHT) p->align = ATTN_ALIGN_OFFSET;
  p->window_first = 0;
}

/* ---- Strides ------------------------------------------------------------------------------------------------------ */

typedef enum may { MAY_BROADCAST, MAY_NOT_BROADCAST } may;

/* Axes in any order, with gaps and negative strides; inputs also with strides of 0. A first byte below 0x60 means dense. */
static void read_strides(fuzz_bytes *bytes, const int64_t extent[4], may broadcast, int64_t stride[4]) {
  const bool dense = fuzz_byte(bytes) < 0x60;
  uint64_t choice = dense ? 0 : fuzz_word(bytes);
  int left[4] = {3, 2, 1, 0}; /* innermost first */
  int64_t step = 1;
  for (int n = 4; n > 0; n--) {
    const int at = (int)(choice % (unsigned)n), axis = left[at];
    memmove(left + at, left + at + 1, (size_t)(n - at - 1) * sizeof *left);
    choice /= (unsigned)n;
    if (!dense) step += (int64_t)(choice % 3);
    choice /= 3;
    stride[axis] = choice & 1 ? -step : step;
    step *= extent[axis] > 0 ? extent[axis] : 1;
    choice >>= 1;
    if ((choice & 7) == 7 && broadcast == MAY_BROADCAST) stride[axis] = 0;
    choice >>= 3;
  }
}

/* Sets the shape of a tensor and reads its strides. */
static void read_tensor(fuzz_bytes *bytes, fuzz_tensor *t, size_t element_bytes, const int64_t extent[4], may broadcast) {
  memcpy(t->extent, extent, sizeof t->extent);
  t->element_bytes = element_bytes;
  read_strides(bytes, extent, broadcast, t->stride);
}

static attn_strides row_stride(const fuzz_tensor *t) {
  return (attn_strides){t->stride[0], t->stride[1], t->stride[2], t->stride[3]};
}

static attn_score_strides pair_stride(const fuzz_tensor *t) {
  return (attn_score_strides){t->stride[0], t->stride[1], t->stride[2], t->stride[3]};
}

static size_t bytes_of(attn_dtype dtype) { return dtype == ATTN_F32 ? 4 : dtype == ATTN_F16 || dtype == ATTN_BF16 ? 2 : 1; }

static bool has_blocks(attn_dtype dtype) { return dtype == ATTN_Q8_0 || dtype == ATTN_Q4_0; }

/* K or V. Of types of blocks, its elements are blocks, which adjoin in a row; rows lie in any order, some with gaps. */
static void read_key_tensor(fuzz_bytes *bytes, fuzz_tensor *t, attn_dtype dtype, const int64_t extent[4], attn_strides *of) {
  if (!has_blocks(dtype)) {
    read_tensor(bytes, t, bytes_of(dtype), extent, MAY_BROADCAST);
    *of = row_stride(t);
    return;
  }
  const int64_t rows[] = {extent[0], extent[1], extent[2], 1}, blocks = (extent[3] + 31) / 32;
  read_tensor(bytes, t, dtype == ATTN_Q8_0 ? 34 : 18, rows, MAY_BROADCAST);
  const int64_t of_row = blocks + fuzz_byte(bytes) % 3;
  for (int axis = 0; axis < 3; axis++) t->stride[axis] *= of_row;
  t->extent[3] = blocks;
  t->stride[3] = 1;
  *of = (attn_strides){32 * t->stride[0], 32 * t->stride[1], 32 * t->stride[2], 1};
}

/* Pages of a few sizes, fewer or more than the sequences need. */
static void read_pages(fuzz_bytes *bytes, attn_problem *p) {
  if (!(p->uses & ATTN_USE_PAGES)) return;
  const uint8_t choice = fuzz_byte(bytes);
  p->page_tokens = 16 * (1 + choice % 5);
  p->page_table_stride = (p->seq_k + p->page_tokens - 1) / p->page_tokens + (choice >> 3 & 1);
  p->pages = 1 + (choice >> 4) % (1 + p->batch * p->page_table_stride);
  if (choice >= 0xf0) p->page_table_stride = 0;
}

static void read_row_tensors(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  const bool packed = p->uses & ATTN_USE_VARLEN;
  const int64_t batch = packed ? 1 : p->batch, queries = packed ? p->total_q : p->seq_q;
  const bool paged = p->uses & ATTN_USE_PAGES;
  const int64_t places = paged ? p->pages : batch, keys = paged ? p->page_tokens : packed ? p->total_k : p->seq_k;
  const int64_t q[] = {batch, p->heads_q, queries, p->dim_qk}, k[] = {places, p->heads_kv, keys, p->dim_qk};
  const int64_t v[] = {places, p->heads_kv, keys, p->dim_v}, o[] = {batch, p->heads_q, queries, p->dim_v};
  const int64_t lse[] = {batch, p->heads_q, queries, 1};
  read_tensor(bytes, &f->tensor[FUZZ_Q], bytes_of(p->dtype_q), q, MAY_BROADCAST);
  read_key_tensor(bytes, &f->tensor[FUZZ_K], p->dtype_kv, k, &p->k_stride);
  read_key_tensor(bytes, &f->tensor[FUZZ_V], p->dtype_kv, v, &p->v_stride);
  read_tensor(bytes, &f->tensor[FUZZ_O], bytes_of(p->dtype_o), o, MAY_NOT_BROADCAST);
  read_tensor(bytes, &f->tensor[FUZZ_LSE], 4, lse, MAY_NOT_BROADCAST);
  for (int i = 0; p->uses & ATTN_USE_KV_SCALES && i < 2; i++) {
    const bool channels = fuzz_byte(bytes) >= 0xc0 && !(i == 1 && p->uses & ATTN_USE_STATE);
    const int64_t scales[] = {places, p->heads_kv, channels ? 1 : keys, !channels ? 1 : i ? p->dim_v : p->dim_qk};
    fuzz_tensor *t = &f->tensor[i ? FUZZ_V_SCALE : FUZZ_K_SCALE];
    read_tensor(bytes, t, 4, scales, MAY_BROADCAST);
    t->extent[2] = keys;
    if (channels) t->stride[2] = 0;
    if (channels && paged) t->stride[0] = 0;
    if (!channels) t->stride[3] = 0;
    *(i ? &p->v_scale_stride : &p->k_scale_stride) = row_stride(t);
  }
  p->q_stride = row_stride(&f->tensor[FUZZ_Q]);
  p->o_stride = row_stride(&f->tensor[FUZZ_O]);
  p->lse_stride = row_stride(&f->tensor[FUZZ_LSE]);
}

static void read_pair_tensors(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  const int64_t pairs[] = {p->batch, p->heads_q, p->seq_q, p->seq_k};
  read_tensor(bytes, &f->tensor[FUZZ_BIAS], 4, pairs, MAY_BROADCAST);
  const uint8_t newest = p->uses & ATTN_USE_MASK ? fuzz_byte(bytes) : 0;
  if (newest >= 0xc0) p->mask_keys = 1 + newest % 64 * (1 + p->seq_k / 48);
  const int64_t masked[] = {p->batch, p->heads_q, p->seq_q, p->mask_keys > 0 ? p->mask_keys : p->seq_k};
  read_tensor(bytes, &f->tensor[FUZZ_MASK], 1, masked, MAY_BROADCAST);
  read_tensor(bytes, &f->tensor[FUZZ_SCORES], 4, pairs, MAY_BROADCAST);
  p->bias_stride = pair_stride(&f->tensor[FUZZ_BIAS]);
  p->mask_stride = pair_stride(&f->tensor[FUZZ_MASK]);
  p->scores_stride = pair_stride(&f->tensor[FUZZ_SCORES]);
}

/* Lists of key blocks, of the smallest size or a larger one. */
static void read_list_tensors(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  if (!(p->uses & (ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS))) return;
  const uint8_t choice = fuzz_byte(bytes);
  p->block_queries = 16 * (1 + choice % 3);
  p->block_keys = 64 * (1 + choice / 4 % 2);
  const int64_t lists = (p->seq_q + p->block_queries - 1) / p->block_queries;
  const int64_t counts[] = {p->batch, p->heads_kv, lists, 1};
  const int64_t entries[] = {p->batch, p->heads_kv, lists, (p->seq_k + p->block_keys - 1) / p->block_keys};
  read_tensor(bytes, &f->tensor[FUZZ_NUM_BLOCKS], 4, counts, MAY_BROADCAST);
  read_tensor(bytes, &f->tensor[FUZZ_INDICES], 4, entries, MAY_BROADCAST);
  f->tensor[FUZZ_FULL_NUM_BLOCKS] = f->tensor[FUZZ_NUM_BLOCKS];
  f->tensor[FUZZ_FULL_INDICES] = f->tensor[FUZZ_INDICES];
  p->kv_num_blocks_stride = row_stride(&f->tensor[FUZZ_NUM_BLOCKS]);
  p->kv_indices_stride = row_stride(&f->tensor[FUZZ_INDICES]);
}

/* A prefix that sequences share, where all have the same keys: by a stride of 0, or by one row of the page table. */
static void read_prefix(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  const uint8_t choice = fuzz_byte(bytes);
  const bool paged = p->uses & ATTN_USE_PAGES, packed = p->uses & ATTN_USE_VARLEN;
  if (!(choice & 0x80) || (packed && !paged) || p->uses & ATTN_USE_STATE) return;
  if (paged)
    p->page_table_stride = 0;
  else
    f->tensor[FUZZ_K].stride[0] = f->tensor[FUZZ_V].stride[0] = p->k_stride.b = p->v_stride.b = 0,
    f->tensor[FUZZ_K_SCALE].stride[0] = f->tensor[FUZZ_V_SCALE].stride[0] = p->k_scale_stride.b = p->v_scale_stride.b = 0;
  const int64_t most = p->seq_k / (paged ? p->page_tokens : 1);
  p->shared_prefix = (choice & 0x7f) % (most + 1) * (paged ? p->page_tokens : 1);
}

/* Rows of states lie in any order, with gaps; a state that is too large for its memory is left out. */
static void read_state_tensor(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  if (!(p->uses & ATTN_USE_STATE)) return;
  const bool packed = p->uses & ATTN_USE_VARLEN;
  const int64_t rows[] = {packed ? 1 : p->batch, p->heads_q, packed ? p->total_q : p->seq_q, 1};
  fuzz_tensor *t = &f->tensor[FUZZ_STATE];
  read_tensor(bytes, t, sizeof(float), rows, MAY_NOT_BROADCAST);
  const int64_t floats = attn_state_floats(p->dim_v), of_row = floats + fuzz_byte(bytes) % 3;
  int64_t reach = floats;
  for (int axis = 0; axis < 3; axis++) {
    t->stride[axis] *= of_row;
    reach += (t->extent[axis] > 0 ? t->extent[axis] - 1 : 0) * llabs(t->stride[axis]);
  }
  t->extent[3] = floats;
  t->stride[3] = 1;
  if ((size_t)reach * sizeof(float) > SLOT) p->uses &= ~(uint32_t)ATTN_USE_STATE;
  p->state_stride = row_stride(t);
  f->tensor[FUZZ_STATE_BEFORE] = *t;
}

static void set_table(fuzz_tensor *t, int64_t rows, int64_t columns, int64_t stride) {
  *t = (fuzz_tensor){.extent = {1, 1, rows, columns}, .stride = {0, 0, stride, 1}, .element_bytes = 4};
}

static void set_tables(fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  set_table(&f->tensor[FUZZ_SCORE_WEIGHT], p->heads_q, p->dim_qk, p->score_weight_stride_h);
  set_table(&f->tensor[FUZZ_ROW_LEN], p->batch, p->seq_q, p->seq_q);
  set_table(&f->tensor[FUZZ_CU_Q], 1, p->batch + 1, 0);
  set_table(&f->tensor[FUZZ_CU_K], 1, p->batch + 1, 0);
  const fuzz_name per_batch[] = {FUZZ_KV_LEN, FUZZ_Q_LEN, FUZZ_OFFSETS};
  for (int i = 0; i < 3; i++) set_table(&f->tensor[per_batch[i]], 1, p->batch, 0);
  const int64_t tokens = p->page_tokens > 0 ? p->page_tokens : 1; /* 0: no pages */
  set_table(&f->tensor[FUZZ_PAGE_TABLE], p->batch, (p->seq_k + tokens - 1) / tokens, p->page_table_stride);
  set_table(&f->tensor[FUZZ_SLOPES], 1, p->heads_q, 0);
  set_table(&f->tensor[FUZZ_SINKS], 1, p->heads_q, 0);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

/* Memory for all tensors, each between two inaccessible pages. Allocated once. */
static unsigned char *arena(void) {
  static unsigned char *memory;
  if (memory) return memory;
  const size_t room = (size_t)SLOT + GUARD;
  memory = mmap(NULL, FUZZ_TENSORS * room + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fuzz_fail("no memory for the tensors");
  memory += GUARD;
  return memory;
}

static unsigned char *slot_of(int tensor) { return arena() + (size_t)tensor * ((size_t)SLOT + GUARD); }

static void protect(int tensor, int access) {
  if (mprotect(slot_of(tensor), SLOT, access)) fuzz_fail("memory cannot be protected");
}

/* Sets the span of a tensor and places it so that it touches the page behind it or before it. */
static void place(fuzz_tensor *t, int tensor, bool behind) {
  int64_t low = 0, high = 0;
  bool empty = false;
  for (int i = 0; i < 4; i++) {
    const int64_t reach = (t->extent[i] - 1) * t->stride[i];
    empty |= t->extent[i] == 0;
    *(reach < 0 ? &low : &high) += reach;
  }
  t->first = empty ? 0 : -low;
  t->bytes = empty ? 0 : (size_t)(high - low + 1) * t->element_bytes;
  if (t->bytes > SLOT) fuzz_fail("a tensor of %zu bytes", t->bytes);
  unsigned char *slot = slot_of(tensor);
  t->data = behind ? slot + SLOT - t->bytes : slot;
  protect(tensor, PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(slot, SLOT);
  memset(t->data, 0xff, t->bytes); /* gaps hold NaN */
  ASAN_POISON_MEMORY_REGION(slot, (size_t)(t->data - slot));
  ASAN_POISON_MEMORY_REGION(t->data + t->bytes, (size_t)(slot + SLOT - t->data) - t->bytes);
}

static bool is_used(const attn_problem *p, int tensor) {
  static const uint32_t bits[FUZZ_TENSORS] = {
      [FUZZ_BIAS] = ATTN_USE_BIAS,
      [FUZZ_MASK] = ATTN_USE_MASK,
      [FUZZ_SCORE_WEIGHT] = ATTN_USE_SCORE_WEIGHT,
      [FUZZ_KV_LEN] = ATTN_USE_KV_LEN,
      [FUZZ_Q_LEN] = ATTN_USE_Q_LEN,
      [FUZZ_ROW_LEN] = ATTN_USE_ROW_LEN,
      [FUZZ_CU_Q] = ATTN_USE_VARLEN,
      [FUZZ_CU_K] = ATTN_USE_VARLEN,
      [FUZZ_LSE] = ATTN_USE_LSE,
      [FUZZ_SLOPES] = ATTN_USE_ALIBI,
      [FUZZ_SINKS] = ATTN_USE_SINKS,
      [FUZZ_PAGE_TABLE] = ATTN_USE_PAGES,
      [FUZZ_STATE] = ATTN_USE_STATE,
      [FUZZ_STATE_BEFORE] = ATTN_USE_STATE,
      [FUZZ_V_SCALE] = ATTN_USE_KV_SCALES,
      [FUZZ_NUM_BLOCKS] = ATTN_USE_KEY_BLOCKS,
      [FUZZ_INDICES] = ATTN_USE_KEY_BLOCKS,
      [FUZZ_FULL_NUM_BLOCKS] = ATTN_USE_FULL_KEY_BLOCKS,
      [FUZZ_FULL_INDICES] = ATTN_USE_FULL_KEY_BLOCKS,
  };
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  if (tensor == FUZZ_K_SCALE) return p->uses & ATTN_USE_KV_SCALES && !precomputed;
  if (tensor == FUZZ_SCORES) return precomputed;
  if (tensor == FUZZ_Q || tensor == FUZZ_K) return !precomputed;
  if (tensor == FUZZ_CU_K && p->uses & ATTN_USE_PAGES) return false;
  if (tensor == FUZZ_OFFSETS) return p->align == ATTN_ALIGN_OFFSET;
  return !bits[tensor] || (p->uses & bits[tensor]);
}

/* ---- Values ------------------------------------------------------------------------------------------------------- */

static uint64_t random_state;
static uint64_t next_random(void) { /* xorshift64* (Vigna 2016) */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545f4914f6cdd1du >> 32;
}
static int64_t random_below(int64_t count) { return (int64_t)(next_random() % (uint64_t)count); }
/* Nearly a normal distribution, within +-6. */
static double random_normal(void) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += (double)next_random() * 0x1p-32;
  return sum;
}

/* Truncates to float16. */
static uint16_t half_of(double value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  int exponent;
  if (isnan(value)) return 0x7e00;
  if (isinf(value)) return sign | 0x7c00;
  const double fraction = frexp(fabs(value), &exponent);
  if (fabs(value) >= 65504) return sign | 0x7bff;
  if (fabs(value) < 0x1p-14) return sign | (uint16_t)(fabs(value) * 0x1p24);
  return (uint16_t)(sign | (exponent + 14) << 10 | (int)((2 * fraction - 1) * 1024));
}

/* A value of 8 bits near the value: the upper half of a float16, or of one of 2^-8 of it with a bit of exponent less. */
static uint8_t byte_of(double value, attn_dtype dtype) {
  if (dtype == ATTN_F8_E5M2) return (uint8_t)(half_of(value) >> 8);
  if (dtype == ATTN_I8) return isnan(value) ? 0 : (uint8_t)(int8_t)fmax(fmin(value, 127), -128);
  if (isnan(value)) return 0x7f;
  const uint16_t half = half_of(fmax(fmin(value, 448), -448) * 0x1p-8);
  return (uint8_t)((half >> 8 & 0x80) | (half >> 7 & 0x7f));
}

/* A block with values around `value`. */
static void store_block(fuzz_tensor *t, attn_dtype dtype, int64_t block, double value) {
  unsigned char *at = t->data + (size_t)block * t->element_bytes;
  const uint16_t scale = half_of(value / (dtype == ATTN_Q8_0 ? 64 : 4));
  memcpy(at, &scale, sizeof scale);
  for (size_t i = sizeof scale; i < t->element_bytes; i++) at[i] = (unsigned char)next_random();
}

static void store(fuzz_tensor *t, attn_dtype dtype, int64_t element, double value) {
  if (has_blocks(dtype)) {
    store_block(t, dtype, element, value);
    return;
  }
  const float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, sizeof bits);
  const uint16_t half = dtype == ATTN_F16 ? half_of(single) : (uint16_t)(bits >> 16);
  unsigned char *at = t->data + (size_t)element * t->element_bytes;
  const uint8_t byte = t->element_bytes == 1 ? byte_of(value, dtype) : 0;
  memcpy(at,
         t->element_bytes == 4   ? (const void *)&bits
         : t->element_bytes == 2 ? (const void *)&half
                                 : &byte,
         t->element_bytes);
}

static attn_dtype dtype_of(const attn_problem *p, fuzz_name tensor) {
  return tensor == FUZZ_Q ? p->dtype_q : tensor == FUZZ_K || tensor == FUZZ_V ? p->dtype_kv : ATTN_F32;
}

/* Calls fill() for every element of the tensor. */
static void for_each(fuzz_tensor *t, void (*fill)(fuzz_tensor *t, int64_t element, void *context), void *context) {
  int64_t i[4];
  for (i[0] = 0; i[0] < t->extent[0]; i[0]++)
    for (i[1] = 0; i[1] < t->extent[1]; i[1]++)
      for (i[2] = 0; i[2] < t->extent[2]; i[2]++)
        for (i[3] = 0; i[3] < t->extent[3]; i[3]++) {
          int64_t element = t->first;
          for (int axis = 0; axis < 4; axis++) element += i[axis] * t->stride[axis];
          fill(t, element, context);
        }
}

typedef struct filling {
  attn_dtype dtype;
  double magnitude, offset;
  int64_t one_in; /* one element in one_in + 1 is -inf (bias) or masked (mask); 0 = none */
} filling;

static void fill_normal(fuzz_tensor *t, int64_t element, void *context) {
  const filling *f = context;
  const bool masks = f->one_in && random_below(f->one_in + 1) == 0;
  store(t, f->dtype, element, masks ? -INFINITY : f->offset + f->magnitude * random_normal());
}

static void fill_mask(fuzz_tensor *t, int64_t element, void *context) {
  const filling *f = context;
  t->data[element] = f->one_in && random_below(f->one_in + 1) == 0 ? 0 : (unsigned char)(1 + random_below(255));
}

static void read_values(fuzz_bytes *bytes, fuzz_problem *f) {
  static const double magnitudes[] = {1, 0.1, 1e-3, 10, 100, 1e4, 1e-30, 0};
  random_state = fuzz_word(bytes) | 1;
  const uint8_t magnitude = fuzz_byte(bytes), shift = fuzz_byte(bytes), masked = fuzz_byte(bytes);
  for (int i = 0; i < FUZZ_INPUTS; i++) {
    fuzz_tensor *t = &f->tensor[i];
    filling how = {.dtype = dtype_of(&f->problem, (fuzz_name)i), .magnitude = 1, .one_in = i == FUZZ_BIAS ? masked & 15 : 0};
    if (i <= FUZZ_V) how.magnitude = magnitudes[(magnitude >> 2 * i & 3) + (magnitude == 0xff ? 4 : 0)];
    if (i == FUZZ_V && shift & 1) how.offset = 3;
    if (i == FUZZ_MASK) how.one_in = masked >> 4;
    if (i == FUZZ_K_SCALE || i == FUZZ_V_SCALE) how.magnitude = 1;
    const bool is_value = i <= FUZZ_SCORE_WEIGHT || (i >= FUZZ_SLOPES && i <= FUZZ_V_SCALE);
    if (t->data && is_value) for_each(t, i == FUZZ_MASK ? fill_mask : fill_normal, &how);
  }
}

/* Up to three elements become NaN, infinite, zero, huge or denormal. */
static void read_specials(fuzz_bytes *bytes, fuzz_problem *f) {
  static const double specials[] = {NAN, INFINITY, -INFINITY, 0, -0.0, 3.4e38, -3.4e38, 1e-40, -65504, 1e-7};
  for (int count = fuzz_byte(bytes) & 3; count > 0; count--) {
    static const fuzz_name names[] = {FUZZ_Q,      FUZZ_K,    FUZZ_V, FUZZ_BIAS, FUZZ_SCORES, FUZZ_SCORE_WEIGHT,
                                      FUZZ_SLOPES, FUZZ_SINKS};
    const fuzz_name name = names[fuzz_byte(bytes) % 8];
    fuzz_tensor *t = &f->tensor[name];
    const double value = specials[fuzz_byte(bytes) % 10];
    const uint64_t where = fuzz_word(bytes);
    if (t->data && t->bytes) store(t, dtype_of(&f->problem, name), (int64_t)(where % (t->bytes / t->element_bytes)), value);
  }
}

/* ---- States ------------------------------------------------------------------------------------------------------- */

/* One row of a state as calls leave it: never started, of 1 .. 16 sums, or with NaN and infinities where a value had them.
 * Rows that have seen no key hold NaN. */
static void fill_state(float *row, int64_t dim_v, double spread, uint8_t special) {
  float *sums = row + dim_v, *reference = sums + ATTN_STATE_SUMS;
  const int64_t parts = (int64_t)1 << random_below(5);
  if (random_below(4) == 0) {
    reference[0] = -INFINITY;
    return;
  }
  double sum = 0;
  for (int64_t i = 0; i < ATTN_STATE_SUMS; i++) {
    sums[i] = i < parts ? (float)(0.01 + (double)random_below(1000) / 100) : 0;
    sum += (double)sums[i];
  }
  for (int64_t d = 0; d < dim_v; d++) row[d] = (float)(sum * random_normal());
  reference[0] = (float)(spread * random_normal());
  reference[1] = random_below(2) ? 0x1p-26f * reference[0] : 0;
  if (special == 1) row[random_below(dim_v)] = NAN;
  if (special == 2) row[random_below(dim_v)] = INFINITY;
  if (special >= 3) sums[random_below(parts)] = NAN;
  if (special == 4) reference[0] = NAN; /* only beside a sum of NaN */
}

static void read_states(fuzz_bytes *bytes, fuzz_problem *f) {
  static const double spreads[] = {1, 10, 100, 1e4};
  fuzz_tensor *t = &f->tensor[FUZZ_STATE_BEFORE];
  if (!t->data) return;
  const uint8_t spread = fuzz_byte(bytes), special = fuzz_byte(bytes);
  const int64_t rows = t->extent[0] * t->extent[1] * t->extent[2];
  for (int64_t n = 0; n < rows; n++) {
    const int64_t i = n % t->extent[2], h = n / t->extent[2] % t->extent[1], b = n / t->extent[2] / t->extent[1];
    const int64_t at = t->first + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
    const uint8_t in_row = special >= 0xe0 && random_below(4) == 0 ? special % 5 : 0;
    fill_state((float *)(void *)t->data + at, f->problem.dim_v, spreads[spread % 4], in_row);
  }
  protect(FUZZ_STATE_BEFORE, PROT_READ);
  f->state_alone = spread >= 0xe0;
}

/* ---- Lengths ------------------------------------------------------------------------------------------------------ */

static int32_t *ints(const fuzz_tensor *t) { return (int32_t *)(void *)t->data; }

static void fill_lengths(const fuzz_tensor *t, int64_t most) {
  for (size_t i = 0; t->data && i < t->bytes / 4; i++) ints(t)[i] = (int32_t)random_below(most + 1);
}

static void fill_starts(const fuzz_tensor *t, int64_t batch, int64_t longest, int64_t total) {
  int64_t at = 0;
  for (int64_t b = 0; t->data && b <= batch; b++) {
    ints(t)[b] = (int32_t)at;
    const int64_t most = total - at < longest ? total - at : longest;
    at += random_below(most + 1);
  }
}

static void fill_offsets(const fuzz_tensor *t, int64_t keys) {
  static const int32_t extreme[] = {INT32_MIN, INT32_MAX, -1, 0};
  for (size_t i = 0; t->data && i < t->bytes / 4; i++)
    ints(t)[i] = random_below(8) ? (int32_t)(random_below(2 * keys + 2) - keys / 2) : extreme[random_below(4)];
}

/* Any pages, also the same ones twice; within a window a ring. Entries behind all lengths name none. */
static void fill_page_table(fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  const fuzz_tensor *t = &f->tensor[FUZZ_PAGE_TABLE];
  const int32_t *kv_len = ints(&f->tensor[FUZZ_KV_LEN]);
  for (int64_t i = 0; t->data && i < (int64_t)(t->bytes / 4); i++) ints(t)[i] = -1;
  for (int64_t b = 0; t->data && b < p->batch; b++)
    for (int64_t at = 0; at * p->page_tokens < kv_len[b]; at++)
      ints(t)[b * p->page_table_stride + at] = (int32_t)(p->window_left < 0 ? random_below(p->pages) : at % p->pages);
}

/* Lists that share elements by a stride of 0 have any number of entries, all valid. */
static void fill_lists(fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  const int64_t blocks = p->block_keys > 0 ? (p->seq_k + p->block_keys - 1) / p->block_keys : 0;
  for (int name = FUZZ_NUM_BLOCKS; name <= FUZZ_FULL_INDICES; name++) {
    const fuzz_tensor *t = &f->tensor[name];
    const bool counts = name == FUZZ_NUM_BLOCKS || name == FUZZ_FULL_NUM_BLOCKS;
    for (size_t i = 0; t->data && i < t->bytes / 4; i++) ints(t)[i] = (int32_t)random_below(blocks + counts);
  }
}

static void fill_all_lengths(fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  fill_lengths(&f->tensor[FUZZ_KV_LEN], p->seq_k);
  fill_lengths(&f->tensor[FUZZ_Q_LEN], p->seq_q);
  fill_lengths(&f->tensor[FUZZ_ROW_LEN], p->seq_k);
  fill_starts(&f->tensor[FUZZ_CU_Q], p->batch, p->seq_q, p->total_q);
  fill_starts(&f->tensor[FUZZ_CU_K], p->batch, p->seq_k, p->total_k);
  fill_offsets(&f->tensor[FUZZ_OFFSETS], p->seq_k);
  fill_page_table(f);
  fill_lists(f);
}

/* ---- All of it ---------------------------------------------------------------------------------------------------- */

static const void *first_of(const fuzz_tensor *t) { return t->data ? t->data + t->first * (int64_t)t->element_bytes : NULL; }

static void set_args(fuzz_problem *f) {
  const fuzz_tensor *t = f->tensor;
  f->args = ATTN_STRUCT(
      attn_args, .q = first_of(&t[FUZZ_Q]), .k = first_of(&t[FUZZ_K]), .v = first_of(&t[FUZZ_V]),
      .o = (void *)(uintptr_t)first_of(&t[FUZZ_O]), .lse = (void *)(uintptr_t)first_of(&t[FUZZ_LSE]),
      .bias = first_of(&t[FUZZ_BIAS]), .mask = first_of(&t[FUZZ_MASK]), .scores = first_of(&t[FUZZ_SCORES]),
      .score_weight = first_of(&t[FUZZ_SCORE_WEIGHT]), .kv_len = first_of(&t[FUZZ_KV_LEN]),
      .q_len = first_of(&t[FUZZ_Q_LEN]), .row_len = first_of(&t[FUZZ_ROW_LEN]), .cu_seqlens_q = first_of(&t[FUZZ_CU_Q]),
      .cu_seqlens_k = first_of(&t[FUZZ_CU_K]), .offsets = first_of(&t[FUZZ_OFFSETS]),
      .alibi_slopes = first_of(&t[FUZZ_SLOPES]), .sinks = first_of(&t[FUZZ_SINKS]),
      .page_table = first_of(&t[FUZZ_PAGE_TABLE]), .state = (void *)(uintptr_t)first_of(&t[FUZZ_STATE]),
      .k_scale = first_of(&t[FUZZ_K_SCALE]), .v_scale = first_of(&t[FUZZ_V_SCALE]),
      .kv_num_blocks = first_of(&t[FUZZ_NUM_BLOCKS]), .kv_indices = first_of(&t[FUZZ_INDICES]),
      .full_kv_num_blocks = first_of(&t[FUZZ_FULL_NUM_BLOCKS]), .full_kv_indices = first_of(&t[FUZZ_FULL_INDICES]), );
  if (f->state_alone) f->args.o = NULL, f->args.lse = NULL;
}

static void read_structure(fuzz_bytes *bytes, fuzz_problem *f) {
  attn_problem *p = &f->problem;
  read_shape(bytes, p);
  read_types(bytes, p);
  read_meaning(bytes, p);
  read_uses(bytes, p);
  const uint8_t total = fuzz_byte(bytes), weight = fuzz_byte(bytes);
  if (p->uses & ATTN_USE_VARLEN) {
    p->total_q = p->batch * p->seq_q * (total & 15) / 15 + (total >> 6);
    p->total_k = p->batch * p->seq_k * (total >> 2 & 15) / 15 + (total >> 6);
  }
  read_pages(bytes, p);
  if (weight & 1) p->score_weight_stride_h = p->dim_qk + weight / 64;
}

void fuzz_problem_read(fuzz_bytes *bytes, fuzz_problem *f) {
  *f = (fuzz_problem){.args.q = NULL};
  read_structure(bytes, f);
  read_row_tensors(bytes, f);
  read_prefix(bytes, f);
  read_pair_tensors(bytes, f);
  read_list_tensors(bytes, f);
  read_state_tensor(bytes, f);
  set_tables(f);
  const bool behind = fuzz_byte(bytes) < 0x80;
  for (int i = 0; i < FUZZ_TENSORS; i++)
    if (is_used(&f->problem, i)) place(&f->tensor[i], i, behind);
  read_values(bytes, f);
  fill_all_lengths(f);
  read_specials(bytes, f);
  read_states(bytes, f);
  for (int i = 0; i < FUZZ_INPUTS; i++)
    if (f->tensor[i].data) protect(i, PROT_READ);
  set_args(f);
}

void fuzz_problem_renew(fuzz_problem *f) {
  for (int i = FUZZ_O; i <= FUZZ_LSE; i++)
    if (f->tensor[i].data) memset(f->tensor[i].data, FUZZ_POISON, f->tensor[i].bytes);
  const fuzz_tensor *before = &f->tensor[FUZZ_STATE_BEFORE];
  if (before->data) memcpy(f->tensor[FUZZ_STATE].data, before->data, before->bytes);
}
