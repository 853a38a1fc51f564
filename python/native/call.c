/* SPDX-License-Identifier: MIT */
#include "kernels/common/problem/operation.h" /* before call.h: it calls variables `dtype` */

#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "attn/extend.h"
#include "kernels/blocks.h"
#include "kernels/common/problem/arithmetic.h"
#include "src/registry/cpu.h"

static bool refuse(PyObject *kind, const char *sentence) {
  PyErr_SetString(kind, sentence);
  return false;
}

/* ---- Arguments by name ----------------------------------------------------------------------------------------------- */

static const char *const keyword_names[ALL_KEYWORDS] = {
#define ATTN_KEYWORD(name) #name,
    ATTN_KEYWORDS(ATTN_KEYWORD) ATTN_GRADIENT_KEYWORDS(ATTN_KEYWORD)
#undef ATTN_KEYWORD
};
static const char *const input_names[3] = {"q", "k", "v"};

/* The bits of attn_problem.uses, and the keywords that bring their arrays; `what` is in sentences of gradients. */
static const struct {
  uint32_t use;
  int key;
  const char *what;
} keyword_uses[] = {{ATTN_USE_LSE, KEY_lse, NULL},
                    {ATTN_USE_BIAS, KEY_bias, NULL},
                    {ATTN_USE_MASK, KEY_mask, NULL},
                    {ATTN_USE_KV_LEN, KEY_kv_len, NULL},
                    {ATTN_USE_Q_LEN, KEY_q_len, NULL},
                    {ATTN_USE_ROW_LEN, KEY_row_len, NULL},
                    {ATTN_USE_VARLEN, KEY_cu_seqlens_q, NULL},
                    {ATTN_USE_ALIBI, KEY_alibi, NULL},
                    {ATTN_USE_SINKS, KEY_sinks, NULL},
                    {ATTN_USE_SCORE_WEIGHT, KEY_score_weight, NULL},
                    {ATTN_USE_PAGES, KEY_page_table, "keys and values in pages"},
                    {ATTN_USE_STATE, KEY_state, "a state"},
                    {ATTN_USE_KV_SCALES, KEY_k_scale, "scaled keys"},
                    {ATTN_USE_KV_SCALES, KEY_v_scale, "scaled values"},
                    {ATTN_USE_KEY_BLOCKS, KEY_key_blocks, "lists of key blocks"}};
enum { KEYWORD_USES = sizeof keyword_uses / sizeof *keyword_uses };

const char *call_keyword(int key) { return keyword_names[key]; }

static bool intern(PyObject **interned, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (!(interned[i] = PyUnicode_InternFromString(names[i]))) return false;
  return true;
}

interpreter *interpreter_new(PyObject *unsupported, PyObject *allocate, PyObject *spec) {
  interpreter *of = calloc(1, sizeof *of);
  if (!of) return PyErr_NoMemory(), NULL;
  Py_IncRef(of->unsupported = unsupported);
  of->arrays = arrays_new(allocate, spec);
  if (of->arrays && intern(of->keyword, keyword_names, ALL_KEYWORDS) && intern(of->input, input_names, 3) &&
      (of->no = PyBool_FromLong(0)) && (of->yes = PyBool_FromLong(1)))
    return of;
  interpreter_free(of);
  return NULL;
}

void interpreter_free(interpreter *of) {
  for (int i = 0; i < ALL_KEYWORDS; i++)
    if (of->keyword[i]) Py_DecRef(of->keyword[i]);
  for (int i = 0; i < 3; i++)
    if (of->input[i]) Py_DecRef(of->input[i]);
  if (of->no) Py_DecRef(of->no);
  if (of->yes) Py_DecRef(of->yes);
  Py_DecRef(of->unsupported);
  arrays_free(of->arrays);
  free(of);
}

void call_init(call *c, const interpreter *of, bool backward) {
  memset(c, 0, offsetof(call, held));
  c->of = of;
  c->backward = backward;
  c->hint = "";
  holdings_start(&c->held, of->arrays);
  c->out = c->lse = NULL;
  c->runs_later = false;
  memset(c->gradient, 0, sizeof c->gradient);
}

/* Names in source code are interned, so that comparing addresses nearly always answers. */
static int find_name(PyObject *name, PyObject *const *interned_names, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (interned_names[i] == name) return i;
  for (int i = 0; i < count; i++)
    if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) return i;
  return -1;
}

static bool take_named(call *c, const char *function, PyObject *name, PyObject *value, bool only_arrays) {
  const int key = find_name(name, c->of->keyword, keyword_names, c->backward ? ALL_KEYWORDS : KEYWORDS);
  if (value == Py_None) value = NULL;
  if (key >= 0 && only_arrays && key > LAST_ARRAY) {
    PyErr_Format(PyExc_TypeError, "%s() takes no '%s': the plan has it", function, keyword_names[key]);
    return false;
  }
  const int input = key >= 0 ? -1 : find_name(name, c->of->input, input_names, 3);
  if (key < 0 && input < 0) {
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%s'", function,
                 PyUnicode_AsUTF8AndSize(name, NULL));
    return false;
  }
  PyObject **to = key >= 0 ? &c->given[key] : &c->input[input];
  if (*to) {
    PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", function,
                 key >= 0 ? keyword_names[key] : input_names[input]);
    return false;
  }
  *to = value;
  return true;
}

bool call_sort(call *c, const char *function, PyObject *const *args, Py_ssize_t count, PyObject *names, bool only_arrays) {
  PyObject **const forward[] = {&c->input[0], &c->input[1], &c->input[2]};
  PyObject **const backward[] = {&c->given[KEY_do], &c->input[0],       &c->input[1],
                                 &c->input[2],      &c->given[KEY_out], &c->given[KEY_lse]};
  PyObject **const *by_position = c->backward ? backward : forward;
  if (count > (c->backward ? 6 : 3)) {
    PyErr_Format(PyExc_TypeError, "%s() takes %s by position, but %d were given; name the others", function,
                 c->backward ? "do, q, k, v, out and lse" : "q, k and v", (int)count);
    return false;
  }
  for (Py_ssize_t i = 0; i < count; i++) *by_position[i] = args[i] == Py_None ? NULL : args[i];
  const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0; i < named; i++)
    if (!take_named(c, function, PyTuple_GetItem(names, i), args[count + i], only_arrays)) return false;
  return true;
}

/* ---- Settings -------------------------------------------------------------------------------------------------------- */

static bool read_int(PyObject *number, const char *name, int64_t least, int64_t most, int64_t *out) {
  PyObject *index = PyNumber_Index(number); /* CPython 3.9 would take 2.5 as 2 */
  const long long value = index ? PyLong_AsLongLong(index) : -1;
  if (index) Py_DecRef(index);
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R; it must be an integer of 64 bits", name, number);
    return false;
  }
  if (value < least || value > most) {
    PyErr_Format(PyExc_ValueError, "%s is %lld; it must be in %lld..%lld", name, value, (long long)least, (long long)most);
    return false;
  }
  *out = value;
  return true;
}

static bool read_float(PyObject *number, const char *name, float *out) {
  const double value = PyFloat_AsDouble(number);
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R; it must be a number", name, number);
    return false;
  }
  *out = (float)value;
  return true;
}

/* 64 bits, as a number with a sign or without one. */
static bool read_bits(PyObject *number, const char *name, uint64_t *out) {
  PyObject *index = PyNumber_Index(number);
  const long long value = index ? PyLong_AsLongLong(index) : -1;
  *out = (uint64_t)value;
  if (index && value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    *out = PyLong_AsUnsignedLongLong(index);
  }
  if (index) Py_DecRef(index);
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "%s is %R; it must be an integer of 64 bits", name, number);
  return false;
}

/* Which of the words the text is; -1 with an exception. */
static int read_word(PyObject *text, const char *name, const char *const *words, int count, const char *list) {
  const char *given = PyUnicode_AsUTF8AndSize(text, NULL);
  if (given)
    for (int i = 0; i < count; i++)
      if (strcmp(given, words[i]) == 0) return i;
  if (!given) PyErr_Clear();
  if (given)
    PyErr_Format(PyExc_ValueError, "%s is '%s'; it must be one of %s", name, given, list);
  else
    PyErr_Format(PyExc_TypeError, "%s must be one of %s", name, list);
  return -1;
}

static bool is_text(PyObject *object) {
  const bool text = PyUnicode_AsUTF8AndSize(object, NULL) != NULL;
  if (!text) PyErr_Clear();
  return text;
}

