/* SPDX-License-Identifier: MIT */
/* Appends and caches from any bytes: a call does its work or is refused with a sentence and changes nothing, and pages are
 * neither lost nor given twice. */
#include <string.h>

#include "attn/nn.h"
#include "fuzz.h"

enum { ELEMENTS = 1 << 14, MOST = 512 };

/* A small size, or one that no field may have. */
static int64_t read_size(fuzz_bytes *bytes, int64_t most) {
  static const int64_t wild[] = {-1, INT64_MIN, INT64_MAX, ((int64_t)1 << 31) + 1};
  const uint8_t byte = fuzz_byte(bytes);
  return byte < 0xfc ? byte % (most + 1) : wild[byte - 0xfc];
}

static int32_t read_length(fuzz_bytes *bytes) {
  const uint8_t byte = fuzz_byte(bytes);
  return byte < 0xf0 ? byte % 40 : (int32_t)fuzz_word(bytes);
}

static const void *maybe(fuzz_bytes *bytes, const void *array) { return fuzz_byte(bytes) & 1 ? array : NULL; }

/* Dense, small numbers, or one that overflows. */
static attn_strides read_strides(fuzz_bytes *bytes) {
  const uint8_t kind = fuzz_byte(bytes);
  if (kind < 0xc0) return (attn_strides){0, 0, 0, 0};
  if (kind < 0xd0) /* those of rows of blocks */
    return (attn_strides){32 * (fuzz_byte(bytes) & 7), 32 * (fuzz_byte(bytes) & 7), 32 * (fuzz_byte(bytes) & 7), 1};
  if (kind == 0xff) return (attn_strides){INT64_MAX, 1, 1, 1};
  return (attn_strides){fuzz_byte(bytes) & 7, fuzz_byte(bytes) & 7, fuzz_byte(bytes) & 7, fuzz_byte(bytes) & 7};
}

/* One of the first `count`, or none. */
static attn_dtype read_dtype(fuzz_bytes *bytes, int count) {
  const uint8_t byte = fuzz_byte(bytes);
  return (attn_dtype)(byte < 0xf0 ? byte % count : byte);
}

/* ---- Appends ---- */

static float given[4][ELEMENTS], written[5][ELEMENTS], before[5][ELEMENTS];

static attn_kv_append_args read_append(fuzz_bytes *bytes, const attn_rope *rope) {
  static int32_t past[16], counts[16], cu[17], table[16 * 8], positions[MOST];
  static int64_t slots[MOST];
  for (int i = 0; i < 16; i++) past[i] = read_length(bytes), counts[i] = read_length(bytes) % 9;
  for (int i = 0; i < 16; i++) cu[i + 1] = cu[i] + (counts[i] & 1);
  for (int i = 0; i < 16 * 8; i++) table[i] = read_length(bytes) % 9;
  for (int i = 0; i < MOST; i++) slots[i] = (int64_t)(fuzz_byte(bytes) % 130) - 1, positions[i] = (int32_t)slots[i];
  attn_kv_append_args a = ATTN_STRUCT(attn_kv_append_args, .batch = read_size(bytes, 4), .tokens = read_size(bytes, 8));
  a.heads_q = read_size(bytes, 3), a.heads_kv = read_size(bytes, 3);
  a.dim_qk = read_size(bytes, 16), a.dim_v = read_size(bytes, 16);
  a.dtype = read_dtype(bytes, 3), a.cache_dtype = read_dtype(bytes, ATTN_Q4_0 + 1), a.q_out_dtype = read_dtype(bytes, 3);
  a.capacity = fuzz_byte(bytes) & 1 ? read_size(bytes, 40) : 0;
  if (a.capacity == 0) a.page_tokens = read_size(bytes, 32), a.pages = read_size(bytes, 8);
  a.past = maybe(bytes, past), a.counts = maybe(bytes, counts);
  if (!a.counts || fuzz_byte(bytes) > 0xf0) a.cu_seqlens = maybe(bytes, cu);
  a.slots = maybe(bytes, slots), a.rope = maybe(bytes, rope);
  if (a.rope || fuzz_byte(bytes) > 0xf0) a.positions = maybe(bytes, positions);
  a.page_table = (fuzz_byte(bytes) < 0xf0) == (a.page_tokens && !a.slots) ? table : NULL;
  a.page_table_stride = fuzz_byte(bytes) & 7;
  if (fuzz_byte(bytes) & 1) a.q = given[0], a.q_out = fuzz_byte(bytes) & 1 ? given[0] : written[0];
  if (fuzz_byte(bytes) < 0xf0) a.k = given[1], a.k_cache = written[1];
  if (fuzz_byte(bytes) < 0xf0) a.v = given[2], a.v_cache = written[2];
  a.q_stride = read_strides(bytes), a.k_stride = read_strides(bytes), a.v_stride = read_strides(bytes);
  a.q_out_stride = read_strides(bytes), a.k_cache_stride = read_strides(bytes), a.v_cache_stride = read_strides(bytes);
  for (int i = 0; i < 2; i++) {
    const uint8_t kind = fuzz_byte(bytes);
    if (kind < 0x80) continue;
    if (kind & 1) *(i ? &a.v_scale : &a.k_scale) = given[3];
    if (kind & 2) *(i ? &a.v_scale_cache : &a.k_scale_cache) = written[3 + i];
    *(i ? &a.v_scale_stride : &a.k_scale_stride) = read_strides(bytes);
  }
  return a;
}

