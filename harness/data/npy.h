/* SPDX-License-Identifier: MIT */
/* Reading and writing NumPy .npy files (format 1.0-3.0): little and big endian, C and Fortran order, f2, f4, f8, i1,
 * u1, b1, u2, i4, i8. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef BENCH_NPY_H
#define BENCH_NPY_H

#include "attn/attn.h"

typedef enum npy_type { NPY_F16, NPY_F32, NPY_F64, NPY_U8, NPY_U16, NPY_I32, NPY_I64, NPY_I8, NPY_BOOL } npy_type;

/* The type that stores elements of a dtype in a file. bf16 is stored as u2. */
npy_type npy_type_of(attn_dtype dtype);

enum { NPY_MAX_DIMS = 8 };

typedef struct npy_array {
  npy_type type;
  int dims;
  int64_t shape[NPY_MAX_DIMS];
  int64_t count; /* elements */
  void *data;    /* C order, native byte order; owned; free with npy_free */
} npy_array;

/* path: of a file, or "archive.npz:name.npy" of a member that is not compressed, as numpy.savez writes it. 0, or -1 with a
 * sentence in error[error_bytes] naming the file and what would be right. Never trusts a header field. */
int npy_read(const char *path, npy_array *array, char *error, size_t error_bytes);

/* The file is whole or as it was before. False after an error, said on stderr. */
bool npy_write(const char *path, const npy_array *array);

void npy_free(npy_array *array);

#endif
