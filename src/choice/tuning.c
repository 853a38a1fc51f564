/* SPDX-License-Identifier: MIT */
/* The reader of tuning files. It trusts nothing: every number has bounds, every word a length, and a line that it does not
 * know is an error that names it. */
#include "src/choice/tuning.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "src/registry/shared_object.h"

enum {
  MOST_BYTES = 4 << 20, /* bytes of a file */
  MOST_LINE = 2000
};

/* ---- Words ---- */

/* One line, which is read word by word. */
typedef struct reader {
  attn_tuning *tuning;
  const char *at;
  int line;
} reader;

static attn_status fail(const reader *r, const char *what, const char *right) {
  return attn_fail(ATTN_INVALID_ARGUMENT, "%s, line %d: %s; it must be %s", r->tuning->path, r->line, what, right);
}

/* The next word without the blank before it; false at the end of the line, or if it has no room. */
static bool next_word(reader *r, char *word, size_t bytes) {
  while (*r->at == ' ') r->at++;
  const size_t length = strcspn(r->at, " ");
  if (!length || length >= bytes) return false;
  memcpy(word, r->at, length);
  word[length] = 0;
  r->at += length;
  return true;
}

/* The value of the next word, "name=value". */
static bool next_value(reader *r, const char *name, char *value, size_t bytes) {
  char word[96];
  const size_t length = strlen(name);
  if (!next_word(r, word, sizeof word) || strncmp(word, name, length) != 0 || word[length] != '=') return false;
  return snprintf(value, bytes, "%s", word + length + 1) < (int)bytes && *value;
}

