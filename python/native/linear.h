/* SPDX-License-Identifier: MIT */
/* A dense layer as a function of Python's own kind: arrays in, attn_product_run(), array out. */
#ifndef LIBATTN_LINEAR_H
#define LIBATTN_LINEAR_H

#include "call.h"

/* linear(address of an attn_product, in, out, attn_dtype of x, of y): a function run(x, out) that holds the product too.
 * `out` may be None for a new float32 array. It returns y, or None for whatever is not as it should be, without an
 * exception: layers.Linear then goes the slow way, which has the sentences. `of`: that of the interpreter, which `self`
 * keeps alive. */
PyObject *linear_bind(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