/* "top_left", "bottom_right", or an offset: one for all sequences, or an array of one each. */
static bool read_align(call *c, PyObject *given) {
  static const char *const words[] = {"top_left", "bottom_right"};
  settings *s = &c->set;
  if (is_text(given)) {
    const int word = read_word(given, "align", words, 2, "'top_left', 'bottom_right', an offset or an array of offsets");
    s->align = word == 1 ? ATTN_ALIGN_BOTTOM_RIGHT : ATTN_ALIGN_TOP_LEFT;
    return word >= 0;
  }
  s->align = ATTN_ALIGN_OFFSET;
  const long long offset = PyLong_AsLongLong(given);
  if (offset == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    c->given[KEY_offsets] = given;
    return true;
  }
  int64_t value;
  if (!read_int(given, "align", INT32_MIN, INT32_MAX, &value)) return false;
  s->fixed_offset = true;
  s->offset = (int32_t)value;
  return true;
}

static bool read_side(PyObject *window, int side, int64_t *out) {
  PyObject *item = PySequence_GetItem(window, side);
  const bool read = item && (item == Py_None || read_int(item, "window", -1, INT64_MAX, out));
  if (item) Py_DecRef(item);
  return read;
}

/* (left, right), None or -1 = open; a number is the same on both sides. */
static bool read_window(settings *s, PyObject *given) {
  if (PySequence_Check(given) && PySequence_Size(given) == 2)
    return read_side(given, 0, &s->window_left) && read_side(given, 1, &s->window_right);
  if (PySequence_Check(given)) return refuse(PyExc_ValueError, "window must be a number or (left, right)");
  const bool read = read_int(given, "window", -1, INT64_MAX, &s->window_left);
  s->window_right = s->window_left;
  return read;
}

/* (begin, end) of a piece; None = open. */
static bool read_keys(settings *s, PyObject *given) {
  if (!PySequence_Check(given) || PySequence_Size(given) != 2)
    return refuse(PyExc_ValueError, "keys must be (begin, end), the piece of the keys that is seen; None = open");
  PyObject *begin = PySequence_GetItem(given, 0), *end = PySequence_GetItem(given, 1);
  const bool read = begin && end && (begin == Py_None || read_int(begin, "keys", 0, INT64_MAX, &s->key_begin)) &&
                    (end == Py_None || read_int(end, "keys", 1, INT64_MAX, &s->key_end));
  if (begin) Py_DecRef(begin);
  if (end) Py_DecRef(end);
  return read;
}

static bool read_causal(settings *s, PyObject *given) {
  const int causal = PyObject_IsTrue(given);
  if (causal < 0) return false;
  if (causal) s->window_right = 0;
  return true;
}

static const char *const scores[] = {"dot", "additive", "gaussian", "precomputed"};
static const char *const layouts[] = {"bhsd", "bshd", "thd", "htd"};

/* Names are kept as the registry's own, so that equal names have equal addresses. An unknown one stays the caller's text,
 * for the library's sentence. */
static bool read_kernel(settings *s, PyObject *given) {
  const char *name = PyUnicode_AsUTF8AndSize(given, NULL);
  if (!name) return PyErr_Clear(), refuse(PyExc_TypeError, "kernel must be a name, as libattn.kernels() lists them");
  const attn_kernel_info *kernel = attn_kernel_find(name);
  s->kernel = kernel ? kernel->name : name;
  return true;
}

static bool read_max_isa(settings *s, PyObject *given) {
  const char *name = PyUnicode_AsUTF8AndSize(given, NULL);
  if (!name) return PyErr_Clear(), refuse(PyExc_TypeError, "max_isa must be the name of a tier");
  const int tier = attn_tier_find(name);
  s->max_isa = tier < 0 ? name : attn_tier_isa(tier);
  return true;
}

static bool read_out_dtype(settings *s, PyObject *given) {
  static const char *const words[] = {"float32", "same"};
  const int word = read_word(given, "out_dtype", words, 2, "'float32', 'same' (as q)");
  s->out_float32 = word == 0;
  return word >= 0;
}

static bool read_kv_format(settings *s, PyObject *given) {
  static const char *const words[] = {"q8_0", "q4_0"};
  const int word = read_word(given, "kv_format", words, 2, "'q8_0', 'q4_0'");
  s->kv_format = word == 0 ? DTYPE_Q8_0 : DTYPE_Q4_0;
  return word >= 0;
}

static bool read_setting(call *c, int key, PyObject *given) {
  settings *s = &c->set;
  int64_t number = 0;
  int word;
  switch (key) {
    case KEY_causal: return read_causal(s, given);
    case KEY_align: return read_align(c, given);
    case KEY_window: return read_window(s, given);
    case KEY_window_first: return read_int(given, "window_first", 0, INT64_MAX, &s->window_first);
    case KEY_keys: return read_keys(s, given);
    case KEY_mask_keys: return read_int(given, "mask_keys", 0, INT64_MAX, &s->mask_keys);
    case KEY_shared_prefix: return read_int(given, "shared_prefix", 0, INT64_MAX, &s->shared_prefix);
    case KEY_scale: s->default_scale = false; return read_float(given, "scale", &s->scale);
    case KEY_softcap: return read_float(given, "softcap", &s->softcap);
    case KEY_dropout: return read_float(given, "dropout", &s->dropout);
    case KEY_layout: return (s->layout = read_word(given, "layout", layouts, 4, "'bhsd', 'bshd', 'thd', 'htd'")) >= 0;
    case KEY_score:
      word = read_word(given, "score", scores, 4, "'dot', 'additive', 'gaussian', 'precomputed'");
      s->score = (attn_score)(word > 0 ? word : 0);
      return word >= 0;
    case KEY_max_seqlen_q: return read_int(given, "max_seqlen_q", 0, INT32_MAX, &s->max_seqlen[0]);
    case KEY_max_seqlen_k: return read_int(given, "max_seqlen_k", 0, INT32_MAX, &s->max_seqlen[1]);
    case KEY_kernel: return read_kernel(s, given);
    case KEY_max_isa: return read_max_isa(s, given);
    case KEY_threads:
      if (!read_int(given, "threads", 0, 4096, &number)) return false;
      s->threads = (int)number;
      return true;
    case KEY_steady: return (word = PyObject_IsTrue(given)) >= 0 && (s->steady = word, true);
    case KEY_out_dtype: return read_out_dtype(s, given);
    case KEY_kv_format: return read_kv_format(s, given);
    default: return (word = PyObject_IsTrue(given)) >= 0 && (s->return_lse = word, true);
  }
}

/* A window's right border and `causal` both name a border: the window is read first, and causal tightens it. */
bool call_read_settings(call *c) {
  c->set = (settings){.window_left = -1, .window_right = -1, .default_scale = true, .layout = -1, .kv_format = DTYPE_OTHER};
  if (c->given[KEY_window] && !read_setting(c, KEY_window, c->given[KEY_window])) return false;
  for (int key = LAST_ARRAY + 1; key < KEYWORDS; key++)
    if (c->given[key] && key != KEY_window && !read_setting(c, key, c->given[key])) return false;
  return true;
}

/* ---- Shapes: every tensor as [b][h][s][d] ---------------------------------------------------------------------------- */

typedef struct view {
  int64_t b, h, s, d; /* sizes */
  attn_strides stride;
} view;

/* Where b, h, s and d stand among the last dimensions; b may be left out, and with it h. */
static const struct {
  int b, h, s; /* dimensions counted from the end; d is the last */
  bool packed;
} places[] = {{4, 3, 2, false}, {4, 2, 3, false}, {0, 2, 3, true}, {0, 3, 2, true}};

static int64_t size_at(const tensor *t, int from_end) {
  return from_end > 0 && from_end <= t->ndim ? t->shape[t->ndim - from_end] : 1;
}
static int64_t stride_at(const tensor *t, int from_end) {
  return from_end > 0 && from_end <= t->ndim ? t->stride[t->ndim - from_end] : 0;
}

static bool view_of(const tensor *t, const char *name, int layout, view *out) {
  const bool packed = places[layout].packed;
  if (t->ndim < (packed ? 3 : 2) || t->ndim > (packed ? 3 : 4)) {
    PyErr_Format(PyExc_ValueError, "%s has %d dimensions; layout '%s' has %s", name, t->ndim, layouts[layout],
                 packed ? "3" : "4 (3 without b, 2 without b and h)");
    return false;
  }
  const int h = places[layout].h, s = t->ndim == 2 ? 2 : places[layout].s;
  const bool has_h = t->ndim > 2;
  *out = (view){.b = size_at(t, places[layout].b), .h = has_h ? size_at(t, h) : 1, .s = size_at(t, s), .d = size_at(t, 1)};
  out->stride = (attn_strides){
      .b = stride_at(t, places[layout].b), .h = has_h ? stride_at(t, h) : 0, .s = stride_at(t, s), .d = stride_at(t, 1)};
  return true;
}

