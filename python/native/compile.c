/* SPDX-License-Identifier: MIT */
#include "compile.h"

#include <stdio.h>
#include <string.h>

#include "xla.h"

/* Where the arrays of a call stand among its args; 0: no program of XLA takes them. */
static const struct {
  const char *name;
  args_place place;
} places[ALL_KEYWORDS] = {
#define PLACE(keyword, field) [KEY_##keyword] = {#keyword, offsetof(attn_args, field)}
    PLACE(mask, mask),
    PLACE(bias, bias),
    PLACE(alibi, alibi_slopes),
    PLACE(sinks, sinks),
    PLACE(kv_len, kv_len),
    PLACE(q_len, q_len),
    PLACE(row_len, row_len),
    PLACE(cu_seqlens_q, cu_seqlens_q),
    PLACE(cu_seqlens_k, cu_seqlens_k),
    PLACE(page_table, page_table),
    PLACE(offsets, offsets),
    PLACE(score_weight, score_weight),
    PLACE(k_scale, k_scale),
    PLACE(v_scale, v_scale),
    PLACE(seed, seed),
    PLACE(offset, offset),
    PLACE(out, o),
    PLACE(lse, lse),
    PLACE(do, d_o),
    PLACE(d_lse, d_lse),
    PLACE(dq, d_q),
    PLACE(dk, d_k),
    PLACE(dv, d_v),
    PLACE(dbias, d_bias),
    PLACE(dsinks, d_sinks),
    PLACE(dalibi_slopes, d_alibi_slopes),
    PLACE(dscore_weight, d_score_weight),
#undef PLACE
};

/* Appends the operand, and its name to the tuple's. */
static bool take_operand(compiled *to, PyObject *names, const char *name, args_place place) {
  PyObject *text = PyUnicode_FromString(name);
  to->operand[to->operands++] = place;
  return text && PyTuple_SetItem(names, to->operands - 1, text) == 0;
}

static bool take_operands(const call *c, const bool *is_operand, compiled *to, PyObject *names) {
  static const args_place inputs[] = {offsetof(attn_args, q), offsetof(attn_args, k), offsetof(attn_args, v)};
  static const char *const input_names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; i++)
    if (!take_operand(to, names, input_names[i], inputs[i])) return false;
  for (int key = 0; key < KEY_dq; key++)
    if (is_operand[key] && !take_operand(to, names, places[key].name, places[key].place)) return false;
  if (!c->backward) {
    to->result[to->results++] = offsetof(attn_args, o);
    if (c->set.return_lse) to->result[to->results++] = offsetof(attn_args, lse);
  }
  for (int key = KEY_dq; key < ALL_KEYWORDS; key++)
    if (is_operand[key]) to->result[to->results++] = places[key].place;
  return true;
}

/* Which keywords are arrays of the program. A seed among them has no number yet, and counts as 0 meanwhile. */
static bool find_operands(call *c, bool *is_operand) {
  for (int key = 0; key < ALL_KEYWORDS; key++) {
    PyObject *given = c->given[key];
    if (given && key <= LAST_ARRAY && !places[key].place)
      return PyErr_Format(PyExc_TypeError, "%s is given; a compiled program takes none", call_keyword(key)), false;
    is_operand[key] = given && given != c->of->no && places[key].place;
    if (key != KEY_seed && key != KEY_offset) continue;
    is_operand[key] = is_operand[key] && tensor_is_array(given, &c->held);
    if (is_operand[key]) c->given[key] = c->of->no;
  }
  return true;
}

static bool keep_name(char *to, size_t room, const char *name) {
  if (name && strlen(name) >= room) return PyErr_Format(PyExc_ValueError, "'%s' is too long for a name", name), false;
  if (name) strcpy(to, name);
  return true;
}

static bool keep_settings(call *c, compiled *to) {
  const attn_problem *p = &c->wanted.problem;
  to->wanted = c->wanted;
  to->wanted.kernel = to->wanted.max_isa = NULL;
  to->wanted.default_threads = 0;
  to->seed = c->args.seed;
  to->offset = c->args.offset;
  to->longest[0] = p->uses & ATTN_USE_VARLEN && !c->set.max_seqlen[0];
  to->longest[1] = p->uses & ATTN_USE_VARLEN && !(p->uses & ATTN_USE_PAGES) && !c->set.max_seqlen[1];
  return keep_name(to->kernel, sizeof to->kernel, c->wanted.kernel) &&
         keep_name(to->max_isa, sizeof to->max_isa, c->wanted.max_isa);
}

PyObject *compile_call(call *c, compiled *to) {
  bool is_operand[ALL_KEYWORDS];
  int operands = 3;
  memset(to, 0, sizeof *to);
  c->runs_later = true;
  if (!find_operands(c, is_operand) || !call_build(c, false) || !keep_settings(c, to)) return NULL;
  for (int key = 0; key < KEY_dq; key++) operands += is_operand[key];
  PyObject *names = PyTuple_New(operands);
  if (names && take_operands(c, is_operand, to, names)) return names;
  if (names) Py_DecRef(names);
  return NULL;
}
