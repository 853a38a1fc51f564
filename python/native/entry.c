/* SPDX-License-Identifier: MIT */
#include "entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/kv.h"
#include "attn/nn.h"
#include "attn/product.h"
#include "call.h"
#include "compile.h"
#include "layers.h"
#include "shared/shared.h" /* for its layouts only */
#include "threads.h"

#include "headers_read.h" /* after the headers */

/* `self` of every function: what its interpreter has. */
static const char INTERPRETER[] = "libattn.interpreter";

static const interpreter *interpreter_of(PyObject *self) { return PyCapsule_GetPointer(self, INTERPRETER); }

/* ---- Errors ---------------------------------------------------------------------------------------------------------- */

static PyObject *exception_of(const interpreter *of, attn_status status) {
  switch (status) {
    case ATTN_UNSUPPORTED: return of->unsupported;
    case ATTN_OUT_OF_MEMORY: return PyExc_MemoryError;
    default: return PyExc_ValueError;
  }
}

/* The library's sentence as an exception. It is this thread's last error, so that nothing may run between. */
static bool succeed(const interpreter *of, attn_status status) {
  if (status != ATTN_OK) PyErr_SetString(exception_of(of, status), attn_last_error());
  return status == ATTN_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------------------------------- */

/* Plans and runs without the GIL. `bound` is the plan to use, or NULL for that of the cache. */
static bool compute(const call *c, const planned *bound) {
  PyThreadState *python = PyEval_SaveThread();
  const attn_status status =
      bound ? planned_run(bound, &c->wanted.problem, &c->args) : planned_compute(&c->wanted, &c->args);
  PyEval_RestoreThread(python);
  return succeed(c->of, status);
}

typedef struct entry {
  const char *function;
  bool backward, ignore_gradients;
} entry;

static PyObject *attend(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names, entry of) {
  call c;
  call_init(&c, interpreter_of(self), of.backward);
  c.held.ignore_gradients = of.ignore_gradients;
  const bool done = call_sort(&c, of.function, args, count, names, false) && call_read_settings(&c) &&
                    call_build(&c, true) && compute(&c, NULL);
  return call_finish(&c, done);
}

static PyObject *sdpa(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return attend(self, args, count, names, (entry){"sdpa", false, false});
}

static PyObject *sdpa_without_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return attend(self, args, count, names, (entry){"sdpa", false, true});
}

static PyObject *sdpa_grad(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return attend(self, args, count, names, (entry){"sdpa_grad", true, false});
}

static PyObject *sdpa_grad_of_tensors(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return attend(self, args, count, names, (entry){"sdpa_grad", true, true});
}

/* ---- Plans ----------------------------------------------------------------------------------------------------------- */

/* The data of a bound function. */
typedef struct bound {
  settings set;
  planned *plan;
  PyObject *self; /* self of the function that made it */
} bound;

static const char BOUND[] = "libattn.plan";

static void release_bound(PyObject *capsule) {
  bound *b = PyCapsule_GetPointer(capsule, BOUND);
  planned_release(b->plan);
  Py_DecRef(b->self);
  free(b);
}

