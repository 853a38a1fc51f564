/* SPDX-License-Identifier: MIT */
/* Arrays of other libraries, read where they lie.
 *
 * An array may speak one of four protocols; the type of the object decides which, once for all objects of the type:
 *
 *   DLPack's C exchange API (https://dmlc.github.io/dlpack/latest/c_api.html)   PyTorch 2.10 and later; a few ns
 *   __array_struct__ (https://numpy.org/doc/stable/reference/arrays.interface.html)   NumPy with every dtype; 0.1 us
 *   __dlpack__ (https://data-apis.org/array-api/latest)   JAX and others
 *   the buffer protocol (https://docs.python.org/3/c-api/buffer.html)   memoryview, array.array
 */
#ifndef LIBATTN_TENSOR_H
#define LIBATTN_TENSOR_H

#include <stdbool.h>

#include "python_api.h"

typedef enum dtype {
  DTYPE_F32, /* these eight as attn_dtype counts them */
  DTYPE_F16,
  DTYPE_BF16, /* those of every tensor end here */
  DTYPE_E4M3,
  DTYPE_E5M2,
  DTYPE_I8,   /* a mask, too */
  DTYPE_Q8_0, /* no array is of these two: arrays of bytes are taken for them (kv_format) */
  DTYPE_Q4_0, /* those of K and V end here */
  DTYPE_F64,
  DTYPE_I32,
  DTYPE_I64,
  DTYPE_BOOL,
  DTYPE_U8, /* blocks, or a mask */
  DTYPE_OTHER
} dtype;

enum { MOST_DIMS = 5 };

/* How objects of a type are read. */
typedef struct reader reader;

typedef struct tensor {
  char *data;
  int ndim;
  dtype type;
  bool readonly;
  int64_t shape[MOST_DIMS];
  int64_t stride[MOST_DIMS]; /* in elements */
  const reader *from;
  PyObject *object; /* not owned */
  bool is_copy;     /* the object is a lazy view, and data its numbers, computed: to be read only */
} tensor;

/* The state of one interpreter of Python for arrays: the types it has met, names, functions. */
typedef struct arrays arrays;

/* Objects, blocks of memory and buffers that have to stay until the call ends: at most MOST_HELD of each. */
enum { MOST_HELD = 32 };
typedef struct holdings {
  arrays *of;
  bool ignore_gradients; /* else PyTorch's tensors that require gradients are refused, as by its own __dlpack__ */
  bool take_specs;       /* libattn.Spec may stand for an array: nothing will read its data */
  int objects, buffers, blocks;
  PyObject *object[MOST_HELD];
  void *block[MOST_HELD]; /* for free() */
  Py_buffer buffer[MOST_HELD];
} holdings;

/* Before anything else is done with them: nothing is held. The arrays need no zeros, and are most of the struct. */
void holdings_start(holdings *held, arrays *of);

void holdings_release(holdings *held);

/* Takes over a reference until the call ends. False with an exception; then it has been given back. */
bool holdings_keep(holdings *held, PyObject *object);

/* Memory until the call ends; NULL with an exception. */
void *holdings_alloc(holdings *held, size_t bytes);

/* Reads an object. `name` is the parameter, for the sentence of the exception. False with an exception. */
bool tensor_read(PyObject *object, const char *name, holdings *held, tensor *out);

/* Whether the object speaks one of the protocols at all: a list of numbers does not. */
bool tensor_is_array(PyObject *object, const holdings *held);

/* Whether an output may be written there. False with an exception. */
bool tensor_writable(const tensor *t, const char *name);

/* A new array of the library that `like` comes from: float32 or the dtype of `like`. Reads it into *out. A new reference, or
 * NULL with an exception. */
PyObject *tensor_new(const tensor *like, bool float32, int ndim, const int64_t *shape, holdings *held, tensor *out);

const char *dtype_name(dtype type);

/* Makes the state of the present interpreter, before anything else. `allocate(like, shape, dtype)` is Python's way to make
 * arrays of libraries that have none of the quick ways; `spec` is the class libattn.Spec. NULL with an exception. */
arrays *arrays_new(PyObject *allocate, PyObject *spec);

/* Call in the interpreter that made them. NULL is fine. */
void arrays_free(arrays *of);

#endif