/* The shape of an output with the sizes of `v` and as many dimensions as q has. */
static void shape_of(const view *v, int ndim, int layout, int64_t *shape) {
  shape[ndim - 1] = v->d;
  if (ndim == 2) shape[0] = v->s;
  if (ndim < 3) return;
  shape[ndim - places[layout].h] = v->h;
  shape[ndim - places[layout].s] = v->s;
  if (ndim == 4) shape[0] = v->b;
}

static bool agree(const char *name, const char *what, int64_t size, const char *other, int64_t expected) {
  if (size == expected) return true;
  PyErr_Format(PyExc_ValueError, "%s has %s %lld; %s has %lld", name, what, (long long)size, other, (long long)expected);
  return false;
}

/* ---- Arrays ---------------------------------------------------------------------------------------------------------- */

/* Bytes [..., blocks, bytes of a block] as elements [..., 32 blocks]. */
static bool take_blocks(const call *c, const char *name, tensor *t) {
  const int last = t->ndim - 1, bytes = (int)(c->set.kv_format == DTYPE_Q8_0 ? sizeof(attn_q8_0) : sizeof(attn_q4_0));
  if (t->type != DTYPE_U8)
    return PyErr_Format(PyExc_TypeError, "%s is %s; with kv_format '%s' it must be uint8", name, dtype_name(t->type),
                        dtype_name(c->set.kv_format)),
           false;
  if (last < 2 || t->shape[last] != bytes || t->stride[last] != 1 ||
      (t->shape[last - 1] > 1 && t->stride[last - 1] != bytes))
    return PyErr_Format(PyExc_ValueError,
                        "%s must be [..., blocks, %d] with kv_format '%s', the bytes of a row one behind the other", name,
                        bytes, dtype_name(c->set.kv_format)),
           false;
  for (int i = 0; i < last - 1; i++) {
    if (t->stride[i] % bytes)
      return PyErr_Format(PyExc_ValueError, "%s has a stride of %lld bytes; with kv_format '%s' it must be a multiple of %d",
                          name, (long long)t->stride[i], dtype_name(c->set.kv_format), bytes),
             false;
    t->stride[i] = t->stride[i] / bytes * ATTN_BLOCK_VALUES;
  }
  t->shape[last - 1] *= ATTN_BLOCK_VALUES;
  t->stride[last - 1] = 1;
  t->ndim--;
  t->type = c->set.kv_format;
  return true;
}

/* `of_keys`: k or v, which may have 8 bits or fewer. */
static bool read_typed(call *c, PyObject *object, const char *name, bool of_keys, tensor *t) {
  if (!tensor_read(object, name, &c->held, t)) return false;
  if (of_keys && c->set.kv_format != DTYPE_OTHER) return take_blocks(c, name, t);
  of_keys = of_keys && !c->backward;
  if (t->type <= (of_keys ? DTYPE_I8 : DTYPE_BF16)) return true;
  PyErr_Format(PyExc_TypeError, "%s is %s; it must be float32, float16 or bfloat16%s%s", name, dtype_name(t->type),
               of_keys ? ", or float8_e4m3fn, float8_e5m2 or int8" : "",
               of_keys && t->type == DTYPE_U8 ? "; bytes of blocks need kv_format" : "");
  return false;
}

/* An array that is broadcast to sizes[], as NumPy broadcasts: its last dimensions count, 1 stands for any. */
static bool broadcast(const tensor *t, const char *name, const char *const axes[4], const int64_t sizes[4], const char *hint,
                      attn_score_strides *stride) {
  int64_t steps[4] = {0};
  if (t->ndim > 4) return PyErr_Format(PyExc_ValueError, "%s has %d dimensions; it may have 4", name, t->ndim), false;
  for (int i = 0; i < t->ndim; i++) {
    const int axis = 4 - t->ndim + i;
    if (t->shape[i] != 1 && t->shape[i] != sizes[axis]) {
      PyErr_Format(PyExc_ValueError, "%s has %lld %s; it must have %lld, or 1 to broadcast%s", name, (long long)t->shape[i],
                   axes[axis], (long long)sizes[axis], hint);
      return false;
    }
    steps[axis] = t->shape[i] == 1 ? 0 : t->stride[i];
  }
  *stride = (attn_score_strides){steps[0], steps[1], steps[2], steps[3]};
  return true;
}

/* One of mask, bias and scores. */
static bool take_scores(call *c, int key, dtype type, const int64_t sizes[4], attn_score_strides *stride, const void *data) {
  tensor t;
  if (!c->given[key]) return true;
  if (!tensor_read(c->given[key], keyword_names[key], &c->held, &t)) return false;
  if (t.type != type && !(type == DTYPE_BOOL && (t.type == DTYPE_U8 || t.type == DTYPE_I8))) {
    PyErr_Format(PyExc_TypeError, "%s is %s; it must be %s", keyword_names[key], dtype_name(t.type),
                 type == DTYPE_F32 ? "float32" : "bool (what is added to the scores is a bias)");
    return false;
  }
  memcpy((void *)(uintptr_t)data, &t.data, sizeof t.data);
  static const char *const axes[] = {"batches", "heads", "queries", "keys"};
  return broadcast(&t, keyword_names[key], axes, sizes, c->hint, stride);
}

static int64_t elements(const tensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
  return count;
}

static bool is_dense(const tensor *t) {
  int64_t step = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] != 1 && t->stride[i] != step) return false;
    step *= t->shape[i];
  }
  return true;
}

static int64_t place_of(const tensor *t, int64_t index) {
  int64_t at = 0;
  for (int i = t->ndim - 1; i >= 0; i--) {
    at += index % t->shape[i] * t->stride[i];
    index /= t->shape[i];
  }
  return at;
}

static bool copy_element(const tensor *t, int64_t at, bool integers, void *to) {
  const char *from = t->data;
  int64_t number = 0;
  float value = 0;
  switch (t->type) {
    case DTYPE_I32: number = ((const int32_t *)from)[at]; break;
    case DTYPE_I64: number = ((const int64_t *)from)[at]; break;
    case DTYPE_F32: value = ((const float *)from)[at]; break;
    default: value = (float)((const double *)from)[at];
  }
  if (!integers) return memcpy(to, &value, sizeof value), true;
  if (number < INT32_MIN || number > INT32_MAX) return false;
  const int32_t narrow = (int32_t)number;
  return memcpy(to, &narrow, sizeof narrow), true;
}

/* Dense int32 or float32 of a short array: itself, or a copy of what is strided or has another width. */
static void *dense_copy(holdings *held, const tensor *t, const char *name, bool integers) {
  const dtype narrow = integers ? DTYPE_I32 : DTYPE_F32, wide = integers ? DTYPE_I64 : DTYPE_F64;
  if (t->type == narrow && is_dense(t) && t->data) return t->data;
  if (t->type != narrow && t->type != wide) {
    PyErr_Format(PyExc_TypeError, "%s is %s; it must be %s", name, dtype_name(t->type), integers ? "int32" : "float32");
    return NULL;
  }
  const int64_t count = elements(t);
  char *copy = holdings_alloc(held, (size_t)count * 4);
  if (copy && !t->data) return memset(copy, 0, (size_t)count * 4); /* a Spec */
  for (int64_t i = 0; copy && i < count; i++)
    if (!copy_element(t, place_of(t, i), integers, copy + 4 * i)) {
      PyErr_Format(PyExc_ValueError, "%s has a number beyond 32 bits", name);
      return NULL;
    }
  return copy;
}

static bool sequence_item(PyObject *list, Py_ssize_t at, const char *name, bool integers, void *to) {
  PyObject *item = PySequence_GetItem(list, at);
  int64_t number = 0;
  float value = 0;
  bool read = item && (integers ? read_int(item, name, INT32_MIN, INT32_MAX, &number) : read_float(item, name, &value));
  if (item) Py_DecRef(item);
  const int32_t narrow = (int32_t)number;
  memcpy(to, integers ? (const void *)&narrow : (const void *)&value, 4);
  return read;
}

static void *list_copy(holdings *held, PyObject *list, const char *name, bool integers, int64_t *count) {
  if (!PySequence_Check(list) || (*count = PySequence_Size(list)) < 0) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R; it must be an array or a list of numbers", name, list);
    return NULL;
  }
  char *copy = holdings_alloc(held, (size_t)*count * 4);
  for (int64_t i = 0; copy && i < *count; i++)
    if (!sequence_item(list, i, name, integers, copy + 4 * i)) return NULL;
  return copy;
}

void *read_vector(holdings *held, PyObject *given, const char *name, bool integers, int64_t expected, const char *hint,
                  int64_t *count) {
  void *data;
  if (tensor_is_array(given, held)) {
    tensor t;
    if (!tensor_read(given, name, held, &t)) return NULL;
    *count = elements(&t);
    data = dense_copy(held, &t, name, integers);
  } else {
    data = list_copy(held, given, name, integers, count);
  }
  if (data && expected >= 0 && *count != expected) {
    PyErr_Format(PyExc_ValueError, "%s has %lld elements; it must have %lld%s", name, (long long)*count, (long long)expected,
                 hint);
    return NULL;
  }
  return data;
}