/* The first thing that the plan and the call do not share, in words. */
static void tell_difference(const request *plan, const request *now) {
  const attn_problem *a = &plan->problem, *b = &now->problem;
  const struct {
    const char *name;
    int64_t was, is;
  } sizes[] = {{"batch", a->batch, b->batch},
               {"heads", a->heads_q, b->heads_q},
               {"KV heads", a->heads_kv, b->heads_kv},
               {"queries", a->seq_q, b->seq_q},
               {"keys", a->seq_k, b->seq_k},
               {"head_dim", a->dim_qk, b->dim_qk},
               {"dim of v", a->dim_v, b->dim_v},
               {"dtype of q", a->dtype_q, b->dtype_q},
               {"dtype of k", a->dtype_kv, b->dtype_kv},
               {"dtype of out", a->dtype_o, b->dtype_o},
               {"packed queries", a->total_q, b->total_q},
               {"packed keys", a->total_k, b->total_k},
               {"mask_keys", a->mask_keys, b->mask_keys},
               {"shared_prefix", a->shared_prefix, b->shared_prefix},
               {"page_tokens", a->page_tokens, b->page_tokens},
               {"pages", a->pages, b->pages}};
  if (a->uses != b->uses) {
    char was[160], is[160];
    call_list_uses(a->uses, was, sizeof was);
    call_list_uses(b->uses, is, sizeof is);
    PyErr_Format(PyExc_ValueError, "the plan was made for optional arrays = %s; this call has %s", was, is);
    return;
  }
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].was != sizes[i].is) {
      PyErr_Format(PyExc_ValueError, "the plan was made for %s = %lld; this call has %lld", sizes[i].name,
                   (long long)sizes[i].was, (long long)sizes[i].is);
      return;
    }
  const struct {
    const char *name;
    const void *was, *is;
    size_t bytes;
  } strides[] = {{"q", &a->q_stride, &b->q_stride, sizeof a->q_stride},
                 {"k", &a->k_stride, &b->k_stride, sizeof a->k_stride},
                 {"v", &a->v_stride, &b->v_stride, sizeof a->v_stride},
                 {"out", &a->o_stride, &b->o_stride, sizeof a->o_stride},
                 {"lse", &a->lse_stride, &b->lse_stride, sizeof a->lse_stride},
                 {"mask", &a->mask_stride, &b->mask_stride, sizeof a->mask_stride},
                 {"bias", &a->bias_stride, &b->bias_stride, sizeof a->bias_stride},
                 {"page_table", &a->page_table_stride, &b->page_table_stride, sizeof a->page_table_stride},
                 {"state", &a->state_stride, &b->state_stride, sizeof a->state_stride}};
  const char *name = "scores";
  for (size_t i = sizeof strides / sizeof *strides; i-- > 0;)
    if (memcmp(strides[i].was, strides[i].is, strides[i].bytes) != 0) name = strides[i].name;
  PyErr_Format(PyExc_ValueError, "%s has other strides than the one that the plan was made for", name);
}

static bool fits(const bound *b, call *c) {
  const request *plan = planned_request(b->plan);
  c->wanted.default_threads = plan->default_threads; /* decided when the plan was made */
  if (memcmp(plan, &c->wanted, sizeof *plan) == 0) return true;
  tell_difference(plan, &c->wanted);
  return false;
}

/* max_seqlen of a plan is that of its examples: the largest that a run may have. */
static void keep_settings(bound *b) {
  const attn_problem *p = &planned_request(b->plan)->problem;
  if (!(p->uses & ATTN_USE_VARLEN)) return;
  b->set.max_seqlen[0] = p->seq_q;
  b->set.max_seqlen[1] = p->uses & ATTN_USE_PAGES ? 0 : p->seq_k;
}

static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  call c;
  const bound *b = PyCapsule_GetPointer(self, BOUND);
  call_init(&c, interpreter_of(b->self), false);
  bool done = call_sort(&c, "run", args, count, names, true);
  if (done) c.set = b->set;
  done = done && call_build(&c, true) && fits(b, &c) && compute(&c, b->plan);
  return call_finish(&c, done);
}

static PyMethodDef run_definition = {
    "run", (PyCFunction)(uintptr_t)run, METH_FASTCALL | METH_KEYWORDS,
    "run(q, k, v, *, out=None, lse=None, **arrays)\n--\n\nComputes the plan on these arrays."};

/* (run, address of the attn_plan) */
static PyObject *bind_plan(PyObject *self, planned *plan, const settings *set) {
  bound *b = malloc(sizeof *b);
  if (!b) return planned_release(plan), PyErr_NoMemory();
  *b = (bound){.set = *set, .plan = plan, .self = self};
  Py_IncRef(self);
  keep_settings(b);
  PyObject *capsule = PyCapsule_New(b, BOUND, release_bound);
  PyObject *function = capsule ? PyCFunction_NewEx(&run_definition, capsule, NULL) : NULL;
  if (capsule) Py_DecRef(capsule);
  PyObject *pair = function ? PyTuple_New(2) : NULL;
  if (!pair) return NULL;
  PyTuple_SetItem(pair, 0, function);
  PyTuple_SetItem(pair, 1, PyLong_FromVoidPtr((void *)(uintptr_t)planned_plan(plan)));
  return pair;
}

