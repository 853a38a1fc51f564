/* SPDX-License-Identifier: MIT */
/* The part of CPython's C API that this package calls.
 *
 * It is declared here instead of included from Python.h, so that one shared object serves every CPython from 3.9 on, the
 * free-threaded builds among them: those have another layout of PyObject, and their headers allow no common binary. Nothing
 * here looks into an object. All functions are exported by each of these versions, and all but four (see below) are in the
 * stable ABI. It also means that building the package needs no headers of Python.
 *
 * The test `python_api` compiles this file together with Python.h, so that a compiler compares the declarations. */
#ifndef LIBATTN_PYTHON_API_H
#define LIBATTN_PYTHON_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef Py_PYTHON_H
typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef ssize_t Py_ssize_t;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef void (*PyCapsule_Destructor)(PyObject *);

/* https://docs.python.org/3/c-api/structures.html#c.PyMethodDef */
typedef struct PyMethodDef {
  const char *ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char *ml_doc;
} PyMethodDef;

enum { METH_KEYWORDS = 0x0002, METH_O = 0x0008, METH_NOARGS = 0x0004, METH_FASTCALL = 0x0080 };

/* https://docs.python.org/3/c-api/buffer.html: the same since 3.0, in the stable ABI since 3.11. */
typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void *internal;
} Py_buffer;

enum { PyBUF_FORMAT = 0x0004, PyBUF_STRIDES = 0x0010 | 0x0008 };

#ifndef ATTN_API_IMPORT
#define ATTN_API_IMPORT extern
#endif
ATTN_API_IMPORT PyObject *PyExc_TypeError, *PyExc_ValueError, *PyExc_MemoryError, *PyExc_BufferError, *PyExc_AttributeError;
#endif

/* In the stable ABI since 3.10 or 3.11, and exported before. */
int PyObject_CheckBuffer(PyObject *object);
int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);
const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size);

/* The stable ABI. Names in brackets are macros in Python.h as well. */
void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

PyObject *PyErr_Format(PyObject *exception, const char *format, ...);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *exception, const char *text);
void PyErr_Clear(void);

PyObject *PyObject_Type(PyObject *object);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *object, PyObject *name, ...);
PyObject *PyObject_RichCompare(PyObject *a, PyObject *b, int operation);
int PyObject_IsTrue(PyObject *object);
PyObject *PyNumber_Index(PyObject *object);
PyObject *PyImport_ImportModule(const char *name);

PyObject *(PyCFunction_NewEx)(PyMethodDef *definition, PyObject *self, PyObject *module);

PyObject *PyCapsule_New(void *pointer, const char *name, PyCapsule_Destructor destructor);
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
int PyCapsule_IsValid(PyObject *capsule, const char *name);
int PyCapsule_SetName(PyObject *capsule, const char *name);

PyObject *PyTuple_New(Py_ssize_t size);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t index);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t index, PyObject *item);
int PySequence_Check(PyObject *object);
Py_ssize_t PySequence_Size(PyObject *sequence);
PyObject *PySequence_GetItem(PyObject *sequence, Py_ssize_t index);
PyObject *PyDict_New(void);
int PyDict_SetItemString(PyObject *dict, const char *key, PyObject *value);

PyObject *PyUnicode_FromString(const char *text);
PyObject *PyUnicode_InternFromString(const char *text);
int PyUnicode_CompareWithASCIIString(PyObject *text, const char *ascii);
PyObject *PyLong_FromLongLong(long long value);
PyObject *PyLong_FromVoidPtr(void *pointer);
void *PyLong_AsVoidPtr(PyObject *number);
long long PyLong_AsLongLong(PyObject *number);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *number);
double PyFloat_AsDouble(PyObject *number);
PyObject *PyBool_FromLong(long value);

#ifndef Py_PYTHON_H
extern PyObject _Py_NoneStruct; /* incomplete: only its address is used */
#define Py_None (&_Py_NoneStruct)
#endif

#endif
