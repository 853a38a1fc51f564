/* SPDX-License-Identifier: MIT */
/* Reads .safetensors files: named tensors (https://huggingface.co/docs/safetensors). Eight bytes of header length, a JSON
 * header, then the data, which is mapped, not copied. Files may be malformed: a header that does not fit its file is an
 * error, never a read beyond the file. Reads F32, F16 and BF16 tensors, which the examples need, and skips others. Only for
 * little-endian machines. A model may be cut into several files, whose tensors stand in one list. */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <attn/attn.h>
#include <stdbool.h>

enum { SAFETENSORS_MAX_DIMS = 4, SAFETENSORS_MAX_NAME = 96 };

typedef struct safetensor {
  char name[SAFETENSORS_MAX_NAME];
  int dims;
  int64_t shape[SAFETENSORS_MAX_DIMS];
  attn_dtype dtype;
  const void *data;
} safetensor;

/* A whole file, mapped; `data` of its tensors points into it. */
typedef struct safetensors_file {
  void *contents;
  int64_t bytes;
} safetensors_file;

typedef struct safetensors {
  int count, files;
  safetensor *tensors;
  safetensors_file *file;
} safetensors;

/* Returns 0, or -1 after a message on stderr. */
int safetensors_read(const char *path, safetensors *out);

/* Reads model.safetensors of a folder, or else model-00001-of-00003.safetensors and the like: all of them must be there.
 * Returns likewise. */
int safetensors_read_folder(const char *folder, safetensors *out);

/* Bytes of all files. */
int64_t safetensors_bytes(const safetensors *tensors);
void safetensors_free(safetensors *tensors);

/* The tensor of that name, or NULL. */
const safetensor *safetensors_find(const safetensors *tensors, const char *name);

/* Whether it has this shape. All dimensions but the last count as rows; rows = 0 means a vector of `columns`. */
bool safetensor_fits(const safetensor *tensor, int64_t rows, int64_t columns);

/* Lets the system take back the memory of what was read so far; it is read again when it is needed. */
void safetensors_release(const safetensors *tensors);

/* The tensor of that name and this shape, or NULL after a message on stderr. safetensors_get: its data, if it is float32. */
const safetensor *safetensors_require(const safetensors *tensors, const char *name, int64_t rows, int64_t columns);
const float *safetensors_get(const safetensors *tensors, const char *name, int64_t rows, int64_t columns);

#endif