static bool next_kernel(reader *r, const char *name, char kernel[ATTN_KERNEL_NAME_BYTES]) {
  return next_value(r, name, kernel, ATTN_KERNEL_NAME_BYTES) &&
         strspn(kernel, "abcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(kernel);
}

/* Reads n digits: the value becomes 10^n times the old value plus theirs. Returns n. */
static int read_digits(const char **at, double *value) {
  int count = 0;
  for (; **at >= '0' && **at <= '9' && count < 20; ++*at, count++) *value = 10 * *value + (**at - '0');
  return count;
}

/* A decimal number between the bounds: "12", "0.025", "1.5e-3". strtod() would want the comma of the program's language. */
static bool read_real(const char *at, double least, double most, double *value) {
  double exponent = 0, sign = 1;
  *value = 0;
  const int whole = read_digits(&at, value);
  const int fraction = *at == '.' ? (at++, read_digits(&at, value)) : 0;
  if (*at == 'e') {
    at++;
    if (*at == '-' || *at == '+') sign = *at++ == '-' ? -1 : 1;
    if (!read_digits(&at, &exponent)) return false;
  }
  *value *= pow(10, sign * exponent - fraction);
  return whole + fraction > 0 && !*at && *value >= least && *value <= most;
}

static bool next_real(reader *r, const char *name, double least, double most, double *value) {
  char text[64];
  return next_value(r, name, text, sizeof text) && read_real(text, least, most, value);
}

/* Reads a whole number of at most 2^60 and moves behind it; false if there is none. A longer one leaves digits behind. */
static bool read_size(const char **at, int64_t *value) {
  if (**at < '0' || **at > '9') return false;
  const int64_t most = (int64_t)1 << 60;
  for (*value = 0; **at >= '0' && **at <= '9' && *value <= most / 10; ++*at) *value = 10 * *value + (**at - '0');
  return *value <= most;
}

/* "1..8", or "9..*" */
static bool next_range(reader *r, const char *name, int64_t range[2]) {
  char text[64];
  if (!next_value(r, name, text, sizeof text)) return false;
  const char *at = text;
  if (!read_size(&at, &range[0]) || strncmp(at, "..", 2) != 0) return false;
  at += 2;
  range[1] = INT64_MAX;
  if (strcmp(at, "*") == 0) return true;
  return read_size(&at, &range[1]) && !*at && range[0] <= range[1];
}

/* Reads "step=16". The step is 32 where the next word is another one. */
static bool next_step(reader *r, int64_t *step) {
  char text[8];
  const char *at = text;
  *step = 32;
  if (strncmp(r->at, " step=", 6) != 0) return true;
  return next_value(r, "step", text, sizeof text) && read_size(&at, step) && !*at &&
         (*step == 8 || *step == 16 || *step == 32);
}

static bool find_dtype(const char *name, size_t length, attn_dtype *dtype) {
  for (int i = 0; i < ATTN_DTYPE_COUNT; i++) {
    const char *known = attn_dtype_of((attn_dtype)i).name;
    *dtype = (attn_dtype)i;
    if (strlen(known) == length && strncmp(known, name, length) == 0) return true;
  }
  return false;
}

/* "f16": of q, k and v; "f32+f16": of q, and of k and v. */
static bool next_dtypes(reader *r, attn_dtype *q, attn_dtype *kv) {
  char word[24];
  if (!next_word(r, word, sizeof word)) return false;
  const size_t first = strcspn(word, "+");
  if (!find_dtype(word, first, q)) return false;
  *kv = *q;
  return !word[first] || find_dtype(word + first + 1, strlen(word + first + 1), kv);
}

static bool at_end(const reader *r) { return r->at[strspn(r->at, " ")] == 0; }

/* ---- Lines ---- */

/* Room for one more element. */
static bool grow(void **array, int count, int *room, size_t bytes) {
  if (count < *room) return true;
  const int more = *room ? 2 * *room : 64;
  void *larger = realloc(*array, (size_t)more * bytes);
  if (!larger) return false;
  *array = larger;
  *room = more;
  return true;
}

static attn_status no_memory(void) { return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a tuning file"); }

static attn_status read_rule(reader *r) {
  attn_tuning *t = r->tuning;
  attn_tuning_rule rule = {.line = r->line};
  char mask[8];
  const bool fine = next_dtypes(r, &rule.dtype_q, &rule.dtype_kv) && next_word(r, mask, sizeof mask) &&
                    (strcmp(mask, "causal") == 0 || strcmp(mask, "full") == 0) && next_range(r, "dim", rule.dim) &&
                    next_step(r, &rule.step) && next_range(r, "group", rule.group) && next_range(r, "seq_k", rule.seq_k) &&
                    next_range(r, "seq_q", rule.seq_q) && next_kernel(r, "kernel", rule.kernel) &&
                    next_kernel(r, "second", rule.second) && next_real(r, "margin", 0, 1e9, &rule.margin) &&
                    next_real(r, "low", 0, 1e9, &rule.low) && next_real(r, "high", 0, 1e9, &rule.high) && at_end(r);
  if (!fine)
    return fail(r, "this is no rule",
                "'rule DTYPE full|causal dim=A..B [step=8|16] group=A..B seq_k=A..B seq_q=A..B kernel=NAME second=NAME "
                "margin=X low=X high=X', with * for an open end");
  rule.causal = mask[0] == 'c';
  if (!grow((void **)&t->rules, t->rule_count, &t->rule_room, sizeof rule)) return no_memory();
  t->rules[t->rule_count++] = rule;
  return ATTN_OK;
}

/* A second line of costs would never be looked at. */
static attn_status check_only_cost(const reader *r, const attn_kernel_costs *c) {
  char what[160];
  for (int i = 0; i < r->tuning->cost_count; i++) {
    const attn_kernel_costs *before = &r->tuning->costs[i];
    if (before->dtype != c->dtype || before->kernel != c->kernel) continue;
    snprintf(what, sizeof what, "line %d has costs of %s in this type already", before->line, c->kernel->info.name);
    return fail(r, what, "the only line of its kernel and type");
  }
  return ATTN_OK;
}

/* "name=ns" of each term that takes any time. */
static attn_status read_terms(reader *r, attn_kernel_costs *c) {
  char word[96], what[160];
  while (next_word(r, word, sizeof word)) {
    char *value = strchr(word, '=');
    double ns;
    if (!value || !read_real(value + 1, 0, 1e9, &ns)) {
      snprintf(what, sizeof what, "'%.80s' is no term", word);
      return fail(r, what, "a name, '=' and nanoseconds of 0 to 1e9");
    }
    *value = 0;
    const int term = attn_term_find(c->kernel, word);
    snprintf(what, sizeof what, "%s has no term '%.60s'", c->kernel->info.name, word);
    if (term < 0) return fail(r, what, "one that attnbench tune writes");
    snprintf(what, sizeof what, "the term '%.60s' stands twice", word);
    if (c->ns[term] > 0) return fail(r, what, "one time a term");
    c->ns[term] = ns;
  }
  return at_end(r) ? ATTN_OK : fail(r, "a word is too long", "'cost kernel=NAME DTYPE error=X TERM=NS ...'");
}

static attn_status fail_shared(const reader *r, attn_dtype dtype) {
  char what[80], right[80];
  snprintf(what, sizeof what, "it has costs of %s, which other lines serve", attn_dtype_of(dtype).name);
  snprintf(right, sizeof right, "a line of %s", attn_dtype_of(attn_costs_shared(dtype)).name);
  return fail(r, what, right);
}

/* Costs of a kernel that is not here, as one of a plug-in, or that has no terms, are passed over. */
static attn_status read_cost(reader *r) {
  attn_tuning *t = r->tuning;
  attn_kernel_costs c = {.line = r->line};
  char name[ATTN_KERNEL_NAME_BYTES];
  attn_dtype q;
  if (!next_kernel(r, "kernel", name) || !next_dtypes(r, &q, &c.dtype) || q != c.dtype ||
      !next_real(r, "error", 0, 1e9, &c.error))
    return fail(r, "this is no cost", "'cost kernel=NAME DTYPE error=X TERM=NS ...'");
  if (attn_costs_shared(c.dtype) != c.dtype) return fail_shared(r, c.dtype);
  c.kernel = attn_registry_find(name);
  if (!c.kernel || c.kernel->terms.count == 0) return ATTN_OK;
  attn_status status = check_only_cost(r, &c);
  if (status == ATTN_OK) status = read_terms(r, &c);
  if (status != ATTN_OK) return status;
  if (t->fixed && t->cost_count == t->cost_room) return fail(r, "there is no room for more costs", "a shorter file");
  if (!grow((void **)&t->costs, t->cost_count, &t->cost_room, sizeof c)) return no_memory();
  t->costs[t->cost_count++] = c;
  return ATTN_OK;
}

static attn_status read_threads(reader *r) {
  if (next_real(r, "least_ns", 1, 1e9, &r->tuning->least_ns) && at_end(r)) return ATTN_OK;
  return fail(r, "this is no line of threads", "'threads least_ns=X'");
}

/* Only classes have this line: the costs of a machine are measured with the policy of its class. */
static attn_status read_prefetch(reader *r) {
  attn_prefetch *p = &r->tuning->prefetch;
  if (r->tuning->class[0] && next_real(r, "none_up_to", 0, 1e18, &p->none_up_to) &&
      next_real(r, "twice_beyond", 0, 1e18, &p->twice_beyond) && at_end(r))
    return ATTN_OK;
  return fail(r, "this is no line of prefetches", "'prefetch none_up_to=BYTES twice_beyond=BYTES', behind the line class");
}

static attn_status read_caches(reader *r) {
  double level1, level2;
  if (!r->tuning->class[0] || !next_real(r, "level1", 1, 1e12, &level1) || !next_real(r, "level2", 1, 1e12, &level2) ||
      !at_end(r))
    return fail(r, "this is no line of caches", "'caches level1=BYTES level2=BYTES', behind the line class");
  r->tuning->caches = (attn_caches){(int64_t)level1, (int64_t)level2};
  return ATTN_OK;
}

/* Keeps the first reason why the file is not for this process. */
#define refuse(tuning, ...)                                                                  \
  do {                                                                                       \
    if (!(tuning)->stale) snprintf((tuning)->refusal, sizeof(tuning)->refusal, __VA_ARGS__); \
    (tuning)->stale = true;                                                                  \
  } while (0)

static const char *rest_of(const reader *r) { return r->at + strspn(r->at, " "); }

static attn_status read_cpu(reader *r) {
  char here[200];
  attn_cpu_identity(here, sizeof here);
  r->tuning->has_cpu = true;
  if (strcmp(rest_of(r), here) != 0)
    refuse(r->tuning, "it was measured on another CPU, %.250s; this is %s", rest_of(r), here);
  return ATTN_OK;
}

static attn_status read_library(reader *r) {
  r->tuning->has_library = true;
  if (strcmp(rest_of(r), attn_version()) != 0)
    refuse(r->tuning, "it was measured with libattn %.60s; this is %s", rest_of(r), attn_version());
  return ATTN_OK;
}

/* A class of CPUs in place of a machine: its costs are for every build. */
static attn_status read_class(reader *r) {
  attn_tuning *t = r->tuning;
  if (!next_word(r, t->class, sizeof t->class) || at_end(r)) return fail(r, "this is no class", "'class NAME TIER ...'");
  snprintf(t->tiers, sizeof t->tiers, "%s", rest_of(r));
  t->has_cpu = t->has_library = true;
  return ATTN_OK;
}

/* A kernel that is not here, as one of a plug-in, changes nothing for the others. */
static attn_status read_kernel_code(reader *r) {
  char name[ATTN_KERNEL_NAME_BYTES];
  if (!next_word(r, name, sizeof name) || at_end(r)) return fail(r, "this is no code version", "'kernel NAME CODE'");
  const attn_kernel_info *kernel = attn_kernel_find(name);
  if (kernel && strcmp(rest_of(r), attn_tuning_code(kernel)) != 0)
    refuse(r->tuning, "it was measured with another build of %s: its code is %.80s, and here %.80s", name, rest_of(r),
           attn_tuning_code(kernel));
  return ATTN_OK;
}

static attn_status read_line(reader *r) {
  static const struct {
    const char *word;
    attn_status (*read)(reader *);
  } kinds[] = {{"rule", read_rule},       {"kernel", read_kernel_code}, {"cost", read_cost},
               {"threads", read_threads}, {"prefetch", read_prefetch},  {"caches", read_caches},
               {"cpu", read_cpu},         {"library", read_library},    {"class", read_class}};
  char word[16], what[40];
  if (*r->at == '#' || at_end(r)) return ATTN_OK;
  if (!next_word(r, word, sizeof word)) word[0] = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(word, kinds[i].word) == 0) return kinds[i].read(r);
  snprintf(what, sizeof what, "it begins with '%.16s'", word);
  return fail(r, what, "a rule, kernel, cost, threads, prefetch, caches, cpu, library or class");
}

/* ---- Files ---- */

static attn_status check_first_line(const reader *r, const char *line) {
  char right[40];
  snprintf(right, sizeof right, "attn-tuning %d", ATTN_TUNING_FORMAT);
  if (strcmp(line, right) == 0) return ATTN_OK;
  return attn_fail(ATTN_INVALID_ARGUMENT,
                   "%s is no tuning file of this library: its first line must be '%s', but is '%.40s'", r->tuning->path,
                   right, line);
}

static attn_status read_lines(attn_tuning *t, const char *text, size_t bytes) {
  attn_status status = ATTN_OK;
  reader r = {.tuning = t};
  const char *end = text + bytes;
  char line[MOST_LINE + 1] = "";
  for (const char *at = text; status == ATTN_OK && (at < end || r.line == 0);) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    r.line++;
    if (stop - at > MOST_LINE || memchr(at, 0, (size_t)(stop - at)))
      return fail(&r, "it is too long or has a byte 0", "text of at most 2000 characters");
    snprintf(line, sizeof line, "%.*s", (int)(stop - at), at);
    r.at = line;
    status = r.line == 1 ? check_first_line(&r, line) : read_line(&r);
    at = stop < end ? stop + 1 : end;
  }
  return status;
}