static PyObject *plan(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  call c;
  call_init(&c, interpreter_of(self), false);
  PyObject *result = NULL;
  bool done = call_sort(&c, "Plan", args, count, names, false) && call_read_settings(&c) && call_build(&c, false);
  if (done) {
    attn_status status;
    PyThreadState *python = PyEval_SaveThread();
    planned *made = planned_create(&c.wanted, &status);
    PyEval_RestoreThread(python);
    if (succeed(c.of, status)) result = bind_plan(self, made, &c.set);
  }
  c.set.return_lse = false;
  call_finish(&c, false);
  return result;
}

/* Why a kernel cannot take the call: None if it can. The kernel's name is `kernel`. */
static PyObject *why_not(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  call c;
  call_init(&c, interpreter_of(self), false);
  PyObject *result = NULL;
  if (call_sort(&c, "why_not", args, count, names, false) && call_read_settings(&c) && call_build(&c, false)) {
    const attn_kernel_info *kernel = c.set.kernel ? attn_kernel_find(c.set.kernel) : NULL;
    const attn_problem problem = planned_problem(&c.wanted);
    const char *reason = kernel ? attn_kernel_rejects(kernel, &problem) : "there is no kernel of that name";
    if (reason)
      result = PyUnicode_FromString(reason);
    else
      Py_IncRef(result = Py_None);
  }
  call_finish(&c, false);
  return result;
}

/* tune(address of an attn_tune_report, milliseconds, q, k, v, ...): times the kernels on these arrays. */
static attn_status tune_call(const call *c, long long milliseconds, attn_tune_report *report) {
  attn_problem problem = planned_problem(&c->wanted);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = c->wanted.kernel, .max_isa = c->wanted.max_isa,
                                           .threads = c->wanted.threads, .steady = c->wanted.steady);
  PyThreadState *python = PyEval_SaveThread();
  const attn_status status = attn_tune(&problem, &c->args, &options, (double)milliseconds / 1000, report);
  PyEval_RestoreThread(python);
  return status;
}

static PyObject *tune(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  call c;
  call_init(&c, interpreter_of(self), false);
  attn_tune_report *report = count > 1 ? PyLong_AsVoidPtr(args[0]) : NULL;
  const long long milliseconds = report ? PyLong_AsLongLong(args[1]) : 0;
  bool done = report && !PyErr_Occurred() && call_sort(&c, "tune", args + 2, count - 2, names, false) &&
              call_read_settings(&c) && call_build(&c, true) && succeed(c.of, tune_call(&c, milliseconds, report));
  c.set.return_lse = false;
  return call_finish(&c, done);
}

/* ---- Programs of XLA ------------------------------------------------------------------------------------------------- */

static PyObject *integers(int count, const int64_t *values) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

/* Makes the plan, so that a problem that has none is refused now. Sequences whose lengths are not known may be of any. */
static bool try_plan(const call *c, const compiled *made) {
  request wanted = c->wanted;
  attn_status status;
  if (made->longest[0]) wanted.problem.seq_q = wanted.problem.total_q;
  if (made->longest[1]) wanted.problem.seq_k = wanted.problem.total_k;
  PyThreadState *python = PyEval_SaveThread();
  planned_release(planned_get(&wanted, &status));
  PyEval_RestoreThread(python);
  return succeed(c->of, status);
}

/* (the names of the operands in their order, a `compiled` as integers) */
static PyObject *compile(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names, bool backward) {
  call c;
  compiled made;
  PyObject *result = NULL;
  call_init(&c, interpreter_of(self), backward);
  const bool read = call_sort(&c, backward ? "sdpa_grad" : "sdpa", args, count, names, false) && call_read_settings(&c);
  PyObject *operands = read ? compile_call(&c, &made) : NULL;
  if (operands && try_plan(&c, &made) && (result = PyTuple_New(2))) {
    int64_t numbers[sizeof made / 8];
    memcpy(numbers, &made, sizeof made);
    PyTuple_SetItem(result, 0, operands);
    PyTuple_SetItem(result, 1, integers(sizeof made / 8, numbers));
  }
  if (operands && !result) Py_DecRef(operands);
  call_finish(&c, false);
  return result;
}