static void try_append(fuzz_bytes *bytes) {
  attn_rope *rope = NULL;
  const attn_rope_config config =
      ATTN_STRUCT(attn_rope_config, .pairing = (attn_rope_pairing)(fuzz_byte(bytes) & 3), .dim = read_size(bytes, 16),
                  .base = fuzz_byte(bytes), .scaling = (attn_rope_scaling)(fuzz_byte(bytes) & 7), .factor = fuzz_byte(bytes),
                  .original_length = fuzz_byte(bytes), .beta_slow = fuzz_byte(bytes) & 3, .beta_fast = fuzz_byte(bytes) & 3);
  if ((attn_rope_create(&config, &rope) == ATTN_OK) != (rope != NULL)) fuzz_fail("status and rotation disagree");
  const attn_kv_append_args args = read_append(bytes, rope);
  for (int i = 0; i < ELEMENTS; i++) given[3][i] = i % 97 ? 0.25f : 0;
  memset(written, 0x5a, sizeof written);
  memcpy(before, written, sizeof written);
  const attn_status status = attn_kv_append(&args, &ATTN_STRUCT(attn_options, .threads = 1));
  if (status != ATTN_OK && status != ATTN_INVALID_ARGUMENT) fuzz_fail("%s", attn_status_name(status));
  if (status != ATTN_OK && !attn_last_error()[0]) fuzz_fail("refused without a word");
  if (status != ATTN_OK && memcmp(written, before, sizeof written)) fuzz_fail("refused, and yet written");
  attn_rope_destroy(rope);
}

/* ---- Caches ---- */

enum { SEQUENCES = 4, PAGES = 7, TOKENS = 16, CAPACITY = 50, COLUMNS = (CAPACITY + TOKENS - 1) / TOKENS };

static void check_pages(const attn_kv_cache *cache) {
  const int32_t *table = attn_kv_cache_pages(cache), *lengths = attn_kv_cache_lengths(cache);
  bool used[PAGES] = {false};
  int64_t distinct = 0;
  for (int i = 0; i < SEQUENCES * COLUMNS; i++) {
    if (table[i] < -1 || table[i] >= PAGES) fuzz_fail("a table names page %d", table[i]);
    if (table[i] >= 0 && !used[table[i]]) used[table[i]] = true, distinct++;
  }
  for (int b = 0; b < SEQUENCES; b++)
    if (lengths[b] < 0 || lengths[b] > CAPACITY) fuzz_fail("sequence %d has %d tokens", b, lengths[b]);
  if (attn_kv_pool_free_pages(attn_kv_cache_pool(cache)) + distinct != PAGES) fuzz_fail("a page is lost");
}

static attn_status operate(attn_kv_cache *cache, fuzz_bytes *bytes) {
  static float o[ELEMENTS];
  int32_t numbers[SEQUENCES];
  const uint8_t what = fuzz_byte(bytes);
  const int32_t a = read_length(bytes), b = read_length(bytes) % 5, c = read_length(bytes) % 5;
  for (int i = 0; i < SEQUENCES; i++) numbers[i] = read_length(bytes) % 30;
  switch (what % 6) {
    case 0: return attn_kv_cache_truncate(cache, a);
    case 1: return attn_kv_cache_truncate_sequence(cache, b, a);
    case 2: return attn_kv_cache_fork(cache, b, c, a);
    case 3:
      for (int i = 0; i < SEQUENCES; i++) numbers[i] = numbers[i] % 6 - 1;
      return attn_kv_cache_reorder(cache, numbers);
    case 4: return attn_kv_cache_step(cache, a, maybe(bytes, numbers), given[0], given[1], given[2], o);
    default: break;
  }
  const attn_status status = attn_kv_cache_begin(cache, numbers);
  if (status != ATTN_OK) return status;
  return attn_kv_cache_attend(cache, &ATTN_STRUCT(attn_kv_cache_args, .tokens = what & 0x80 ? CAPACITY : 0, .q = given[0],
                                                  .k = given[1], .v = given[2], .o = o));
}

static void try_cache(fuzz_bytes *bytes) {
  attn_kv_cache *cache;
  const uint8_t options = fuzz_byte(bytes);
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_I8, ATTN_Q8_0, ATTN_Q4_0};
  const attn_dtype dtype = dtypes[options >> 6];
  const attn_kv_cache_shape shape = ATTN_STRUCT(
      attn_kv_cache_shape, .batch = SEQUENCES, .heads_q = 2, .heads_kv = 1, .dim_qk = 4, .dim_v = 3, .capacity = CAPACITY,
      .page_tokens = TOKENS, .pages = PAGES, .window = options & 1 ? options % 30 : 0, .dtype = dtype, .float_tokens = true,
      .scales = dtype == ATTN_I8, .key_channels = dtype == ATTN_I8 && options & 4);
  const attn_options one = ATTN_STRUCT(attn_options, .threads = 1, .kernel = options & 2 ? "flash_c" : NULL);
  if (attn_kv_cache_create(&shape, &one, &cache) != ATTN_OK) fuzz_fail("%s", attn_last_error());
  while (bytes->at < bytes->end) {
    int32_t lengths[SEQUENCES];
    memcpy(lengths, attn_kv_cache_lengths(cache), sizeof lengths);
    const attn_status status = operate(cache, bytes);
    if (status != ATTN_OK && !attn_last_error()[0]) fuzz_fail("refused without a word");
    if (status != ATTN_OK && memcmp(lengths, attn_kv_cache_lengths(cache), sizeof lengths))
      fuzz_fail("refused, and changed");
    check_pages(cache);
  }
  attn_kv_cache_destroy(cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_bytes bytes = {data, data + size};
  if (fuzz_byte(&bytes) & 1)
    try_append(&bytes);
  else
    try_cache(&bytes);
  return 0;
}