static void *take_vector(call *c, int key, bool integers, int64_t expected, int64_t *count) {
  return read_vector(&c->held, c->given[key], keyword_names[key], integers, expected, c->hint, count);
}

static bool take_numbers(call *c, int key, bool integers, int64_t expected, uint32_t use, const void *field) {
  int64_t count;
  if (!c->given[key]) return true;
  void *data = take_vector(c, key, integers, expected, &count);
  if (!data) return false;
  memcpy((void *)(uintptr_t)field, &data, sizeof data);
  c->wanted.problem.uses |= use;
  return true;
}

/* ---- Putting it together --------------------------------------------------------------------------------------------- */

/* Pages hold keys that are not packed: only queries have borders then. */
static bool take_borders(call *c, int64_t total_q, int64_t total_k) {
  attn_problem *p = &c->wanted.problem;
  const bool paged = c->given[KEY_page_table];
  int64_t count_q, count_k;
  if (!c->given[KEY_cu_seqlens_q] || (!paged && !c->given[KEY_cu_seqlens_k]))
    return refuse(PyExc_ValueError, "packed sequences need both cu_seqlens_q and cu_seqlens_k");
  c->args.cu_seqlens_q = take_vector(c, KEY_cu_seqlens_q, true, -1, &count_q);
  if (!c->args.cu_seqlens_q) return false;
  if (!paged && !(c->args.cu_seqlens_k = take_vector(c, KEY_cu_seqlens_k, true, count_q, &count_k))) return false;
  if (count_q < 1) return refuse(PyExc_ValueError, "cu_seqlens_q is empty; it must have one element more than sequences");
  p->uses |= ATTN_USE_VARLEN;
  p->batch = count_q - 1;
  p->total_q = total_q;
  p->seq_q = c->set.max_seqlen[0] ? c->set.max_seqlen[0] : args_longest(c->args.cu_seqlens_q, p->batch);
  if (paged) return true;
  p->total_k = total_k;
  p->seq_k = c->set.max_seqlen[1] ? c->set.max_seqlen[1] : args_longest(c->args.cu_seqlens_k, p->batch);
  return true;
}

/* Refuses arguments that do not go with page_table. */
static bool check_paged(const call *c) {
  if (c->set.score == ATTN_SCORE_PRECOMPUTED)
    return refuse(PyExc_ValueError, "page_table is given with score 'precomputed'; it must be None, as there is no k");
  if (c->given[KEY_cu_seqlens_k] || c->set.max_seqlen[1])
    return PyErr_Format(PyExc_ValueError, "%s is given with page_table; it must be None, as kv_len and the columns say it",
                        c->given[KEY_cu_seqlens_k] ? "cu_seqlens_k" : "max_seqlen_k"),
           false;
  return c->given[KEY_kv_len] ||
         refuse(PyExc_ValueError, "page_table is given without kv_len; pages do not say how many keys a sequence has");
}

/* k and v in pages stand as [pages][heads][page_tokens][dim], whatever the layout of q. */
static bool view_of_pages(const tensor *t, const char *name, view *out) {
  if (t->ndim == 4) return view_of(t, name, 0, out);
  PyErr_Format(PyExc_ValueError, "%s has %d dimensions; with page_table it must be [pages, heads_kv, page_tokens, dim]",
               name, t->ndim);
  return false;
}

/* Blocks say a head dimension up to a multiple of 32: k's is that of q, and so is v's if it has as many blocks. */
static void take_dims(const call *c, view v[3]) {
  const int64_t dim = v[0].d, blocks = v[1].d;
  if (c->set.kv_format == DTYPE_OTHER || round_up(dim, ATTN_BLOCK_VALUES) != blocks) return;
  v[1].d = dim;
  if (v[2].d == blocks) v[2].d = dim;
}

/* q, k and v, and the sizes that they give. */
static bool take_inputs(call *c, int layout, tensor t[3], view v[3]) {
  const bool paged = c->given[KEY_page_table];
  for (int i = 0; i < 3; i++) {
    const char *name = input_names[i];
    if (!c->input[i]) return PyErr_Format(PyExc_TypeError, "%s is missing", name), false;
    if (!read_typed(c, c->input[i], name, i > 0, &t[i])) return false;
    if (!(i && paged ? view_of_pages(&t[i], name, &v[i]) : view_of(&t[i], name, layout, &v[i]))) return false;
  }
  take_dims(c, v);
  if (t[0].ndim == 3 && !places[layout].packed)
    c->hint = "; q has 3 dimensions, and the first two are heads and tokens: if they are batch and tokens, give q[:, None]";
  if (!paged && !(agree("k", "batch", v[1].b, "q", v[0].b) && agree("v", "batch", v[2].b, "q", v[0].b))) return false;
  return (!paged || agree("v", "pages", v[2].b, "k", v[1].b)) && agree("v", "heads", v[2].h, "k", v[1].h) &&
         agree("v", paged ? "page_tokens" : "tokens", v[2].s, "k", v[1].s) && agree("k", "head_dim", v[1].d, "q", v[0].d);
}

/* Precomputed scores stand in for q and k: sizes come from them. */
static bool take_scores_and_values(call *c, int layout, tensor t[3], view v[3]) {
  tensor s;
  if (c->input[0] || c->input[1]) return refuse(PyExc_TypeError, "score 'precomputed' reads scores; q and k must be None");
  if (!c->given[KEY_scores] || !c->input[2]) return refuse(PyExc_TypeError, "score 'precomputed' needs scores and v");
  if (!tensor_read(c->given[KEY_scores], "scores", &c->held, &s)) return false;
  if (s.ndim < 2) return refuse(PyExc_ValueError, "scores must have 2, 3 or 4 dimensions: [b][h][q][k]");
  if (!read_typed(c, c->input[2], "v", true, &t[2]) || !view_of(&t[2], "v", layout, &v[2])) return false;
  t[0] = t[1] = t[2];
  t[0].data = t[1].data = NULL;
  if (t[0].type > DTYPE_BF16) t[0].type = DTYPE_F32;
  v[0] = v[1] = (view){.b = v[2].b, .h = size_at(&s, 3), .s = size_at(&s, 2), .d = 1, .stride = {0}};
  v[1].h = v[2].h;
  v[1].s = v[2].s;
  return true; /* broadcast() compares the other sizes */
}

static bool same_types(const tensor t[3]) {
  if (t[1].type != t[2].type)
    return PyErr_Format(PyExc_TypeError, "k is %s and v is %s; they must have one dtype", dtype_name(t[1].type),
                        dtype_name(t[2].type)),
           false;
  if (t[0].type != DTYPE_F32 && t[0].type != t[1].type && t[1].type <= DTYPE_BF16)
    return PyErr_Format(PyExc_TypeError, "q is %s and k is %s; q must be float32 or as k", dtype_name(t[0].type),
                        dtype_name(t[1].type)),
           false;
  return true;
}

static void fill_problem(call *c, const tensor t[3], const view v[3]) {
  attn_problem *p = &c->wanted.problem;
  const settings *s = &c->set;
  p->struct_size = sizeof *p;
  p->heads_q = v[0].h;
  p->heads_kv = v[1].h;
  p->dim_qk = v[0].d;
  p->dim_v = v[2].d;
  p->dtype_q = (attn_dtype)t[0].type;
  p->dtype_kv = (attn_dtype)t[1].type;
  p->q_stride = v[0].stride;
  p->k_stride = v[1].stride;
  p->v_stride = v[2].stride;
  p->score = s->score;
  p->scale = s->default_scale ? 0 : s->scale;
  p->softcap = s->softcap;
  p->dropout = s->dropout;
  p->align = c->given[KEY_offsets] ? ATTN_ALIGN_OFFSET : s->align;
  p->window_left = s->window_left;
  p->window_right = s->window_right;
  p->window_first = s->window_first;
  p->key_begin = s->key_begin;
  p->key_end = s->key_end;
  p->mask_keys = s->mask_keys;
  p->shared_prefix = s->shared_prefix;
  c->wanted.default_scale = s->default_scale;
  c->wanted.threads = s->threads;
  c->wanted.default_threads = s->threads ? 0 : attn_parallel_default_threads();
  c->wanted.kernel = s->kernel;
  c->wanted.max_isa = s->max_isa;
  c->wanted.steady = s->steady;
}