static PyObject *compile_sdpa(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return compile(self, args, count, names, false);
}

static PyObject *compile_sdpa_grad(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  return compile(self, args, count, names, true);
}

/* ---- Small things ---------------------------------------------------------------------------------------------------- */

/* Holdings that Python keeps: they end with the capsule. */
static const char HELD[] = "libattn.held";

static void release_held(PyObject *capsule) {
  holdings *held = PyCapsule_GetPointer(capsule, HELD);
  holdings_release(held);
  free(held);
}

static PyObject *new_held(PyObject *self, holdings **held) {
  *held = calloc(1, sizeof **held);
  if (!*held) return PyErr_NoMemory();
  (*held)->of = interpreter_of(self)->arrays;
  PyObject *capsule = PyCapsule_New(*held, HELD, release_held);
  if (!capsule) free(*held);
  return capsule;
}

/* (address, what keeps it, dtype, shape, strides in elements) of an array, for the functions that ctypes calls.
 * view(array, name), or view(array, name, True) of an array that is written to. */
static PyObject *view(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  tensor t;
  holdings *held;
  PyObject *result = NULL, *keeper = new_held(self, &held);
  const char *name = count >= 2 ? PyUnicode_AsUTF8AndSize(args[1], NULL) : "the array";
  const bool written = count == 3 && PyObject_IsTrue(args[2]) > 0;
  if (keeper && name && tensor_read(args[0], name, held, &t) && (!written || tensor_writable(&t, name)) &&
      (result = PyTuple_New(5))) {
    PyTuple_SetItem(result, 0, PyLong_FromVoidPtr(t.data));
    Py_IncRef(keeper);
    PyTuple_SetItem(result, 1, keeper);
    PyTuple_SetItem(result, 2, PyUnicode_FromString(dtype_name(t.type)));
    PyTuple_SetItem(result, 3, integers(t.ndim, t.shape));
    PyTuple_SetItem(result, 4, integers(t.ndim, t.stride));
  }
  if (keeper) Py_DecRef(keeper);
  return result;
}

/* vector(array, name, whole, expected): (address, what keeps it) of so many numbers, int32 if they are whole, else float32.
 */
static PyObject *vector(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t found;
  holdings *held;
  PyObject *result = NULL, *keeper = count == 4 ? new_held(self, &held) : NULL;
  const char *name = keeper ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
  void *data =
      name ? read_vector(held, args[0], name, PyObject_IsTrue(args[2]) > 0, PyLong_AsLongLong(args[3]), "", &found) : NULL;
  if (data && (result = PyTuple_New(2))) {
    PyTuple_SetItem(result, 0, PyLong_FromVoidPtr(data));
    Py_IncRef(keeper);
    PyTuple_SetItem(result, 1, keeper);
  }
  if (keeper) Py_DecRef(keeper);
  return result;
}

/* A new array of the library that args[0] is from, of float32 or of its type. */
static PyObject *make_empty(PyObject *self, PyObject *const *args, Py_ssize_t count, bool float32) {
  holdings held = {.of = interpreter_of(self)->arrays};
  tensor like, made;
  int64_t shape[MOST_DIMS];
  PyObject *result = NULL;
  if (count < 1 || count > MOST_DIMS + 1)
    PyErr_SetString(PyExc_TypeError, "empty(like, n, ...) and alike() make arrays of at most 5 dimensions");
  else if (tensor_read(args[0], "the array", &held, &like)) {
    for (int i = 1; i < count; i++) shape[i - 1] = PyLong_AsLongLong(args[i]);
    if (!PyErr_Occurred()) result = tensor_new(&like, float32, (int)count - 1, shape, &held, &made);
  }
  holdings_release(&held);
  return result;
}

/* empty(like, n, ...): float32. */
static PyObject *empty(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  return make_empty(self, args, count, true);
}

/* alike(like, n, ...): the type of `like`. */
static PyObject *alike(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  return make_empty(self, args, count, false);
}

