/* SPDX-License-Identifier: MIT */
#include "layers.h"

#include <stdlib.h>

#include "attn/kv.h"
#include "attn/product.h"

/* A function that holds `data`, which `release` frees; NULL with an exception, then it is freed. */
static PyObject *bind_function(PyMethodDef *definition, void *data, const char *name, PyCapsule_Destructor release) {
  PyObject *capsule = PyCapsule_New(data, name, release);
  if (!capsule) return free(data), NULL;
  PyObject *function = PyCFunction_NewEx(definition, capsule, NULL);
  Py_DecRef(capsule);
  return function;
}

/* ---- Dense layers ---------------------------------------------------------------------------------------------------- */

typedef struct linear {
  attn_product *product;
  int64_t width, columns;
  dtype x, y;
  const interpreter *of;
  PyObject *self;
} linear;

static const char LINEAR[] = "libattn.linear";

static void release_linear(PyObject *capsule) {
  linear *l = PyCapsule_GetPointer(capsule, LINEAR);
  attn_product_destroy(l->product);
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

static bool compute(const linear *l, const tensor *x, const tensor *y, int64_t rows) {
  const attn_product_args args = ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = x->data, .y = y->data,
                                             .x_stride = {.s = l->width, .d = 1}, .y_stride = {.s = l->columns, .d = 1});
  PyThreadState *python = PyEval_SaveThread();
  const size_t bytes = attn_product_workspace(l->product, rows);
  void *workspace = planned_take_memory(bytes);
  const bool done = workspace && attn_product_run(l->product, &args, workspace, bytes) == ATTN_OK;
  planned_give_memory(workspace);
  PyEval_RestoreThread(python);
  return done;
}

static PyObject *run(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
  const linear *l = PyCapsule_GetPointer(capsule, LINEAR);
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

static PyMethodDef run_definition = {"run", (PyCFunction)(uintptr_t)run, METH_FASTCALL, NULL};

PyObject *layers_bind_linear(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count) {
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
  return bind_function(&run_definition, l, LINEAR, release_linear);
}

/* ---- New tokens of a cache ------------------------------------------------------------------------------------------- */

typedef struct append {
  attn_kv_append_args args;
  float k_scale, v_scale;
  const interpreter *of;
  PyObject *self;
} append;

static const char APPEND[] = "libattn.append";

static void release_append(PyObject *capsule) {
  append *a = PyCapsule_GetPointer(capsule, APPEND);
  Py_DecRef(a->self);
  free(a);
}

/* Rows [tokens, heads, dim] of a call. False with an exception. */
static bool read_rows(PyObject *object, const char *name, const append *a, int64_t dim, holdings *held, tensor *t) {
  if (!tensor_read(object, name, held, t)) return false;
  if (t->ndim == 3 && t->shape[1] == a->args.heads_kv && t->shape[2] == dim && t->type == (dtype)a->args.dtype) return true;
  PyErr_Format(PyExc_ValueError, "%s is %s of %d dimensions; it must be %s [tokens, %lld heads, %lld]", name,
               dtype_name(t->type), t->ndim, dtype_name((dtype)a->args.dtype), (long long)a->args.heads_kv, (long long)dim);
  return false;
}

static bool read_slots(PyObject *object, holdings *held, tensor *t) {
  if (!tensor_read(object, "slots", held, t)) return false;
  if (t->ndim == 1 && t->type == DTYPE_I64 && (t->stride[0] == 1 || t->shape[0] < 2)) return true;
  PyErr_SetString(PyExc_ValueError, "slots must be dense int64 of one dimension");
  return false;
}

static bool same_tokens(const tensor *k, const tensor *v) {
  if (k->shape[0] == v->shape[0]) return true;
  PyErr_Format(PyExc_ValueError, "v has %lld tokens; it must have as many as k, %lld", (long long)v->shape[0],
               (long long)k->shape[0]);
  return false;
}

static attn_strides strides_of(const tensor *t) {
  return (attn_strides){.s = t->stride[0], .h = t->stride[1], .d = t->stride[2]};
}

static PyObject *write_tokens(PyObject *capsule, PyObject *const *given, Py_ssize_t count) {
  const append *a = PyCapsule_GetPointer(capsule, APPEND);
  holdings held;
  holdings_start(&held, a->of->arrays);
  held.ignore_gradients = true;
  tensor k, v, slots;
  bool done = false;
  if (count != 3)
    PyErr_SetString(PyExc_TypeError, "write() takes k, v and slots");
  else if (read_rows(given[0], "k", a, a->args.dim_qk, &held, &k) && read_rows(given[1], "v", a, a->args.dim_v, &held, &v) &&
           read_slots(given[2], &held, &slots) && same_tokens(&k, &v)) {
    attn_kv_append_args args = a->args;
    args.tokens = slots.shape[0] < k.shape[0] ? slots.shape[0] : k.shape[0];
    args.k = k.data, args.v = v.data, args.slots = (const int64_t *)(const void *)slots.data;
    args.k_stride = strides_of(&k), args.v_stride = strides_of(&v);
    PyThreadState *python = PyEval_SaveThread();
    const attn_status status = attn_kv_append(&args, NULL);
    PyEval_RestoreThread(python);
    done = status == ATTN_OK;
    if (!done) PyErr_SetString(PyExc_ValueError, attn_last_error());
  }
  holdings_release(&held);
  if (done) Py_IncRef(Py_None);
  return done ? Py_None : NULL;
}

static PyMethodDef write_definition = {"write", (PyCFunction)(uintptr_t)write_tokens, METH_FASTCALL, NULL};

PyObject *layers_bind_append(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count) {
  const attn_kv_append_args *given = count == 1 ? PyLong_AsVoidPtr(args[0]) : NULL;
  if (!given) return NULL;
  append *a = malloc(sizeof *a);
  if (!a) return PyErr_NoMemory();
  *a = (append){.args = *given, .of = of, .self = self};
  if (given->k_scale) a->k_scale = *given->k_scale, a->args.k_scale = &a->k_scale;
  if (given->v_scale) a->v_scale = *given->v_scale, a->args.v_scale = &a->v_scale;
  Py_IncRef(self);
  return bind_function(&write_definition, a, APPEND, release_append);
}