/* A table of int32 whose rows are dense is read where it lies. */
static bool take_page_table(call *c, const view *k) {
  attn_problem *p = &c->wanted.problem;
  tensor t;
  if (!tensor_read(c->given[KEY_page_table], "page_table", &c->held, &t)) return false;
  if (t.ndim != 2)
    return PyErr_Format(PyExc_ValueError, "page_table has %d dimensions; it must be [batch, columns]", t.ndim), false;
  if (!agree("page_table", "batch", t.shape[0], c->given[KEY_cu_seqlens_q] ? "cu_seqlens_q" : "q", p->batch)) return false;
  const bool in_place = t.type == DTYPE_I32 && t.data && t.stride[0] >= 0 && (t.stride[1] == 1 || t.shape[1] <= 1);
  c->args.page_table = in_place ? (void *)t.data : dense_copy(&c->held, &t, "page_table", true);
  p->page_table_stride = in_place ? t.stride[0] : t.shape[1];
  p->page_tokens = k->s;
  p->pages = k->b;
  p->seq_k = t.shape[1] * k->s;
  p->uses |= ATTN_USE_PAGES;
  return c->args.page_table;
}

/* The library would name seq_k, which is not among the arguments here. */
static bool check_columns(const call *c) {
  const attn_problem *p = &c->wanted.problem;
  if (!(p->uses & ATTN_USE_PAGES) || p->page_tokens < 1) return true;
  for (int64_t b = 0; b < p->batch; b++)
    if (c->args.kv_len[b] > p->seq_k) {
      const long long tokens = p->page_tokens, length = c->args.kv_len[b];
      PyErr_Format(PyExc_ValueError,
                   "page_table has %lld columns of %lld tokens; kv_len[%lld] is %lld, for which it must have %lld",
                   (long long)p->seq_k / tokens, tokens, (long long)b, length, (length - 1) / tokens + 1);
      return false;
    }
  return true;
}

static bool take_offsets(call *c) {
  const attn_problem *p = &c->wanted.problem;
  if (c->given[KEY_offsets]) return take_numbers(c, KEY_offsets, true, p->batch, 0, &c->args.offsets);
  if (!c->set.fixed_offset) return true;
  int32_t *offsets = holdings_alloc(&c->held, (size_t)(p->batch ? p->batch : 1) * sizeof *offsets);
  for (int64_t b = 0; offsets && b < p->batch; b++) offsets[b] = c->set.offset;
  c->args.offsets = offsets;
  return offsets;
}

static bool take_score_weight(call *c) {
  attn_problem *p = &c->wanted.problem;
  tensor t;
  if (!c->given[KEY_score_weight]) return true;
  if (!tensor_read(c->given[KEY_score_weight], "score_weight", &c->held, &t)) return false;
  const bool per_head = t.ndim == 2;
  if (t.ndim < 1 || t.ndim > 2 || t.shape[t.ndim - 1] != p->dim_qk || (per_head && t.shape[0] != p->heads_q))
    return refuse(PyExc_ValueError, "score_weight must be [dim] or [heads][dim]");
  c->args.score_weight = dense_copy(&c->held, &t, "score_weight", false);
  p->score_weight_stride_h = per_head ? p->dim_qk : 0;
  p->uses |= ATTN_USE_SCORE_WEIGHT;
  return c->args.score_weight;
}

/* Strides of an array of factors with four dimensions, the last of which is of channels. */
static bool take_channels(const call *c, const tensor *t, int key, attn_strides *stride) {
  const attn_problem *p = &c->wanted.problem;
  const bool paged = p->uses & ATTN_USE_PAGES, packed = c->given[KEY_cu_seqlens_k];
  const char *const axes[] = {paged ? "pages" : "batches", "kv_heads", paged ? "page_tokens" : "keys", "channels"};
  const int64_t sizes[4] = {packed  ? 1
                            : paged ? p->pages
                                    : p->batch,
                            p->heads_kv,
                            packed  ? 1
                            : paged ? p->page_tokens
                                    : p->seq_k,
                            key == KEY_k_scale ? p->dim_qk : p->dim_v};
  attn_score_strides steps;
  if (!broadcast(t, keyword_names[key], axes, sizes, "", &steps)) return false;
  *stride = (attn_strides){.b = steps.b, .h = steps.h, .s = steps.q, .d = steps.k};
  const int axis = steps.q ? 2 : 0;
  if (!steps.k || (!steps.q && !(paged && steps.b))) return true;
  PyErr_Format(PyExc_ValueError,
               "%s has factors of channels for %lld %s; they must be the same for all, [%s, kv_heads, 1, %s]",
               keyword_names[key], (long long)t->shape[axis], axes[axis], paged ? "1" : "batch",
               key == KEY_k_scale ? "dim" : "dim of v");
  return false;
}

/* Factors of keys or values: a number, or an array that is broadcast to the heads and tokens of k and v, and their channels.
 */
static bool take_scale(call *c, int key, attn_strides *stride, const float **field) {
  attn_problem *p = &c->wanted.problem;
  PyObject *given = c->given[key];
  const bool paged = p->uses & ATTN_USE_PAGES;
  const int64_t sizes[4] = {1, paged ? p->pages : p->batch, p->heads_kv, paged ? p->page_tokens : p->seq_k};
  tensor t;
  attn_score_strides steps;
  if (!given) return true;
  p->uses |= ATTN_USE_KV_SCALES;
  *stride = (attn_strides){0};
  const double number = PySequence_Check(given) ? 0 : PyFloat_AsDouble(given);
  if (!PySequence_Check(given) && !PyErr_Occurred()) {
    float *one = holdings_alloc(&c->held, sizeof *one);
    *field = one;
    if (one) *one = (float)number;
    return one;
  }
  PyErr_Clear(); /* an array, or what stands for one */
  if (!tensor_read(given, keyword_names[key], &c->held, &t)) return false;
  if (t.type != DTYPE_F32)
    return PyErr_Format(PyExc_TypeError, "%s is %s; it must be float32", keyword_names[key], dtype_name(t.type)), false;
  if (t.ndim > 4 || (t.ndim && t.ndim < 4 && c->given[KEY_cu_seqlens_k]))
    return PyErr_Format(
               PyExc_ValueError, "%s has %d dimensions; it must be a number%s", keyword_names[key], t.ndim,
               t.ndim > 4
                   ? ", or [batch, kv_heads, keys], with pages [pages, kv_heads, page_tokens], or [batch, kv_heads, 1, dim]"
                   : " or [1, kv_heads, 1, dim] where keys are packed"),
           false;
  *field = (const float *)t.data;
  if (t.ndim == 4) return take_channels(c, &t, key, stride);
  const char *const axes[] = {"", paged ? "pages" : "batches", "kv_heads", paged ? "page_tokens" : "keys"};
  if (!broadcast(&t, keyword_names[key], axes, sizes, "", &steps)) return false;
  *stride = (attn_strides){.b = steps.h, .h = steps.q, .s = steps.k};
  return true;
}

/* Both or none; one of them alone leaves the other 1. */
static bool take_scales(call *c) {
  attn_problem *p = &c->wanted.problem;
  if (!take_scale(c, KEY_k_scale, &p->k_scale_stride, &c->args.k_scale) ||
      !take_scale(c, KEY_v_scale, &p->v_scale_stride, &c->args.v_scale))
    return false;
  args_complete_scales(p, &c->args);
  return true;
}

/* ---- Lists of key blocks --------------------------------------------------------------------------------------------- */

/* An attribute of key_blocks, which its sentences call by this name. NULL with an exception, or, where it may be missing,
 * without. */
static PyObject *attribute_of(call *c, const char *name, bool may_be_none) {
  PyObject *object = PyObject_GetAttrString(c->given[KEY_key_blocks], name);
  if (!object) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "key_blocks has no %s; it must be a libattn.KeyBlocks or PyTorch's BlockMask", name);
    return NULL;
  }
  if (!holdings_keep(&c->held, object)) return NULL;
  if (object != Py_None) return object;
  if (!may_be_none) PyErr_Format(PyExc_TypeError, "key_blocks.%s is None; it must be an array of int32", name);
  return NULL;
}

/* BLOCK_SIZE: (queries, keys). */
static bool read_block_size(call *c, int64_t size[2]) {
  static const char name[] = "key_blocks.BLOCK_SIZE";
  PyObject *given = attribute_of(c, "BLOCK_SIZE", false);
  if (!given) return false;
  if (!PySequence_Check(given) || PySequence_Size(given) != 2)
    return refuse(PyExc_ValueError, "key_blocks.BLOCK_SIZE must be (queries, keys)");
  for (int i = 0; i < 2; i++) {
    PyObject *item = PySequence_GetItem(given, i);
    const bool read = item && read_int(item, name, 1, INT32_MAX, &size[i]);
    if (item) Py_DecRef(item);
    if (!read) return false;
  }
  return true;
}