static attn_status read_text(const char *path, const char *text, size_t bytes, attn_tuning *t) {
  snprintf(t->path, sizeof t->path, "%s", path);
  const uint64_t mode = attn_float_mode_enter(); /* the caller may have traps, or another rounding */
  attn_status status = read_lines(t, text, bytes);
  attn_float_mode_leave(mode);
  if (status == ATTN_OK && !(t->has_cpu && t->has_library))
    status = attn_fail(ATTN_INVALID_ARGUMENT, "%s has no line %s; attnbench tune writes one", path,
                       t->has_cpu ? "library" : "cpu");
  if (status == ATTN_OK && t->stale) status = attn_fail(ATTN_UNSUPPORTED, "%s is not used: %s", path, t->refusal);
  return status;
}

attn_status attn_tuning_read(const char *path, const char *text, size_t bytes, attn_tuning **tuning) {
  *tuning = NULL;
  attn_tuning *t = calloc(1, sizeof *t);
  if (!t) return no_memory();
  atomic_init(&t->users, 1);
  const attn_status status = read_text(path, text, bytes, t);
  if (status == ATTN_OK)
    *tuning = t;
  else
    attn_tuning_destroy(t);
  return status;
}

attn_status attn_tuning_read_class(const char *name, const char *text, attn_kernel_costs *costs, int room,
                                   attn_tuning *tuning) {
  *tuning = (attn_tuning){.costs = costs, .cost_room = room, .fixed = true, .users = 1};
  return read_text(name, text, strlen(text), tuning);
}

