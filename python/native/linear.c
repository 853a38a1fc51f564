/* SPDX-License-Identifier: MIT */
#include "linear.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "attn/product.h"

enum { WORKSPACE_ALIGN = 64 };

/* Memory of a call, kept for the next one; it begins behind the struct's WORKSPACE_ALIGN bytes. */
typedef struct workspace {
  size_t bytes;
} workspace;

typedef struct linear {
  attn_product *product;
  int64_t width, columns;
  dtype x, y;
  _Atomic(workspace *) kept; /* NULL while somebody is in there */
  const interpreter *of;
  PyObject *self;
} linear;

static const char LINEAR[] = "libattn.linear";

static void release(PyObject *capsule) {
  linear *l = PyCapsule_GetPointer(capsule, LINEAR);
  attn_product_destroy(l->product);
  free(atomic_load(&l->kept));
  Py_DecRef(l->self);
  free(l);
}

/* Dense rows of `width` elements, at least one. */
static bool takes(const tensor *t, dtype type, int64_t width, int64_t *rows) {
  int64_t step = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] < 1 || (t->shape[i] > 1 && t->stride[i] != step)) return false;
    step *= t->shape[i];
  }
  *rows = step / width;
  return t->ndim > 0 && t->type == type && t->shape[t->ndim - 1] == width;
}

static bool same_rows(const tensor *x, const tensor *y) {
  for (int i = 0; i < x->ndim - 1; i++)
    if (x->shape[i] != y->shape[i]) return false;
  return x->ndim == y->ndim;
}

/* The given array, or a new one; NULL if it does not fit, or with an exception. A new reference. */
static PyObject *output(const linear *l, const tensor *x, PyObject *given, holdings *held, tensor *y) {
  if (!given || given == Py_None) {
    if (l->y != DTYPE_F32) return NULL;
    int64_t shape[MOST_DIMS];
    for (int i = 0; i < x->ndim; i++) shape[i] = i + 1 < x->ndim ? x->shape[i] : l->columns;
    return tensor_new(x, true, x->ndim, shape, held, y);
  }
  int64_t rows;
  if (!tensor_read(given, "out", held, y) || !tensor_writable(y, "out") || !takes(y, l->y, l->columns, &rows) ||
      !same_rows(x, y))
    return NULL;
  Py_IncRef(given);
  return given;
}

static workspace *take_workspace(linear *l, size_t bytes) {
  workspace *w = atomic_exchange(&l->kept, NULL);
  if (w && w->bytes >= bytes) return w;
  free(w);
  w = aligned_alloc(WORKSPACE_ALIGN, WORKSPACE_ALIGN + (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN);
  if (w) w->bytes = bytes;
  return w;
}

static bool compute(linear *l, const tensor *x, const tensor *y, int64_t rows) {
  const attn_product_args args = ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = x->data, .y = y->data,
                                             .x_stride = {.s = l->width, .d = 1}, .y_stride = {.s = l->columns, .d = 1});
  PyThreadState *python = PyEval_SaveThread();
  const size_t bytes = attn_product_workspace(l->product, rows);
  workspace *w = take_workspace(l, bytes);
  const bool done = w && attn_product_run(l->product, &args, (char *)w + WORKSPACE_ALIGN, bytes) == ATTN_OK;
  free(atomic_exchange(&l->kept, w));
  PyEval_RestoreThread(python);
  return done;
}

static PyObject *run(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
  linear *l = PyCapsule_GetPointer(capsule, LINEAR);
  holdings held; /* most of it needs no zeros */
  holdings_start(&held, l->of->arrays);
  tensor x, y;
  int64_t rows;
  PyObject *result = NULL;
  if (count == 2 && tensor_read(args[0], "x", &held, &x) && takes(&x, l->x, l->width, &rows) &&
      (result = output(l, &x, args[1], &held, &y)) && !compute(l, &x, &y, rows)) {
    Py_DecRef(result);
    result = NULL;
  }
  holdings_release(&held);
  if (result) return result;
  PyErr_Clear();
  Py_IncRef(Py_None);
  return Py_None;
}

static PyMethodDef definition = {"run", (PyCFunction)(uintptr_t)run, METH_FASTCALL, NULL};

PyObject *linear_bind(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t numbers[4] = {0};
  attn_product *product = count == 5 ? PyLong_AsVoidPtr(args[0]) : NULL;
  for (int i = 0; product && i < 4; i++) numbers[i] = PyLong_AsLongLong(args[i + 1]);
  if (!product || PyErr_Occurred()) return NULL;
  linear *l = malloc(sizeof *l);
  if (!l) return PyErr_NoMemory();
  *l = (linear){.product = attn_product_share(product),
                .width = numbers[0],
                .columns = numbers[1],
                .x = (dtype)numbers[2],
                .y = (dtype)numbers[3],
                .of = of,
                .self = self};
  Py_IncRef(self);
  PyObject *capsule = PyCapsule_New(l, LINEAR, release);
  PyObject *function = capsule ? PyCFunction_NewEx(&definition, capsule, NULL) : NULL;
  if (capsule) Py_DecRef(capsule);
  return function;
}