/* Lists, or their numbers of entries: [batch][heads_kv][blocks of queries] and entries, where `entries` is not NULL, each of
 * batch and heads_kv or 1. */
static bool take_lists(call *c, const char *attribute, PyObject *given, attn_strides *stride, int64_t *entries,
                       const int32_t **field) {
  const attn_problem *p = &c->wanted.problem;
  const int64_t blocks = p->block_queries > 0 ? (p->seq_q + p->block_queries - 1) / p->block_queries : 0;
  const int64_t sizes[] = {p->batch, p->heads_kv, blocks};
  static const char *const axes[] = {"batches", "KV heads", "blocks of queries"};
  char name[40];
  tensor t;
  snprintf(name, sizeof name, "key_blocks.%s", attribute);
  if (!tensor_read(given, name, &c->held, &t)) return false;
  if (t.ndim != (entries ? 4 : 3))
    return PyErr_Format(PyExc_ValueError, "%s has %d dimensions; it must be [batch, kv_heads, blocks of queries%s]", name,
                        t.ndim, entries ? ", entries" : ""),
           false;
  for (int i = 0; i < 3; i++)
    if (t.shape[i] != sizes[i] && !(i < 2 && t.shape[i] == 1))
      return PyErr_Format(PyExc_ValueError, "%s has %lld %s; it must have %lld%s", name, (long long)t.shape[i], axes[i],
                          (long long)sizes[i], i < 2 ? ", or 1 to broadcast" : ""),
             false;
  const int64_t row = entries ? t.shape[3] : 1;
  *stride = (attn_strides){.b = t.shape[0] == 1 ? 0 : t.shape[1] * t.shape[2] * row,
                           .h = t.shape[1] == 1 ? 0 : t.shape[2] * row,
                           .s = row,
                           .d = 1};
  if (entries) *entries = row;
  *field = dense_copy(&c->held, &t, name, true);
  return *field;
}

/* No list is longer than the array of entries. */
static bool check_counts(const call *c, const char *name, const int32_t *counts, const attn_strides *stride,
                         int64_t entries) {
  const attn_problem *p = &c->wanted.problem;
  const int64_t lists =
      (stride->b ? p->batch : 1) * (stride->h ? p->heads_kv : 1) * ((p->seq_q + p->block_queries - 1) / p->block_queries);
  for (int64_t n = 0; n < lists; n++)
    if (counts[n] > entries)
      return PyErr_Format(PyExc_ValueError, "key_blocks.%s has a %ld; its lists have room for %lld entries", name,
                          (long)counts[n], (long long)entries),
             false;
  return true;
}

/* One of the two kinds of lists; both have the same strides. */
static bool take_kind(call *c, bool full, PyObject *counts, PyObject *indices) {
  attn_problem *p = &c->wanted.problem;
  const char *const names[] = {full ? "full_kv_num_blocks" : "kv_num_blocks", full ? "full_kv_indices" : "kv_indices"};
  attn_strides of_counts, of_entries;
  int64_t entries;
  if (!take_lists(c, names[0], counts, &of_counts, NULL, full ? &c->args.full_kv_num_blocks : &c->args.kv_num_blocks) ||
      !take_lists(c, names[1], indices, &of_entries, &entries, full ? &c->args.full_kv_indices : &c->args.kv_indices) ||
      !check_counts(c, names[0], full ? c->args.full_kv_num_blocks : c->args.kv_num_blocks, &of_counts, entries))
    return false;
  if (full && (memcmp(&of_counts, &p->kv_num_blocks_stride, sizeof of_counts) != 0 ||
               memcmp(&of_entries, &p->kv_indices_stride, sizeof of_entries) != 0))
    return refuse(PyExc_ValueError,
                  "key_blocks.full_kv_num_blocks and full_kv_indices must have the shapes of "
                  "kv_num_blocks and kv_indices");
  p->kv_num_blocks_stride = of_counts;
  p->kv_indices_stride = of_entries;
  p->uses |= full ? ATTN_USE_FULL_KEY_BLOCKS : ATTN_USE_KEY_BLOCKS;
  return true;
}

static bool take_key_blocks(call *c) {
  attn_problem *p = &c->wanted.problem;
  int64_t size[2];
  if (!c->given[KEY_key_blocks]) return true;
  if (!read_block_size(c, size)) return false;
  p->block_queries = size[0];
  p->block_keys = size[1];
  PyObject *counts = attribute_of(c, "kv_num_blocks", false);
  PyObject *indices = counts ? attribute_of(c, "kv_indices", false) : NULL;
  if (!indices || !take_kind(c, false, counts, indices)) return false;
  counts = attribute_of(c, "full_kv_num_blocks", true);
  if (!counts) return !PyErr_Occurred();
  indices = attribute_of(c, "full_kv_indices", false);
  return indices && take_kind(c, true, counts, indices);
}

/* A plan has the probability alone: `now` is false where nothing is computed. */
static bool take_dropout(call *c, bool now) {
  if (c->given[KEY_seed] && !read_bits(c->given[KEY_seed], "seed", &c->args.seed)) return false;
  if (c->given[KEY_offset] && !read_bits(c->given[KEY_offset], "offset", &c->args.offset)) return false;
  return !now || c->set.dropout == 0 || c->given[KEY_seed] ||
         refuse(PyExc_ValueError, "seed is missing; dropout needs an integer that says which elements are dropped");
}

static bool take_options(call *c) {
  attn_problem *p = &c->wanted.problem;
  const int64_t sizes[4] = {p->batch, p->heads_q, p->seq_q, p->seq_k};
  const int64_t of_mask[4] = {p->batch, p->heads_q, p->seq_q, p->mask_keys > 0 ? p->mask_keys : p->seq_k};
  if (c->given[KEY_mask]) p->uses |= ATTN_USE_MASK;
  if (c->given[KEY_bias]) p->uses |= ATTN_USE_BIAS;
  return take_scores(c, KEY_mask, DTYPE_BOOL, of_mask, &p->mask_stride, &c->args.mask) &&
         take_scores(c, KEY_bias, DTYPE_F32, sizes, &p->bias_stride, &c->args.bias) &&
         take_scores(c, KEY_scores, DTYPE_F32, sizes, &p->scores_stride, &c->args.scores) &&
         take_numbers(c, KEY_kv_len, true, p->batch, ATTN_USE_KV_LEN, &c->args.kv_len) && check_columns(c) &&
         take_numbers(c, KEY_q_len, true, p->batch, ATTN_USE_Q_LEN, &c->args.q_len) &&
         take_numbers(c, KEY_row_len, true, p->batch * p->seq_q, ATTN_USE_ROW_LEN, &c->args.row_len) &&
         take_numbers(c, KEY_alibi, false, p->heads_q, ATTN_USE_ALIBI, &c->args.alibi_slopes) &&
         take_numbers(c, KEY_sinks, false, p->heads_q, ATTN_USE_SINKS, &c->args.sinks) && take_offsets(c) &&
         take_score_weight(c) && take_scales(c) && take_key_blocks(c);
}

/* ---- Outputs --------------------------------------------------------------------------------------------------------- */

