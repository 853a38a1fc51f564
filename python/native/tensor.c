/* SPDX-License-Identifier: MIT */
#include "tensor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- Layouts that other projects publish ----------------------------------------------------------------------------- */

/* DLPack 1.3 (https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h) */
typedef struct dl_tensor {
  void *data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;

enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6, DL_E4M3FN = 10, DL_E5M2 = 12 };

typedef struct dl_managed {
  dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_exchange {
  struct {
    uint32_t major, minor;
    struct dl_exchange *previous;
  } header;
  int (*allocate)(dl_tensor *prototype, void **out, void *context,
                  void (*set_error)(void *context, const char *kind, const char *message));
  int (*managed_from_object)(void *object, void **out);
  int (*managed_to_object)(void *managed, void **object);
  int (*tensor_from_object)(void *object, dl_tensor *out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dl_exchange;

/* PyArrayInterface (https://numpy.org/doc/stable/reference/arrays.interface.html#c-struct-access) */
typedef struct array_interface {
  int two, dims;
  char kind;
  int itemsize, flags;
  intptr_t *shape, *strides;
  void *data;
  PyObject *description;
} array_interface;

enum { ARRAY_NOT_SWAPPED = 0x200, ARRAY_WRITEABLE = 0x400 };

/* ---- Readers, one per type ------------------------------------------------------------------------------------------- */

typedef enum protocol { BY_EXCHANGE, BY_ARRAY_STRUCT, BY_DLPACK, BY_BUFFER, BY_SPEC, MASKED } protocol;

struct reader {
  PyObject *type; /* kept as long as the interpreter */
  protocol protocol;
  const dl_exchange *exchange;
  bool has_gradients;
  bool has_negatives; /* PyTorch's negative bit: the memory holds the numbers with the other sign */
};

enum name { ARRAY_STRUCT, DLPACK, DTYPE, NAME, FIELDS, REQUIRES_GRAD, IS_NEG, RESOLVE_NEG, FILLED, DEVICE, LAYOUT, NAMES };
static const char *const name_texts[NAMES] = {"__array_struct__", "__dlpack__",    "dtype",  "name",
                                              "_fields",          "requires_grad", "is_neg", "resolve_neg",
                                              "filled",           "device",        "layout"};

/* Types that NumPy does not have: those of ml_dtypes have these names, and a kind that others of their size may have. */
enum { ML_DTYPES = 3 };
static const struct {
  const char *name;
  int itemsize;
  dtype type;
} ml_dtypes[ML_DTYPES] = {{"bfloat16", 2, DTYPE_BF16}, {"float8_e4m3fn", 1, DTYPE_E4M3}, {"float8_e5m2", 1, DTYPE_E5M2}};

/* Types are only ever added. Readers of the list take no lock. */
enum { MOST_TYPES = 64 };
struct arrays {
  reader readers[MOST_TYPES];
  atomic_int reader_count;
  pthread_mutex_t lock;
  PyObject *name[NAMES], *allocate, *spec_type;
  _Atomic(PyObject *) numpy_empty, numpy_float32, ml_dtype[ML_DTYPES];
};

arrays *arrays_new(PyObject *allocate, PyObject *spec) {
  arrays *of = calloc(1, sizeof *of);
  if (!of) return PyErr_NoMemory(), NULL;
  pthread_mutex_init(&of->lock, NULL);
  Py_IncRef(of->allocate = allocate);
  Py_IncRef(of->spec_type = spec);
  for (int i = 0; i < NAMES; i++)
    if (!(of->name[i] = PyUnicode_InternFromString(name_texts[i]))) return arrays_free(of), NULL;
  return of;
}

static void drop(PyObject *object) {
  if (object) Py_DecRef(object);
}

void arrays_free(arrays *of) {
  if (!of) return;
  for (int i = 0; i < atomic_load(&of->reader_count); i++) drop(of->readers[i].type);
  for (int i = 0; i < NAMES; i++) drop(of->name[i]);
  drop(of->allocate);
  drop(of->spec_type);
  drop(atomic_load(&of->numpy_empty));
  drop(atomic_load(&of->numpy_float32));
  for (int i = 0; i < ML_DTYPES; i++) drop(atomic_load(&of->ml_dtype[i]));
  pthread_mutex_destroy(&of->lock);
  free(of);
}

static bool has(PyObject *type, PyObject *name) {
  PyObject *attribute = PyObject_GetAttr(type, name);
  if (attribute)
    Py_DecRef(attribute);
  else
    PyErr_Clear();
  return attribute;
}

static const dl_exchange *exchange_of(PyObject *type) {
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  const dl_exchange *found = NULL;
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
    found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!capsule) PyErr_Clear();
  while (found && found->header.major != 1) found = found->header.previous;
  if (capsule) Py_DecRef(capsule); /* the table lives as long as the process */
  return found && found->tensor_from_object ? found : NULL;
}

static reader make_reader(const arrays *of, PyObject *type) {
  reader made = {.type = type, .protocol = BY_SPEC};
  if (type == of->spec_type) return made;
  const bool has_struct = has(type, of->name[ARRAY_STRUCT]), has_dlpack = has(type, of->name[DLPACK]);
  made.has_negatives = has(type, of->name[IS_NEG]);
  made.exchange = exchange_of(type);
  made.has_gradients = made.exchange && has(type, of->name[REQUIRES_GRAD]);
  made.protocol = made.exchange ? BY_EXCHANGE : has_struct ? BY_ARRAY_STRUCT : has_dlpack ? BY_DLPACK : BY_BUFFER;
  if (has_struct && has(type, of->name[FILLED])) made.protocol = MASKED; /* numpy.ma */
  return made;
}

static const reader *find_reader(const arrays *of, PyObject *type) {
  const int count = atomic_load_explicit(&of->reader_count, memory_order_acquire);
  for (int i = 0; i < count; i++)
    if (of->readers[i].type == type) return &of->readers[i];
  return NULL;
}

/* The reader of the object's type. Beyond MOST_TYPES the last place is used, by one thread at a time as the caller copies.
 */
static const reader *reader_of(arrays *of, PyObject *object, reader *own) {
  PyObject *type = PyObject_Type(object);
  const reader *found = find_reader(of, type);
  if (!found) {
    *own = make_reader(of, type);
    found = own;
    pthread_mutex_lock(&of->lock);
    const int count = atomic_load(&of->reader_count);
    const reader *meanwhile = find_reader(of, type);
    if (meanwhile) found = meanwhile;
    if (!meanwhile && count < MOST_TYPES) {
      Py_IncRef(type);
      of->readers[count] = *own;
      atomic_store_explicit(&of->reader_count, count + 1, memory_order_release);
      found = &of->readers[count];
    }
    pthread_mutex_unlock(&of->lock);
  }
  Py_DecRef(type);
  return found;
}

/* ---- What is held until the call ends -------------------------------------------------------------------------------- */

void holdings_start(holdings *held, arrays *of) {
  held->of = of;
  held->ignore_gradients = held->take_specs = false;
  held->objects = held->buffers = held->blocks = 0;
}

void holdings_release(holdings *held) {
  while (held->buffers) PyBuffer_Release(&held->buffer[--held->buffers]);
  while (held->objects) Py_DecRef(held->object[--held->objects]);
  while (held->blocks) free(held->block[--held->blocks]);
}

void *holdings_alloc(holdings *held, size_t bytes) {
  void *block = held->blocks < MOST_HELD ? malloc(bytes ? bytes : 1) : NULL;
  if (block)
    held->block[held->blocks++] = block;
  else
    PyErr_NoMemory();
  return block;
}

/* Takes the reference over. */
bool holdings_keep(holdings *held, PyObject *object) {
  if (held->objects == MOST_HELD) {
    Py_DecRef(object);
    PyErr_NoMemory();
    return false;
  }
  held->object[held->objects++] = object;
  return true;
}

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static const char *const dtype_names[] = {"float32", "float16", "bfloat16", "float8_e4m3fn",   "float8_e5m2",
                                          "int8",    "q8_0",    "q4_0",     "float64",         "int32",
                                          "int64",   "bool",    "uint8",    "of another dtype"};

const char *dtype_name(dtype type) { return dtype_names[type]; }

static bool check_ndim(const char *name, int64_t ndim) {
  if (ndim >= 0 && ndim <= MOST_DIMS) return true;
  PyErr_Format(PyExc_ValueError, "%s has %d dimensions; it may have at most %d", name, (int)ndim, MOST_DIMS);
  return false;
}

static void dense(int ndim, const int64_t *shape, int64_t *stride) {
  int64_t step = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    stride[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
}

static dtype dl_dtype(const dl_tensor *t) {
  if (t->dtype.lanes != 1) return DTYPE_OTHER;
  const int bits = t->dtype.bits;
  switch (t->dtype.code) {
    case DL_FLOAT: return bits == 32 ? DTYPE_F32 : bits == 16 ? DTYPE_F16 : bits == 64 ? DTYPE_F64 : DTYPE_OTHER;
    case DL_BFLOAT: return bits == 16 ? DTYPE_BF16 : DTYPE_OTHER;
    case DL_E4M3FN: return bits == 8 ? DTYPE_E4M3 : DTYPE_OTHER;
    case DL_E5M2: return bits == 8 ? DTYPE_E5M2 : DTYPE_OTHER;
    case DL_INT:
      if (bits == 32) return DTYPE_I32;
      if (bits == 64) return DTYPE_I64;
      return bits == 8 ? DTYPE_I8 : DTYPE_OTHER;
    case DL_UINT: return bits == 8 ? DTYPE_U8 : DTYPE_OTHER;
    case DL_BOOL: return bits == 8 ? DTYPE_BOOL : DTYPE_OTHER;
    default: return DTYPE_OTHER;
  }
}

static bool take_dl(const dl_tensor *t, const char *name, tensor *out) {
  const int32_t device = t->device.type;
  if (device != DL_CPU && device != DL_CUDA_HOST && device != DL_ROCM_HOST) {
    PyErr_Format(PyExc_ValueError, "%s is on a device (DLPack type %d); libattn computes on the CPU", name, (int)device);
    return false;
  }
  if (!check_ndim(name, t->ndim)) return false;
  out->data = (char *)t->data + t->byte_offset;
  out->ndim = t->ndim;
  out->type = dl_dtype(t);
  memcpy(out->shape, t->shape, (size_t)t->ndim * sizeof *out->shape);
  if (t->strides)
    memcpy(out->stride, t->strides, (size_t)t->ndim * sizeof *out->stride);
  else
    dense(out->ndim, out->shape, out->stride);
  return true;
}

/* A result of the library has no history, so that gradients would end here without a word. */
static bool requires_gradient(const arrays *of, PyObject *object, const char *name) {
  PyObject *flag = PyObject_GetAttr(object, of->name[REQUIRES_GRAD]);
  const bool required = flag && PyObject_IsTrue(flag) > 0;
  if (flag) Py_DecRef(flag);
  PyErr_Clear();
  if (required) PyErr_Format(PyExc_ValueError, "%s requires gradients; use libattn.torch.sdpa, or %s.detach()", name, name);
  return required;
}

/* Sparse, quantized, on another device, fake, or a wrapper of something else. */
static bool tell_no_memory(const arrays *of, PyObject *object, const char *name) {
  PyObject *fact[3];
  for (int i = 0; i < 3; i++)
    if (!(fact[i] = PyObject_GetAttr(object, of->name[(const int[]){DEVICE, LAYOUT, DTYPE}[i]]))) {
      PyErr_Clear();
      Py_IncRef(fact[i] = Py_None);
    }
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError,
               "%s has no dense memory on the CPU; libattn reads nothing else (device %S, layout %S, dtype %S)", name,
               fact[0], fact[1], fact[2]);
  for (int i = 0; i < 3; i++) Py_DecRef(fact[i]);
  return false;
}

static bool read_exchange(PyObject *object, const char *name, const holdings *held, tensor *out) {
  dl_tensor t;
  if (out->from->has_gradients && !held->ignore_gradients && requires_gradient(held->of, object, name)) return false;
  if (out->from->exchange->tensor_from_object(object, &t) != 0) return tell_no_memory(held->of, object, name);
  return take_dl(&t, name, out);
}

/* Byte strides to strides in elements. */
static bool take_byte_strides(const char *name, int64_t itemsize, tensor *out) {
  for (int i = 0; i < out->ndim; i++) {
    if (out->stride[i] % itemsize != 0) {
      PyErr_Format(PyExc_ValueError, "%s has a stride of %lld bytes; it must be a multiple of its element, %d bytes", name,
                   (long long)out->stride[i], (int)itemsize);
      return false;
    }
    out->stride[i] /= itemsize;
  }
  return true;
}

/* Which one of ml_dtypes the array has; those that were seen are known by their address. */
static dtype ml_dtype_of(arrays *of, PyObject *object, int64_t itemsize) {
  PyObject *type = PyObject_GetAttr(object, of->name[DTYPE]), *name = NULL, *none = NULL;
  dtype found = DTYPE_OTHER;
  for (int i = 0; i < ML_DTYPES && type && found == DTYPE_OTHER; i++)
    if (type == atomic_load(&of->ml_dtype[i])) found = ml_dtypes[i].type;
  if (type && found == DTYPE_OTHER && (name = PyObject_GetAttr(type, of->name[NAME]))) {
    for (int i = 0; i < ML_DTYPES && found == DTYPE_OTHER; i++) {
      if (itemsize != ml_dtypes[i].itemsize || PyUnicode_CompareWithASCIIString(name, ml_dtypes[i].name) != 0) continue;
      found = ml_dtypes[i].type;
      if (atomic_compare_exchange_strong(&of->ml_dtype[i], &none, type)) Py_IncRef(type);
    }
    Py_DecRef(name);
  }
  if (type) Py_DecRef(type);
  PyErr_Clear();
  return found;
}

static dtype array_dtype(arrays *of, PyObject *object, const array_interface *a) {
  switch (a->kind) {
    case 'f':
      if (a->itemsize == 1) return ml_dtype_of(of, object, 1);
      return a->itemsize == 4 ? DTYPE_F32 : a->itemsize == 2 ? DTYPE_F16 : a->itemsize == 8 ? DTYPE_F64 : DTYPE_OTHER;
    case 'i':
      if (a->itemsize == 4) return DTYPE_I32;
      if (a->itemsize == 8) return DTYPE_I64;
      return a->itemsize == 1 ? DTYPE_I8 : DTYPE_OTHER;
    case 'u': return a->itemsize == 1 ? DTYPE_U8 : DTYPE_OTHER;
    case 'b': return a->itemsize == 1 ? DTYPE_BOOL : DTYPE_OTHER;
    case 'V': return ml_dtype_of(of, object, a->itemsize);
    default: return DTYPE_OTHER;
  }
}

static bool take_array(arrays *of, PyObject *object, const char *name, const array_interface *a, tensor *out) {
  if (!check_ndim(name, a->dims)) return false;
  if (!(a->flags & ARRAY_NOT_SWAPPED)) {
    PyErr_Format(PyExc_TypeError, "%s has the other byte order; libattn takes the machine's", name);
    return false;
  }
  out->data = a->data;
  out->ndim = a->dims;
  out->type = array_dtype(of, object, a);
  out->readonly = !(a->flags & ARRAY_WRITEABLE);
  for (int i = 0; i < a->dims; i++) {
    out->shape[i] = a->shape[i];
    out->stride[i] = a->strides[i];
  }
  return take_byte_strides(name, a->itemsize, out);
}

static bool read_array_struct(arrays *of, PyObject *object, const char *name, tensor *out) {
  PyObject *capsule = PyObject_GetAttr(object, of->name[ARRAY_STRUCT]);
  const array_interface *a = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
  const bool read = a && take_array(of, object, name, a, out);
  if (capsule) Py_DecRef(capsule);
  return read;
}

/* Reads an array that gives DLPack capsules. The capsule keeps the data until the call ends, and its destructor then calls
 * the deleter, because it is not renamed to "used_dltensor". */
static bool read_dlpack(PyObject *object, const char *name, holdings *held, tensor *out) {
  PyObject *capsule = PyObject_CallMethodObjArgs(object, held->of->name[DLPACK], NULL);
  if (!capsule || !holdings_keep(held, capsule)) return false;
  const dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
  return managed && take_dl(&managed->tensor, name, out);
}

#define LITTLE_ENDIAN_HERE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

static dtype buffer_dtype(const Py_buffer *b) {
  const char *format = b->format ? b->format : "B";
  if (*format == '@' || *format == '=' || *format == (LITTLE_ENDIAN_HERE ? '<' : '>')) format++;
  if (!format[0] || format[1]) return DTYPE_OTHER;
  switch (format[0]) {
    case 'f': return DTYPE_F32;
    case 'e': return DTYPE_F16;
    case 'd': return DTYPE_F64;
    case 'i':
    case 'l':
    case 'q': return b->itemsize == 4 ? DTYPE_I32 : DTYPE_I64;
    case 'b': return DTYPE_I8;
    case '?': return DTYPE_BOOL;
    case 'B': return DTYPE_U8;
    default: return DTYPE_OTHER;
  }
}

static bool read_buffer(PyObject *object, const char *name, holdings *held, tensor *out) {
  Py_buffer *b = &held->buffer[held->buffers];
  if (held->buffers == MOST_HELD || PyObject_GetBuffer(object, b, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is no array: it has neither DLPack nor the buffer protocol", name);
    return false;
  }
  held->buffers++;
  if (!check_ndim(name, b->ndim)) return false;
  out->data = b->buf;
  out->ndim = b->ndim;
  out->type = buffer_dtype(b);
  out->readonly = b->readonly;
  for (int i = 0; i < b->ndim; i++) out->shape[i] = b->shape[i];
  if (!b->strides) return dense(out->ndim, out->shape, out->stride), true; /* arrays of ctypes, whatever was asked for */
  for (int i = 0; i < b->ndim; i++) out->stride[i] = b->strides[i];
  return take_byte_strides(name, b->itemsize, out);
}

/* libattn.Spec: a shape and a dtype without data. _fields is (dtype, n, ..., strides ...). */
static bool read_spec(PyObject *object, const char *name, const holdings *held, tensor *out) {
  if (!held->take_specs) {
    PyErr_Format(PyExc_TypeError, "%s is a Spec, which has no numbers; only Plan and why_not take it", name);
    return false;
  }
  PyObject *fields = PyObject_GetAttr(object, held->of->name[FIELDS]);
  if (!fields) return false;
  const int64_t ndim = ((int64_t)PyTuple_Size(fields) - 1) / 2;
  bool read = check_ndim(name, ndim);
  if (read) {
    out->ndim = (int)ndim;
    out->type = (dtype)PyLong_AsLongLong(PyTuple_GetItem(fields, 0));
    for (int i = 0; i < out->ndim; i++) {
      out->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(fields, 1 + i));
      out->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(fields, 1 + ndim + i));
    }
    read = !PyErr_Occurred();
  }
  Py_DecRef(fields);
  return read;
}

static bool read_by(PyObject *object, const char *name, holdings *held, tensor *out) {
  switch (out->from->protocol) {
    case BY_EXCHANGE: return read_exchange(object, name, held, out);
    case BY_ARRAY_STRUCT: return read_array_struct(held->of, object, name, out);
    case BY_DLPACK: return read_dlpack(object, name, held, out);
    case BY_SPEC: return read_spec(object, name, held, out);
    case BY_BUFFER: return read_buffer(object, name, held, out);
    default:
      PyErr_Format(PyExc_TypeError, "%s is a masked array, whose mask libattn does not see; give %s.data and a `mask`", name,
                   name);
      return false;
  }
}

/* The object, or, if it is a view whose numbers are those in memory with the other sign, an object that holds them. */
static PyObject *resolve(PyObject *object, holdings *held, tensor *out) {
  if (!out->from->has_negatives) return object;
  PyObject *answer = PyObject_CallMethodObjArgs(object, held->of->name[IS_NEG], NULL);
  if (!answer) return NULL;
  out->is_copy = PyObject_IsTrue(answer) > 0;
  Py_DecRef(answer);
  if (!out->is_copy) return object;
  PyObject *copy = PyObject_CallMethodObjArgs(object, held->of->name[RESOLVE_NEG], NULL);
  return copy && holdings_keep(held, copy) ? copy : NULL;
}

static bool is_empty(const tensor *t) {
  for (int i = 0; i < t->ndim; i++)
    if (t->shape[i] == 0) return true;
  return false;
}

static bool read_any(PyObject *object, const char *name, holdings *held, bool lazy, tensor *out) {
  reader own;
  out->from = reader_of(held->of, object, &own);
  if (out->from == &own) { /* the list of types is full */
    reader *kept = holdings_alloc(held, sizeof *kept);
    if (!kept) return false;
    *kept = own;
    out->from = kept;
  }
  out->object = object;
  out->data = NULL;
  out->readonly = out->is_copy = false;
  PyObject *resolved = lazy ? resolve(object, held, out) : object;
  if (!resolved || !read_by(resolved, name, held, out)) return false;
  if (!out->data && out->from->protocol != BY_SPEC && !is_empty(out)) return tell_no_memory(held->of, object, name);
  return true;
}

bool tensor_read(PyObject *object, const char *name, holdings *held, tensor *out) {
  return read_any(object, name, held, true, out);
}

bool tensor_is_array(PyObject *object, const holdings *held) {
  reader own;
  return reader_of(held->of, object, &own)->protocol != BY_BUFFER || PyObject_CheckBuffer(object);
}

bool tensor_writable(const tensor *t, const char *name) {
  if (t->is_copy)
    PyErr_Format(PyExc_ValueError,
                 "%s is a lazy view with the negative bit, which nothing can be written to; give a plain tensor", name);
  else if (t->readonly)
    PyErr_Format(PyExc_ValueError, "%s is read-only", name);
  return !t->is_copy && !t->readonly;
}

/* ---- New arrays ------------------------------------------------------------------------------------------------------ */

static PyObject *shape_tuple(int ndim, const int64_t *shape) {
  PyObject *tuple = PyTuple_New(ndim);
  for (int i = 0; tuple && i < ndim; i++) {
    PyObject *size = PyLong_FromLongLong(shape[i]);
    if (!size || PyTuple_SetItem(tuple, i, size) != 0) {
      Py_DecRef(tuple);
      return NULL;
    }
  }
  return tuple;
}

static void set_error(void *context, const char *kind, const char *message) {
  (void)context;
  PyErr_Format(PyExc_ValueError, "%s: %s", kind, message);
}

static PyObject *new_exchange(const dl_exchange *exchange, dtype type, int ndim, const int64_t *shape) {
  int64_t sizes[MOST_DIMS], strides[MOST_DIMS];
  memcpy(sizes, shape, (size_t)ndim * sizeof *sizes);
  dense(ndim, sizes, strides);
  dl_tensor prototype = {.device = {DL_CPU, 0}, .ndim = ndim, .shape = sizes, .strides = strides};
  prototype.dtype.code = type == DTYPE_BF16 ? DL_BFLOAT : DL_FLOAT;
  prototype.dtype.bits = type == DTYPE_F32 ? 32 : 16;
  prototype.dtype.lanes = 1;
  void *managed = NULL, *object = NULL;
  if (exchange->allocate(&prototype, &managed, NULL, set_error) != 0) return NULL;
  return exchange->managed_to_object(managed, &object) == 0 ? object : NULL;
}

/* An attribute of numpy, looked up once. */
static PyObject *of_numpy(_Atomic(PyObject *) *kept, const char *name) {
  PyObject *found = atomic_load_explicit(kept, memory_order_acquire);
  if (found) return found;
  PyObject *numpy = PyImport_ImportModule("numpy");
  found = numpy ? PyObject_GetAttrString(numpy, name) : NULL;
  if (numpy) Py_DecRef(numpy);
  if (found) atomic_store_explicit(kept, found, memory_order_release);
  return found;
}

static PyObject *new_numpy(arrays *of, const tensor *like, bool float32, PyObject *shape) {
  PyObject *empty = of_numpy(&of->numpy_empty, "empty");
  PyObject *type = float32 ? of_numpy(&of->numpy_float32, "float32") : PyObject_GetAttr(like->object, of->name[DTYPE]);
  PyObject *made = empty && type ? PyObject_CallFunctionObjArgs(empty, shape, type, NULL) : NULL;
  if (!float32 && type) Py_DecRef(type);
  return made;
}

static PyObject *new_other(arrays *of, const tensor *like, bool float32, int ndim, const int64_t *shape) {
  PyObject *tuple = shape_tuple(ndim, shape), *made = NULL;
  if (tuple && like->from->protocol == BY_ARRAY_STRUCT) {
    made = new_numpy(of, like, float32 && like->type != DTYPE_F32, tuple);
  } else if (tuple) {
    PyObject *type = PyUnicode_FromString(dtype_name(float32 ? DTYPE_F32 : like->type));
    made = type ? PyObject_CallFunctionObjArgs(of->allocate, like->object, tuple, type, NULL) : NULL;
    if (type) Py_DecRef(type);
  }
  if (tuple) Py_DecRef(tuple);
  return made;
}

PyObject *tensor_new(const tensor *like, bool float32, int ndim, const int64_t *shape, holdings *held, tensor *out) {
  const dl_exchange *exchange = like->from->exchange;
  PyObject *made = exchange && exchange->allocate && exchange->managed_to_object
                       ? new_exchange(exchange, float32 ? DTYPE_F32 : like->type, ndim, shape)
                       : new_other(held->of, like, float32, ndim, shape);
  if (made && read_any(made, "out", held, false, out)) return made; /* new, so no lazy view */
  if (made) Py_DecRef(made);
  return NULL;
}
