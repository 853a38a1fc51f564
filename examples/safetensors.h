/* SPDX-License-Identifier: MIT */
/* Reads .safetensors files: named tensors of float32 (https://huggingface.co/docs/safetensors). Eight bytes of header
 * length, a JSON header, then the data. Files may be malformed: a header that does not fit its file is an error, never a
 * read beyond the file. Reads only F32 tensors, which the examples need, and skips others. Only for little-endian
 * machines. */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 4, SAFETENSORS_MAX_NAME = 96 };

typedef struct safetensor {
  char name[SAFETENSORS_MAX_NAME];
  int dims;
  int64_t shape[SAFETENSORS_MAX_DIMS];
  const float *data;
} safetensor;

typedef struct safetensors {
  int count;
  safetensor *tensors;
  void *file; /* the whole file; `data` points into it */
} safetensors;

/* Returns 0, or -1 after a message on stderr. */
int safetensors_read(const char *path, safetensors *out);
void safetensors_free(safetensors *tensors);

/* The data of the tensor of that name and exactly this shape, or NULL after a message on stderr. All dimensions but the
 * last count as rows; rows = 0 means a vector of `columns`. */
const float *safetensors_get(const safetensors *tensors, const char *name, int64_t rows, int64_t columns);

#endif