/* An output that is described and not made: dense, of the shape. */
static void describe_dense(int ndim, const int64_t *shape, dtype type, tensor *out) {
  *out = (tensor){.ndim = ndim, .type = type};
  int64_t step = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    out->shape[i] = shape[i];
    out->stride[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
}

/* The output that is given under `key`, or a new one, into *owned. sdpa_grad() reads what is given as out and lse. */
static bool take_output(call *c, int key, const tensor *like, bool float32, int ndim, const int64_t *shape, bool make,
                        PyObject **owned, tensor *out) {
  if (c->given[key]) {
    Py_IncRef(*owned = c->given[key]);
    return tensor_read(*owned, keyword_names[key], &c->held, out) &&
           ((c->backward && key <= LAST_ARRAY) || tensor_writable(out, keyword_names[key]));
  }
  if (!make) return describe_dense(ndim, shape, float32 ? DTYPE_F32 : like->type, out), true;
  if (!(*owned = tensor_new(like, float32, ndim, shape, &c->held, out))) return false;
  args_clear_padding(&c->wanted.problem, &c->args, key == KEY_lse, out->data, elements(out), out->type == DTYPE_F32 ? 4 : 2);
  return true;
}

enum { MOST_SHAPE_TEXT = 24 * MOST_DIMS };

/* "(2, 8, 10)" */
static const char *shape_text(char text[MOST_SHAPE_TEXT], int ndim, const int64_t *shape) {
  int used = sprintf(text, "(");
  for (int i = 0; i < ndim; i++) used += sprintf(text + used, i ? ", %lld" : "%lld", (long long)shape[i]);
  strcpy(text + used, ")");
  return text;
}

static bool same_shape(const char *name, const tensor *t, int ndim, const int64_t *shape) {
  bool same = t->ndim == ndim;
  for (int i = 0; same && i < ndim; i++) same = t->shape[i] == shape[i];
  char given[MOST_SHAPE_TEXT], right[MOST_SHAPE_TEXT];
  if (!same)
    PyErr_Format(PyExc_ValueError, "%s has shape %s; it must have %s", name, shape_text(given, t->ndim, t->shape),
                 shape_text(right, ndim, shape));
  return same;
}

static bool take_o(call *c, int layout, const tensor t[3], const view *sizes, bool make) {
  attn_problem *p = &c->wanted.problem;
  const bool given_scores = p->score == ATTN_SCORE_PRECOMPUTED;
  int64_t shape[MOST_DIMS];
  tensor o;
  view ov;
  const tensor *like = &t[given_scores ? 2 : 0];
  const bool float32 = c->set.out_float32 || like->type > DTYPE_BF16;
  const int ndim = like->ndim;
  shape_of(sizes, ndim, layout, shape);
  if (!take_output(c, KEY_out, like, float32, ndim, shape, make, &c->out, &o)) return false;
  if (!same_shape("out", &o, ndim, shape) || !view_of(&o, "out", layout, &ov)) return false;
  if (o.type != DTYPE_F32 && o.type != t[0].type)
    return PyErr_Format(PyExc_TypeError, "out is %s; it must be float32 or as q", dtype_name(o.type)), false;
  p->dtype_o = (attn_dtype)o.type;
  p->o_stride = ov.stride;
  c->args.o = o.data;
  return true;
}

/* The shape of an lse, without the dimensions that q has not: [b][h][q], or [h][tokens] of packed sequences. */
typedef struct row_shape {
  int ndim;
  int64_t size[MOST_DIMS];
} row_shape;

static row_shape rows_of(const call *c, const tensor t[3], const view v[3]) {
  const bool given_scores = c->wanted.problem.score == ATTN_SCORE_PRECOMPUTED;
  const int64_t all[3] = {v[0].b, v[0].h, v[0].s};
  row_shape rows = {.ndim = t[given_scores ? 2 : 0].ndim - 1};
  memcpy(rows.size, all + 3 - rows.ndim, (size_t)rows.ndim * sizeof *all);
  return rows;
}

static bool take_lse(call *c, row_shape rows, const tensor *like, bool make) {
  attn_problem *p = &c->wanted.problem;
  if (!c->set.return_lse && !c->given[KEY_lse]) return true;
  tensor lse;
  if (!take_output(c, KEY_lse, like, true, rows.ndim, rows.size, make, &c->lse, &lse)) return false;
  if (!same_shape("lse", &lse, rows.ndim, rows.size)) return false;
  if (lse.type != DTYPE_F32) return refuse(PyExc_TypeError, "lse must be float32");
  p->lse_stride = (attn_strides){.b = stride_at(&lse, 3), .h = stride_at(&lse, 2), .s = stride_at(&lse, 1)};
  p->uses |= ATTN_USE_LSE;
  c->args.lse = (float *)(void *)lse.data;
  return true;
}

/* Rows of the state, read and written where they lie: as those of an lse, each of so many floats. */
static bool take_state(call *c, row_shape rows) {
  attn_problem *p = &c->wanted.problem;
  if (!c->given[KEY_state]) return true;
  tensor t;
  rows.size[rows.ndim++] = attn_state_floats(p->dim_v);
  if (!tensor_read(c->given[KEY_state], "state", &c->held, &t) || !tensor_writable(&t, "state")) return false;
  if (!same_shape("state", &t, rows.ndim, rows.size)) return false;
  if (t.type != DTYPE_F32)
    return PyErr_Format(PyExc_TypeError, "state is %s; it must be float32", dtype_name(t.type)), false;
  if (t.stride[rows.ndim - 1] != 1)
    return PyErr_Format(PyExc_ValueError, "state has stride %lld in its last dimension; it must be 1",
                        (long long)t.stride[rows.ndim - 1]),
           false;
  p->state_stride = (attn_strides){.b = stride_at(&t, 4), .h = stride_at(&t, 3), .s = stride_at(&t, 2)};
  p->uses |= ATTN_USE_STATE;
  c->args.state = (float *)(void *)t.data;
  return true;
}

/* ---- Gradients ------------------------------------------------------------------------------------------------------- */

/* Refuses options of sdpa() that have no gradients, in words. */
static bool check_backward(const call *c) {
  static const int needed[] = {KEY_do, KEY_out, KEY_lse};
  const uint32_t refused = attn_operations[ATTN_BACKWARD].refused;
  for (int i = 0; i < KEYWORD_USES; i++)
    if (c->given[keyword_uses[i].key] && refused & keyword_uses[i].use)
      return PyErr_Format(c->of->unsupported, "sdpa_grad() takes no %s: there are no gradients of %s",
                          keyword_names[keyword_uses[i].key], keyword_uses[i].what),
             false;
  if (c->given[KEY_kv_format])
    return PyErr_Format(c->of->unsupported, "sdpa_grad() takes no kv_format: there are no gradients of blocks of numbers"),
           false;
  if (c->set.shared_prefix || c->set.window_first)
    return PyErr_Format(c->of->unsupported,
                        "sdpa_grad() takes no %s: there are no gradients of keys that are read in pieces",
                        c->set.shared_prefix ? "shared_prefix" : "window_first"),
           false;
  if (c->set.return_lse) return refuse(PyExc_TypeError, "sdpa_grad() takes no return_lse: it reads lse");
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    if (!c->given[needed[i]]) return PyErr_Format(PyExc_TypeError, "%s is missing", keyword_names[needed[i]]), false;
  return true;
}

/* d_o and d_lse, which stand as out and lse do. */
static bool take_output_gradients(call *c, int layout, const view *o, int ndim, row_shape rows) {
  attn_problem *p = &c->wanted.problem;
  int64_t shape[MOST_DIMS];
  tensor t;
  view v;
  shape_of(o, ndim, layout, shape);
  if (!tensor_read(c->given[KEY_do], "do", &c->held, &t) || !same_shape("do", &t, ndim, shape) ||
      !view_of(&t, "do", layout, &v))
    return false;
  if ((attn_dtype)t.type != p->dtype_o)
    return PyErr_Format(PyExc_TypeError, "do is %s; it must be as out, %s", dtype_name(t.type),
                        dtype_name((dtype)p->dtype_o)),
           false;
  p->d_o_stride = v.stride;
  c->args.d_o = t.data;
  if (!c->given[KEY_d_lse]) return true;
  if (!tensor_read(c->given[KEY_d_lse], "d_lse", &c->held, &t) || !same_shape("d_lse", &t, rows.ndim, rows.size))
    return false;
  if (t.type != DTYPE_F32) return refuse(PyExc_TypeError, "d_lse must be float32");
  p->d_lse_stride = (attn_strides){.b = stride_at(&t, 3), .h = stride_at(&t, 2), .s = stride_at(&t, 1)};
  p->uses |= ATTN_USE_D_LSE;
  c->args.d_lse = (const float *)(const void *)t.data;
  return true;
}

/* The gradient of an argument, of its shape. */
typedef struct gradient {
  int key;
  const char *of; /* the argument; NULL: the call has none */
  bool usual;     /* made unless it is False; else only where it is asked for */
  bool dense;     /* must be */
  const tensor *like;
  bool float32;
  int ndim;
  int64_t shape[MOST_DIMS];
} gradient;

/* An array for it: the one that is given, or a new one. *wanted says whether there is one. */
static bool take_gradient(call *c, const gradient *g, bool accumulate, tensor *out, bool *wanted) {
  const char *name = keyword_names[g->key];
  PyObject *given = c->given[g->key];
  *wanted = given ? given != c->of->no : g->usual && g->of;
  if (!*wanted) return true;
  if (!g->of)
    return PyErr_Format(PyExc_ValueError, "%s is given; the call has no %s", name,
                        g->key == KEY_dalibi_slopes ? "alibi" : name + 1),
           false;
  if (given == c->of->yes) c->given[g->key] = given = NULL;
  if (accumulate && !given)
    return PyErr_Format(PyExc_ValueError, "%s is missing with accumulate; give the array to add to, or %s=False", name,
                        name),
           false;
  if (!take_output(c, g->key, g->like, g->float32, g->ndim, g->shape, !c->held.take_specs, &c->gradient[g->key - KEY_dq],
                   out) ||
      !same_shape(name, out, g->ndim, g->shape))
    return false;
  const dtype right = g->float32 ? DTYPE_F32 : g->like->type;
  if (out->type != right)
    return PyErr_Format(PyExc_TypeError, "%s is %s; it must be %s, as %s", name, dtype_name(out->type), dtype_name(right),
                        g->of),
           false;
  if (g->dense && !is_dense(out)) return PyErr_Format(PyExc_ValueError, "%s must be dense", name), false;
  return true;
}

/* Those of q, k and v. */
static bool take_row_gradients(call *c, int layout, const tensor t[3], bool accumulate) {
  attn_problem *p = &c->wanted.problem;
  attn_strides *const stride[] = {&p->d_q_stride, &p->d_k_stride, &p->d_v_stride};
  void **const data[] = {&c->args.d_q, &c->args.d_k, &c->args.d_v};
  for (int i = 0; i < 3; i++) {
    const bool absent = i < 2 && p->score == ATTN_SCORE_PRECOMPUTED;
    gradient g = {.key = KEY_dq + i, .of = absent ? NULL : input_names[i], .usual = true, .like = &t[i], .ndim = t[i].ndim};
    tensor out;
    view v;
    bool wanted;
    memcpy(g.shape, t[i].shape, sizeof g.shape);
    if (!take_gradient(c, &g, accumulate, &out, &wanted)) return false;
    if (!wanted) describe_dense(g.ndim, g.shape, t[i].type, &out); /* the problem has strides of all gradients */
    if (!view_of(&out, keyword_names[g.key], layout, &v)) return false;
    *stride[i] = v.stride;
    *data[i] = wanted ? out.data : NULL;
  }
  return true;
}

/* The bit that asks for the gradient of an array; 0: it needs none. */
static uint32_t gradient_use(int of) {
  for (int i = 0; i < KEYWORD_USES; i++)
    for (int n = 0; n < ATTN_GRADIENT_USES; n++)
      if (keyword_uses[i].key == of && attn_gradient_uses[n].of == keyword_uses[i].use)
        return attn_gradient_uses[n].gradient;
  return 0;
}

/* The gradient of an array beside q, k and v; `heads`: a number for each head. */
static bool take_other_gradient(call *c, int key, int of, bool heads, const tensor *like, bool accumulate,
                                attn_score_strides *stride, float **field) {
  const attn_problem *p = &c->wanted.problem;
  gradient g = {.key = key,
                .of = c->given[of] ? keyword_names[of] : NULL,
                .usual = of == KEY_scores,
                .dense = !stride,
                .like = like,
                .float32 = true};
  tensor t = {.ndim = 1, .shape = {p->heads_q}}, out;
  bool wanted;
  if (g.of && !heads && !tensor_read(c->given[of], keyword_names[of], &c->held, &t)) return false;
  g.ndim = t.ndim;
  memcpy(g.shape, t.shape, sizeof g.shape);
  if (!take_gradient(c, &g, accumulate, &out, &wanted)) return false;
  if (!wanted) return true;
  for (int i = 0; stride && i < 4; i++) {
    int64_t *const steps[] = {&stride->k, &stride->q, &stride->h, &stride->b};
    *steps[i] = size_at(&out, i + 1) > 1 ? stride_at(&out, i + 1) : 0;
  }
  c->wanted.problem.uses |= gradient_use(of);
  *field = (float *)(void *)out.data;
  return true;
}

static bool take_gradients(call *c, int layout, const tensor t[3], const view *o, row_shape rows) {
  attn_problem *p = &c->wanted.problem;
  attn_args *args = &c->args;
  const int accumulate = c->given[KEY_accumulate] ? PyObject_IsTrue(c->given[KEY_accumulate]) : 0;
  const tensor *like = &t[0];
  if (accumulate < 0) return false;
  p->operation = ATTN_BACKWARD;
  if (accumulate) p->uses |= ATTN_USE_ACCUMULATE;
  return take_output_gradients(c, layout, o, rows.ndim + 1, rows) && take_row_gradients(c, layout, t, accumulate) &&
         take_other_gradient(c, KEY_dbias, KEY_bias, false, like, accumulate, &p->d_bias_stride, &args->d_bias) &&
         take_other_gradient(c, KEY_dscores, KEY_scores, false, like, accumulate, &p->d_scores_stride, &args->d_scores) &&
         take_other_gradient(c, KEY_dscore_weight, KEY_score_weight, false, like, accumulate, NULL, &args->d_score_weight) &&
         take_other_gradient(c, KEY_dsinks, KEY_sinks, true, like, accumulate, NULL, &args->d_sinks) &&
         take_other_gradient(c, KEY_dalibi_slopes, KEY_alibi, true, like, accumulate, NULL, &args->d_alibi_slopes);
}

/* ---- The call -------------------------------------------------------------------------------------------------------- */

/* out is False: the state alone goes on, and no result is made. */
static bool read_no_out(call *c) {
  c->no_out = c->given[KEY_out] && c->given[KEY_out] == c->of->no;
  if (!c->no_out) return true;
  c->given[KEY_out] = NULL;
  return c->given[KEY_state] || refuse(PyExc_ValueError, "out is False without state; then nothing would be computed");
}

static bool choose_layout(const call *c, int *layout) {
  const bool varlen = c->given[KEY_cu_seqlens_q] || c->given[KEY_cu_seqlens_k];
  *layout = c->set.layout >= 0 ? c->set.layout : varlen ? 2 : 0;
  if (places[*layout].packed == varlen) return true;
  PyErr_Format(PyExc_ValueError, "layout '%s' %s cu_seqlens_q and cu_seqlens_k", layouts[*layout],
               varlen ? "takes no" : "needs");
  return false;
}

bool call_build(call *c, bool make_outputs) {
  attn_problem *p = &c->wanted.problem;
  tensor t[3];
  view v[3];
  int layout;
  c->held.take_specs = !make_outputs;
  if (c->backward ? !check_backward(c) : !read_no_out(c)) return false;
  if (c->given[KEY_page_table] && !check_paged(c)) return false;
  if (!choose_layout(c, &layout)) return false;
  if (!(c->set.score == ATTN_SCORE_PRECOMPUTED ? take_scores_and_values : take_inputs)(c, layout, t, v)) return false;
  if (!same_types(t)) return false;
  fill_problem(c, t, v);
  if (places[layout].packed && !take_borders(c, v[0].s, v[1].s)) return false;
  if (!places[layout].packed) {
    p->batch = v[0].b;
    p->seq_q = v[0].s;
    p->seq_k = v[1].s;
  }
  if (c->given[KEY_page_table] && !take_page_table(c, &v[1])) return false;
  c->args.struct_size = sizeof c->args;
  c->args.q = t[0].data;
  c->args.k = t[1].data;
  c->args.v = t[2].data;
  const row_shape rows = rows_of(c, t, v);
  make_outputs = make_outputs && !c->no_out;
  const view o = {.b = v[0].b, .h = v[0].h, .s = v[0].s, .d = v[2].d};
  return take_options(c) && take_dropout(c, !c->held.take_specs || c->runs_later) &&
         take_o(c, layout, t, &o, make_outputs) && take_lse(c, rows, &t[0], make_outputs) &&
         (c->backward ? take_gradients(c, layout, t, &o, rows) : take_state(c, rows));
}

/* Those that are not wanted are None. */
static PyObject *gradient_tuple(call *c) {
  PyObject *result = PyTuple_New(GRADIENTS);
  for (int i = 0; result && i < GRADIENTS; i++) {
    if (!c->gradient[i]) Py_IncRef(c->gradient[i] = Py_None);
    PyTuple_SetItem(result, i, c->gradient[i]);
    c->gradient[i] = NULL;
  }
  return result;
}

void call_list_uses(uint32_t uses, char *text, size_t bytes) {
  size_t used = 0;
  snprintf(text, bytes, "none");
  for (int i = 0; i < KEYWORD_USES; i++)
    if (uses & keyword_uses[i].use && used < bytes)
      used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", keyword_names[keyword_uses[i].key]);
  if (uses & ATTN_USE_FULL_KEY_BLOCKS && used < bytes)
    snprintf(text + used, bytes - used, ", full_kv_num_blocks and full_kv_indices of key_blocks");
}

PyObject *call_finish(call *c, bool succeeded) {
  PyObject *result = NULL;
  holdings_release(&c->held);
  if (succeeded && c->backward) {
    result = gradient_tuple(c);
  } else if (succeeded && c->no_out) {
    Py_IncRef(result = Py_None);
  } else if (succeeded && c->set.return_lse) {
    result = PyTuple_New(2);
    if (result && PyTuple_SetItem(result, 0, c->out) == 0) c->out = NULL;
    if (result && PyTuple_SetItem(result, 1, c->lse) == 0) c->lse = NULL;
  } else if (succeeded) {
    Py_IncRef(result = c->out);
  }
  if (c->out) Py_DecRef(c->out);
  if (c->lse) Py_DecRef(c->lse);
  for (int i = 0; i < GRADIENTS; i++)
    if (c->gradient[i]) Py_DecRef(c->gradient[i]);
  return result;
}