static PyObject *linear(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  return layers_bind_linear(interpreter_of(self), self, args, count);
}

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  return layers_bind_append(interpreter_of(self), self, args, count);
}

static PyObject *none(void) {
  Py_IncRef(Py_None);
  return Py_None;
}

static PyObject *forget(PyObject *self, PyObject *nothing) {
  (void)self, (void)nothing;
  planned_forget();
  return none();
}

static PyObject *count_plans(PyObject *self, PyObject *nothing) {
  int64_t counts[2];
  (void)self, (void)nothing;
  planned_count(&counts[0], &counts[1]);
  return integers(2, counts);
}

static PyObject *source(PyObject *self, PyObject *nothing) {
  (void)self, (void)nothing;
  return PyUnicode_FromString(threads_source());
}

static PyObject *refuse_openmp(PyObject *self, PyObject *yes) {
  (void)self;
  threads_refuse_openmp(PyObject_IsTrue(yes) > 0);
  return none();
}

/* ---- The table ------------------------------------------------------------------------------------------------------- */

static PyMethodDef definitions[] = {
    {"sdpa", (PyCFunction)(uintptr_t)sdpa, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sdpa_without_gradients", (PyCFunction)(uintptr_t)sdpa_without_gradients, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sdpa_grad", (PyCFunction)(uintptr_t)sdpa_grad, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sdpa_grad_of_tensors", (PyCFunction)(uintptr_t)sdpa_grad_of_tensors, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"plan", (PyCFunction)(uintptr_t)plan, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"compile_sdpa", (PyCFunction)(uintptr_t)compile_sdpa, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"compile_sdpa_grad", (PyCFunction)(uintptr_t)compile_sdpa_grad, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"why_not", (PyCFunction)(uintptr_t)why_not, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"tune", (PyCFunction)(uintptr_t)tune, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"view", (PyCFunction)(uintptr_t)view, METH_FASTCALL, NULL},
    {"vector", (PyCFunction)(uintptr_t)vector, METH_FASTCALL, NULL},
    {"empty", (PyCFunction)(uintptr_t)empty, METH_FASTCALL, NULL},
    {"alike", (PyCFunction)(uintptr_t)alike, METH_FASTCALL, NULL},
    {"linear", (PyCFunction)(uintptr_t)linear, METH_FASTCALL, NULL},
    {"append", (PyCFunction)(uintptr_t)append, METH_FASTCALL, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {"count_plans", count_plans, METH_NOARGS, NULL},
    {"thread_source", source, METH_NOARGS, NULL},
    {"refuse_openmp", refuse_openmp, METH_O, NULL},
};

const char *attn_python_keyword(int index) {
  static const char *const names[] = {
#define ATTN_KEYWORD(name) #name,
      ATTN_KEYWORDS(ATTN_KEYWORD)
#undef ATTN_KEYWORD
  };
  return index >= 0 && index < KEYWORDS ? names[index] : NULL;
}

const char *attn_python_headers(const int64_t **layouts, const int64_t **values, void (*const **functions)(void)) {
  *layouts = header_layouts;
  *values = header_values;
  *functions = header_functions;
  return header_text;
}

static void release_interpreter(PyObject *capsule) { interpreter_free(PyCapsule_GetPointer(capsule, INTERPRETER)); }

PyObject *attn_python_functions(PyObject *unsupported, PyObject *allocate, PyObject *spec, const char *sdpa_doc) {
  interpreter *of = interpreter_new(unsupported, allocate, spec);
  PyObject *self = of ? PyCapsule_New(of, INTERPRETER, release_interpreter) : NULL;
  if (!self) return NULL;
  if (!definitions[0].ml_doc) definitions[0].ml_doc = strdup(sdpa_doc); /* kept as long as the process */
  PyObject *functions = PyDict_New();
  for (size_t i = 0; functions && i < sizeof definitions / sizeof *definitions; i++) {
    PyObject *function = PyCFunction_NewEx(&definitions[i], self, NULL);
    if (!function || PyDict_SetItemString(functions, definitions[i].ml_name, function) != 0) return NULL;
    Py_DecRef(function);
  }
  Py_DecRef(self);
  return functions;
}