/* The bytes of a file, at most MOST_BYTES; NULL with errno or, where it is too large, EFBIG. */
static char *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  char *text = file ? malloc(MOST_BYTES + 1) : NULL;
  if (text) *bytes = fread(text, 1, MOST_BYTES + 1, file);
  const int error = !file || !text ? errno : ferror(file) ? EIO : *bytes > MOST_BYTES ? EFBIG : 0;
  if (file) fclose(file);
  if (!error) return text;
  free(text);
  errno = error;
  return NULL;
}

attn_status attn_tuning_load(const char *path, attn_tuning **tuning) {
  size_t bytes = 0;
  REQUIRE(tuning, "tuning is NULL; it must point to where the address goes");
  *tuning = NULL;
  REQUIRE(path && *path, "path is %s; it must name a tuning file", path ? "empty" : "NULL");
  char *text = read_file(path, &bytes);
  if (!text) return attn_fail(ATTN_INVALID_ARGUMENT, "cannot read the tuning file %s: %s", path, strerror(errno));
  const attn_status status = attn_tuning_read(path, text, bytes, tuning);
  free(text);
  return status;
}

void attn_tuning_destroy(attn_tuning *tuning) {
  if (!tuning || atomic_fetch_sub(&tuning->users, 1) > 1) return;
  free(tuning->rules);
  free(tuning->costs);
  free(tuning);
}

