/* SPDX-License-Identifier: MIT */
/* safetensors_read() on any bytes. All elements of the tensors that it returns can be read. */
#include <string.h>

#include "examples/safetensors.h"
#include "fuzz.h"

/* Reads every element by memcpy(), because the values may be any bits. */
static void read_all(const safetensor *tensor) {
  int64_t halves = tensor->dtype == ATTN_F32 ? 2 : 1;
  uint16_t half;
  volatile uint32_t sum = 0; /* keeps the reads */
  for (int d = 0; d < tensor->dims; d++) halves *= tensor->shape[d];
  for (int64_t i = 0; i < halves; i++) {
    memcpy(&half, (const char *)tensor->data + 2 * i, sizeof half);
    sum = sum + half;
  }
}

static void get(const safetensors *file, const safetensor *tensor) {
  const int64_t columns = tensor->dims ? tensor->shape[tensor->dims - 1] : 1;
  (void)safetensors_get(file, tensor->name, 0, columns);
  (void)safetensors_get(file, tensor->name, tensor->shape[0], columns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  safetensors file;
  if (safetensors_read(fuzz_file(0, data, size), &file)) return 0;
  for (int i = 0; i < file.count; i++) {
    read_all(&file.tensors[i]);
    get(&file, &file.tensors[i]);
  }
  safetensors_free(&file);
  return 0;
}
