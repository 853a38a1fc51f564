/* SPDX-License-Identifier: MIT */
/* Reads hwloc's way of naming CPUs. hwloc has its parser in its programs, not in its library, so this one is ours; it also
 * serves the topology that is read without hwloc, with fewer kinds of objects. */
#include "machine/cpu_syntax.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "machine/cpu_list.h"

enum { ITEM = 256, CPUS_TEXT = 200 };

/* What has been named so far. */
typedef struct naming {
  const bench_topology *topology;
  const cpu_set_t *allowed;
  cpu_set_t whole;  /* CPUs of cores or more, of which each core gives one */
  cpu_set_t exact;  /* CPUs that were named themselves */
  bool removing;    /* the item began with ~ */
  char kinds[ITEM]; /* "package:1.core:" of the last item, for one that goes on with its list */
  char *error;
  size_t error_bytes;
} naming;

static bool fail(naming *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(naming *n, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(n->error, n->error_bytes, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- Ranges ------------------------------------------------------------------------------------------------------------ */

/* first, first + step, ...: `count` of them, of which those of a wildcard may be missing. */
typedef struct range {
  int first, count, step;
  bool wildcard, wraps;
} range;

/* A whole number below a million at *text, behind which it moves; -1 if there is none. */
static int read_number(const char **text) {
  int number = -1;
  for (; isdigit((unsigned char)**text) && number < 1000000; ++*text) number = (number < 0 ? 0 : 10 * number) + **text - '0';
  return number;
}

/* all, odd, even, N, N-M, N-, N:COUNT among `count` objects. False if it is none of these. */
static bool read_range(const char *text, int count, range *r) {
  *r = (range){.first = !strcmp(text, "odd"), .step = 2, .wildcard = true};
  r->count = (count - r->first + 1) / 2;
  if (!strcmp(text, "odd") || !strcmp(text, "even")) return true;
  r->step = 1;
  r->count = count;
  if (!strcmp(text, "all")) return true;
  r->wildcard = false;
  r->first = read_number(&text);
  r->count = 1;
  if (r->first < 0 || !*text) return r->first >= 0;
  r->wraps = *text == ':';
  r->wildcard = *text == '-' && !text[1];
  if (*text != ':' && *text != '-') return false;
  text++;
  const int second = r->wildcard ? count - 1 : read_number(&text);
  r->count = r->wraps ? second : second - r->first + 1;
  return !*text && (r->count > 0 || r->wildcard);
}

/* ---- Objects ----------------------------------------------------------------------------------------------------------- */

static bool is_pu(const char *kind) { return !strcasecmp(kind, "pu"); }

static void take(naming *n, const cpu_set_t *cpus, bool exact) {
  cpu_set_t *into = exact ? &n->exact : &n->whole, common;
  if (!n->removing) {
    CPU_OR(into, into, cpus);
    return;
  }
  CPU_AND(&common, &n->exact, cpus);
  CPU_XOR(&n->exact, &n->exact, &common);
  CPU_AND(&common, &n->whole, cpus);
  CPU_XOR(&n->whole, &n->whole, &common);
}

/* An object that was named by its number should have a CPU that we may use. */
static bool check_allowed(naming *n, const char *kind, int index, const cpu_set_t *cpus) {
  char theirs[CPUS_TEXT], ours[CPUS_TEXT];
  cpu_set_t common;
  CPU_AND(&common, cpus, n->allowed);
  if (CPU_COUNT(&common) || n->removing) return true;
  bench_cpu_list_write(cpus, theirs, sizeof theirs);
  bench_cpu_list_write(n->allowed, ours, sizeof ours);
  return fail(n, "%s:%d is CPU %s; this process may use %s", kind, index, theirs, ours);
}

static bool say_unknown_kind(naming *n, const char *kind) {
  char kinds[400];
  n->topology->list_kinds(kinds, sizeof kinds);
  return fail(n, "'%s' is no kind of object here; %s has %s", kind, n->topology->source, kinds);
}

static bool say_beyond(naming *n, const char *kind, const char *text, int count, const char *where) {
  char there[64] = "";
  bench_topology_list_kind(there, sizeof there, kind, count);
  return fail(n, "%s:%s goes beyond what %s has: %s", kind, text, where, count ? there : "none");
}

static bool add_objects(naming *n, const char *path, const cpu_set_t *within, const char *where);

/* Takes the objects of a range, or what the rest of the path names inside each. */
static bool take_range(naming *n, const char *kind, const range *r, const char *rest, const cpu_set_t *objects, int count) {
  for (int i = 0; i < r->count; i++) {
    const int index = r->wraps ? (r->first + i) % count : r->first + i * r->step;
    char where[64];
    snprintf(where, sizeof where, "%.40s:%d", kind, index);
    if (*rest && !add_objects(n, rest, &objects[index], where)) return false;
    if (*rest) continue;
    if (!r->wildcard && !check_allowed(n, kind, index, &objects[index])) return false;
    take(n, &objects[index], is_pu(kind));
  }
  return true;
}

static bool add_range(naming *n, const char *kind, const char *text, const char *rest, const cpu_set_t *within,
                      const char *where) {
  range r;
  cpu_set_t *objects = calloc(CPU_SETSIZE, sizeof *objects);
  if (!objects) return fail(n, "out of memory");
  const int count = n->topology->objects(kind, within, objects);
  for (int i = 0; i < count; i++) CPU_AND(&objects[i], &objects[i], within);
  bool fine = count < 0 ? say_unknown_kind(n, kind)
              : !read_range(text, count, &r)
                  ? fail(n, "%s:%s should be %s:N, N-M, N-, N:COUNT, all, odd or even", kind, text, kind)
              : r.first >= count || (!r.wraps && !r.wildcard && r.first + r.count > count)
                  ? say_beyond(n, kind, text, count, where)
                  : take_range(n, kind, &r, rest, objects, count);
  free(objects);
  return fine;
}

/* "package:1.core:0-1" and so on, inside the CPUs of what stands before it. */
static bool add_objects(naming *n, const char *path, const cpu_set_t *within, const char *where) {
  char kind[ITEM], text[ITEM];
  const size_t kind_length = strcspn(path, ":"), text_length = strcspn(path, ".");
  if (kind_length >= text_length) return fail(n, "'%s' should be a kind and its numbers, such as core:0-3", path);
  snprintf(kind, sizeof kind, "%.*s", (int)kind_length, path);
  snprintf(text, sizeof text, "%.*s", (int)(text_length - kind_length - 1), path + kind_length + 1);
  path += text_length;
  return add_range(n, kind, text, path + (*path == '.'), within, where);
}

/* ---- Items ------------------------------------------------------------------------------------------------------------- */

/* Hexadecimal words of 32 bits, the highest first: "0xff", "0x1,0x00000000". */
static bool add_mask(naming *n, const char *text) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  int bit = 0;
  for (const char *end = text + strlen(text); end > text; bit = (bit + 31) / 32 * 32) {
    const char *begin = end;
    while (begin > text && begin[-1] != ',') begin--;
    for (const char *digit = end - 1; digit >= begin + 2; digit--, bit += 4) {
      const int value = isdigit((unsigned char)*digit) ? *digit - '0' : tolower((unsigned char)*digit) - 'a' + 10;
      if (!isxdigit((unsigned char)*digit) || (value && bit > CPU_SETSIZE - 4))
        return fail(n, "'%s' should be a set of CPUs in hexadecimal, such as 0xf", text);
      for (int i = 0; i < 4; i++)
        if (value >> i & 1) bench_add_cpu(&cpus, bit + i);
    }
    end = begin > text ? begin - 1 : text;
  }
  take(n, &cpus, true);
  return true;
}

static bool add_numbers(naming *n, const char *text) {
  cpu_set_t cpus;
  if (!bench_cpu_list_read(text, &cpus))
    return fail(n, "'%s' should be a CPU, as in 0-3,8, or an object, as in core:0-3, package:1.core:0, numa:0", text);
  take(n, &cpus, true);
  return true;
}

static bool add_item(naming *n, const char *item) {
  char path[2 * ITEM];
  const char *colon = strrchr(item, ':');
  n->removing = *item == '~';
  if (n->removing) item++;
  if (!strncmp(item, "0x", 2)) return add_mask(n, item);
  if (!strcmp(item, "all") || !strcmp(item, "root")) {
    take(n, &n->topology->cpus, false);
    return true;
  }
  if (!colon && !n->kinds[0]) return add_numbers(n, item);
  snprintf(path, sizeof path, "%s%s", colon ? "" : n->kinds, item);
  /* what goes on with "core:0-3" has to begin behind the last kind, not behind the count of "core:0:2" */
  const char *last = strrchr(path, '.');
  const char *kind_end = strchr(last ? last : path, ':');
  snprintf(n->kinds, sizeof n->kinds, "%.*s", kind_end ? (int)(kind_end - path + 1) : 0, path);
  return add_objects(n, path, &n->topology->cpus, n->topology->here ? "this machine" : "this topology");
}

/* The next item's length: up to a comma or blank, but with all words of a set in hexadecimal. */
static size_t item_length(const char *text) {
  size_t length = strcspn(text, ", ");
  while (!strncmp(text + (*text == '~'), "0x", 2) && !strncmp(text + length, ",0x", 3))
    length += 1 + strcspn(text + length + 1, ", ");
  return length;
}

/* ---- The whole --------------------------------------------------------------------------------------------------------- */

/* One CPU for each core of n->whole, the first that is allowed, beside those that were named themselves. */
static void settle(const naming *n, cpu_set_t *set) {
  const bench_topology *t = n->topology;
  bool taken[CPU_SETSIZE] = {false};
  *set = n->exact;
  for (int i = 0; i < t->count; i++) {
    const int cpu = t->in_order[i];
    if (!bench_has_cpu(&n->whole, cpu) || !bench_has_cpu(n->allowed, cpu) || taken[t->core[cpu]]) continue;
    taken[t->core[cpu]] = true;
    bench_add_cpu(set, cpu);
  }
}

static bool check_set(naming *n, const cpu_set_t *set) {
  char list[CPUS_TEXT];
  bench_cpu_list_write(n->allowed, list, sizeof list);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (bench_has_cpu(set, cpu) && !bench_has_cpu(n->allowed, cpu))
      return bench_has_cpu(&n->topology->cpus, cpu) ? fail(n, "CPU %d is not allowed; this process may use %s", cpu, list)
                                                    : fail(n, "there is no CPU %d; this process may use %s", cpu, list);
  return CPU_COUNT(set) ? true : fail(n, "no CPU is left; this process may use %s", list);
}

bool bench_cpus_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set, char *error,
                     size_t error_bytes) {
  naming n = {.topology = topology, .allowed = allowed, .error = error, .error_bytes = error_bytes};
  for (text += strspn(text, ", "); *text; text += strspn(text, ", ")) {
    char item[ITEM];
    const size_t length = item_length(text);
    if (length >= sizeof item) return fail(&n, "'%.20s...' is too long for one item", text);
    snprintf(item, sizeof item, "%.*s", (int)length, text);
    if (!add_item(&n, item)) return false;
    text += length;
  }
  settle(&n, set);
  return check_set(&n, set);
}