const char *attn_tuning_path(const attn_tuning *tuning) { return tuning->path; }

/* ---- ATTN_TUNING ---- */

static struct {
  pthread_once_t once;
  attn_tuning *tuning;
  attn_status status;
  char sentence[1600];
} named = {.once = PTHREAD_ONCE_INIT};

static void read_named(void) {
  const char *path = attn_object_secure_getenv("ATTN_TUNING");
  if (!path || !*path) return;
  named.status = attn_tuning_load(path, &named.tuning);
  if (named.status != ATTN_OK) snprintf(named.sentence, sizeof named.sentence, "ATTN_TUNING: %s", attn_last_error());
}

attn_status attn_tuning_named(const attn_tuning **tuning, const char **refused) {
  pthread_once(&named.once, read_named);
  *tuning = named.tuning;
  *refused = named.status == ATTN_UNSUPPORTED ? named.sentence : NULL;
  return named.status == ATTN_OK || *refused ? ATTN_OK : attn_fail(named.status, "%s", named.sentence);
}

/* ---- What the file says ---- */

/* The largest of 8, 16 and 32 that divides both head dimensions; less than 8 where none does. */
static int64_t step_of(const attn_problem *p) {
  const int64_t dims = p->dim_qk | p->dim_v | 32;
  return dims & -dims;
}

static bool is_in_no_box(const attn_problem *p) {
  const uint32_t lengths = ATTN_USE_LSE | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_VARLEN;
  const bool windowed = p->window_left >= 0 || p->window_right > 0 || p->key_begin > 0 || p->key_end > 0;
  return p->operation != ATTN_FORWARD || p->score != ATTN_SCORE_DOT || (p->uses & ~lengths) || p->softcap > 0 || windowed ||
         step_of(p) < 8;
}

static bool holds(const int64_t range[2], int64_t value) { return value >= range[0] && value <= range[1]; }

const attn_tuning_rule *attn_tuning_find(const attn_tuning *t, const attn_problem *p) {
  for (int i = 0; i < t->rule_count && !is_in_no_box(p); i++) {
    const attn_tuning_rule *r = &t->rules[i];
    if (r->dtype_q == p->dtype_q && r->dtype_kv == p->dtype_kv && r->causal == (p->window_right == 0) &&
        r->step == step_of(p) && holds(r->dim, (p->dim_qk + p->dim_v) / 2) && holds(r->group, p->heads_q / p->heads_kv) &&
        holds(r->seq_k, p->seq_k) && holds(r->seq_q, p->seq_q))
      return r;
  }
  return NULL;
}

const attn_kernel_costs *attn_tuning_costs(const attn_tuning *t, int *count) {
  *count = t->cost_count;
  return t->costs;
}

const attn_kernel_costs *attn_tuning_costs_of(const attn_tuning *t, const attn_kernel *kernel, const attn_problem *problem) {
  const attn_dtype counts = attn_costs_dtype(t->costs, t->cost_count, problem);
  for (int i = 0; i < t->cost_count; i++)
    if (t->costs[i].kernel == kernel && t->costs[i].dtype == counts) return &t->costs[i];
  return NULL;
}

attn_prefetch attn_tuning_prefetch(const attn_tuning *tuning) { return tuning->prefetch; }

attn_caches attn_tuning_caches(const attn_tuning *tuning) { return tuning->caches; }

double attn_tuning_least_ns(const attn_tuning *t) { return t->least_ns; }

const char *attn_tuning_class(const attn_tuning *t) { return *t->class ? t->class : NULL; }

const char *attn_tuning_tiers(const attn_tuning *t) { return t->tiers; }

const attn_tuning *attn_tuning_hold(const attn_tuning *tuning) {
  if (tuning) atomic_fetch_add(&((attn_tuning *)(uintptr_t)tuning)->users, 1);
  return tuning;
}
