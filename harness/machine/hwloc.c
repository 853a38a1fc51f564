/* SPDX-License-Identifier: MIT */
/* Reads by hwloc the topology, which may be a synthetic one (HWLOC_SYNTHETIC), and the CPUs that its locations name, such as
 * package:1.core:0-1,~pu:3. hwloc's library reads kinds, objects and sets. It has no function for the lists and ranges that
 * hwloc's programs take, so these are read here. */
#include <stdio.h>

#include "base/cli.h"
#include "machine/topology.h"

#ifdef BENCH_HWLOC
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static hwloc_topology_t machine; /* from bench_topology_get() */

/* Bits from CPU_SETSIZE on are left out. */
static cpu_set_t cpus_of(hwloc_const_bitmap_t bits) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = hwloc_bitmap_first(bits); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(bits, cpu))
    bench_add_cpu(&set, cpu);
  return set;
}

/* Appends "L3 32 MiB x 1". */
static void append_cache(char *text, size_t bytes, int depth) {
  char kind[32];
  const hwloc_obj_t first = hwloc_get_obj_by_depth(machine, depth, 0);
  const unsigned long long kib = first->attr->cache.size >> 10;
  (void)hwloc_obj_type_snprintf(kind, sizeof kind, first, 0);
  bench_append(text, bytes, "%s%s %llu %s x %u", *text ? ", " : "", kind, kib % 1024 ? kib : kib / 1024,
               kib % 1024 ? "KiB" : "MiB", hwloc_get_nbobjs_by_depth(machine, depth));
}

/* Numbers the CPUs of each object of a kind; returns how many objects there are, 1 where the kind is missing. */
static int number(hwloc_obj_type_t type, int *of_cpu) {
  const int depth = hwloc_get_type_depth(machine, type);
  int count = 0;
  if (depth < 0 && depth != HWLOC_TYPE_DEPTH_NUMANODE) return 1;
  for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_depth(machine, depth, o)); count++)
    for (int cpu = hwloc_bitmap_first(o->cpuset); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(o->cpuset, cpu))
      of_cpu[cpu] = count;
  return count;
}

static void name_source(bench_topology *t) {
  const char *synthetic = getenv("HWLOC_SYNTHETIC");
  const char *kind = t->here ? "" : synthetic ? ", synthetic: " : ", of another machine";
  const unsigned api = hwloc_get_api_version();
  snprintf(t->source, sizeof t->source, "hwloc, API %u.%u%s%.150s", api >> 16, api >> 8 & 0xff, kind,
           synthetic && !t->here ? synthetic : "");
}

static void fill(bench_topology *t) {
  *t = (bench_topology){.here = hwloc_topology_is_thissystem(machine)};
  for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu));) {
    if (pu->os_index >= CPU_SETSIZE) continue;
    bench_add_cpu(&t->cpus, (int)pu->os_index);
    t->core[pu->os_index] = t->count; /* unless there are cores */
    t->in_order[t->count++] = (int)pu->os_index;
  }
  t->cores = hwloc_get_type_depth(machine, HWLOC_OBJ_CORE) < 0 ? t->count : number(HWLOC_OBJ_CORE, t->core);
  t->nodes = number(HWLOC_OBJ_NUMANODE, t->node);
  t->packages = number(HWLOC_OBJ_PACKAGE, t->package);
  for (int depth = 1; depth < hwloc_topology_get_depth(machine); depth++) /* from the last level to the first */
    if (hwloc_obj_type_is_dcache(hwloc_get_depth_type(machine, depth))) append_cache(t->caches, sizeof t->caches, depth);
  name_source(t);
}

static void forget(void) { hwloc_topology_destroy(machine); }

static bool load(void) {
  if (hwloc_topology_init(&machine)) return false;
  if (!hwloc_topology_load(machine)) return true;
  hwloc_topology_destroy(machine);
  return false;
}

enum { MOST_SECONDS = 20 };

/* Whether hwloc can read the topology, tried in a child process: where memory is short, hwloc may crash,
 * or never end. */
static bool loads_in_child(void) {
  int status = -1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    const int silence = open("/dev/null", O_WRONLY);
    (void)dup2(silence, STDERR_FILENO);
    (void)alarm(MOST_SECONDS);
    _exit(load() ? 0 : 1);
  }
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool bench_topology_from_hwloc(bench_topology *topology) {
  if (machine || !loads_in_child() || !load()) return false;
  (void)atexit(forget);
  fill(topology);
  return topology->count > 0;
}

enum { ITEM = 256, CPUS_TEXT = 200 };

/* The CPUs that the items read so far have named, and the state of the reading. */
typedef struct reader {
  const bench_topology *topology;
  const cpu_set_t *allowed;
  cpu_set_t whole;  /* cores and larger objects: each core gives one CPU */
  cpu_set_t exact;  /* CPUs that were named themselves */
  bool removing;    /* the item began with ~ */
  char kinds[ITEM]; /* "package:1.core:" of the last item, for one that continues its list */
  char *error;
  size_t error_bytes;
} reader;

#define fail(r, ...) bench_say((r)->error, (r)->error_bytes, __VA_ARGS__)

/* ---- Ranges ------------------------------------------------------------------------------------------------------ */

/* The numbers first, first + step, ..., `count` of them. Those of a wildcard may be missing. */
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

/* all, odd, even among `count` objects. */
static bool read_word(const char *text, int count, range *r) {
  const bool odd = !strcmp(text, "odd"), all = !strcmp(text, "all");
  if (!odd && !all && strcmp(text, "even")) return false;
  const int step = all ? 1 : 2;
  *r = (range){.first = odd, .count = (count - odd + step - 1) / step, .step = step, .wildcard = true};
  return true;
}

/* N, N-M, N-, N:COUNT among `count` objects. */
static bool read_numbers(const char *text, int count, range *r) {
  *r = (range){.first = read_number(&text), .count = 1, .step = 1};
  if (r->first < 0 || !*text) return r->first >= 0;
  r->wraps = *text == ':';
  r->wildcard = *text == '-' && !text[1];
  if (*text != ':' && *text != '-') return false;
  text++;
  const int second = r->wildcard ? count - 1 : read_number(&text);
  r->count = r->wraps ? second : second - r->first + 1;
  return !*text && (r->count > 0 || r->wildcard);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* Appends ", core:0-3" for 4 objects. */
static void append_kind(char *text, size_t bytes, const char *kind, int count) {
  bench_append(text, bytes, count > 1 ? "%s%s:0-%d" : "%s%s:0", *text ? ", " : "", kind, count - 1);
}

static void append_depth(char *text, size_t bytes, int depth) {
  char kind[32];
  const hwloc_obj_t first = hwloc_get_obj_by_depth(machine, depth, 0);
  if (!first) return;
  (void)hwloc_obj_type_snprintf(kind, sizeof kind, first, 0);
  for (char *c = kind; *c; c++) *c = (char)tolower((unsigned char)*c);
  append_kind(text, bytes, kind, (int)hwloc_get_nbobjs_by_depth(machine, depth));
}

/* Lists the kinds from the widest to the PUs, without the machine as a whole and without instruction caches. */
static bool say_unknown_kind(reader *r, const char *kind) {
  char kinds[400] = "";
  append_depth(kinds, sizeof kinds, HWLOC_TYPE_DEPTH_NUMANODE);
  for (int depth = 1; depth < hwloc_topology_get_depth(machine); depth++)
    if (!hwloc_obj_type_is_icache(hwloc_get_depth_type(machine, depth))) append_depth(kinds, sizeof kinds, depth);
  return fail(r, "'%s' is no kind of object here; %s has %s", kind, r->topology->source, kinds);
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static void subtract(cpu_set_t *set, const cpu_set_t *cpus) {
  cpu_set_t common;
  CPU_AND(&common, set, cpus);
  CPU_XOR(set, set, &common);
}

static bool take(reader *r, const cpu_set_t *cpus, bool exact) {
  cpu_set_t *into = exact ? &r->exact : &r->whole;
  if (!r->removing) {
    CPU_OR(into, into, cpus);
  } else {
    subtract(&r->exact, cpus);
    subtract(&r->whole, cpus);
  }
  return true;
}

static bool take_path(reader *r, const char *path, hwloc_const_cpuset_t within, const char *where);

/* Takes an object, or the objects inside it that the rest of its path names. An object that was named by its number should
 * have a CPU that this process may use. */
static bool take_object(reader *r, hwloc_obj_t object, const char *name, const char *rest, bool wildcard) {
  char theirs[CPUS_TEXT], ours[CPUS_TEXT];
  cpu_set_t common;
  if (*rest) return take_path(r, rest, object->cpuset, name);
  const cpu_set_t cpus = cpus_of(object->cpuset);
  CPU_AND(&common, &cpus, r->allowed);
  if (CPU_COUNT(&common) || r->removing || wildcard) return take(r, &cpus, object->type == HWLOC_OBJ_PU);
  bench_cpu_list_write(&cpus, theirs, sizeof theirs);
  bench_cpu_list_write(r->allowed, ours, sizeof ours);
  return fail(r, "%s is CPU %s; this process may use %s", name, theirs, ours);
}

/* The depth of a kind in hwloc's tree; false if it is no kind, or this topology has no object of it. */
static bool find_depth(const char *kind, int *depth) {
  union hwloc_obj_attr_u attributes;
  hwloc_obj_type_t type;
  if (hwloc_type_sscanf(kind, &type, &attributes, sizeof attributes) < 0) return false;
  *depth = hwloc_get_type_depth(machine, type);
  return *depth >= 0 || *depth == HWLOC_TYPE_DEPTH_NUMANODE;
}

static bool take_range(reader *r, const char *kind, const char *text, const char *rest, hwloc_const_cpuset_t within,
                       const char *where) {
  range of;
  int depth;
  if (!find_depth(kind, &depth)) return say_unknown_kind(r, kind);
  const int count = (int)hwloc_get_nbobjs_inside_cpuset_by_depth(machine, within, depth);
  if (!read_word(text, count, &of) && !read_numbers(text, count, &of))
    return fail(r, "%s:%s should be %s:N, N-M, N-, N:COUNT, all, odd or even", kind, text, kind);
  if (of.first >= count || (!of.wraps && !of.wildcard && of.first + of.count > count)) {
    char there[64] = "";
    if (count) append_kind(there, sizeof there, kind, count);
    return fail(r, "%s:%s goes beyond what %s has: %s", kind, text, where, count ? there : "none");
  }
  for (int i = 0; i < of.count; i++) {
    const int index = of.wraps ? (of.first + i) % count : of.first + i * of.step;
    const hwloc_obj_t object = hwloc_get_obj_inside_cpuset_by_depth(machine, within, depth, (unsigned)index);
    char name[64];
    snprintf(name, sizeof name, "%.40s:%d", kind, index);
    if (!take_object(r, object, name, rest, of.wildcard)) return false;
  }
  return true;
}

/* "package:1.core:0-1" and so on, inside the CPUs of the object before it. */
static bool take_path(reader *r, const char *path, hwloc_const_cpuset_t within, const char *where) {
  char kind[ITEM], text[ITEM];
  const size_t kind_length = strcspn(path, ":"), length = strcspn(path, ".");
  if (kind_length >= length) return fail(r, "'%s' should be a kind and its numbers, such as core:0-3", path);
  snprintf(kind, sizeof kind, "%.*s", (int)kind_length, path);
  snprintf(text, sizeof text, "%.*s", (int)(length - kind_length - 1), path + kind_length + 1);
  path += length;
  return take_range(r, kind, text, path + (*path == '.'), within, where);
}

/* ---- Items ------------------------------------------------------------------------------------------------------- */

/* Hexadecimal words of 32 bits, the highest first: "0xff", "0x1,0x00000000". */
static bool take_mask(reader *r, const char *text) {
  cpu_set_t cpus;
  hwloc_bitmap_t bits = hwloc_bitmap_alloc();
  const bool fine = bits && !hwloc_bitmap_sscanf(bits, text) && hwloc_bitmap_last(bits) < CPU_SETSIZE;
  if (fine) cpus = cpus_of(bits);
  hwloc_bitmap_free(bits);
  return fine ? take(r, &cpus, true) : fail(r, "'%s' should be a set of CPUs in hexadecimal, such as 0xf", text);
}

/* "core:0-3", or an "8" that continues it: that belongs behind the last kind, not behind the count of "core:0:2". */
static bool take_objects(reader *r, const char *item, bool has_kind) {
  char path[2 * ITEM];
  snprintf(path, sizeof path, "%s%s", has_kind ? "" : r->kinds, item);
  const char *last = strrchr(path, '.');
  const char *kind_end = strchr(last ? last : path, ':');
  snprintf(r->kinds, sizeof r->kinds, "%.*s", kind_end ? (int)(kind_end - path + 1) : 0, path);
  return take_path(r, path, hwloc_get_root_obj(machine)->cpuset, r->topology->here ? "this machine" : "this topology");
}

static bool take_item(reader *r, const char *item) {
  cpu_set_t cpus;
  r->removing = *item == '~';
  if (r->removing) item++;
  const bool has_kind = strchr(item, ':');
  if (!strncmp(item, "0x", 2)) return take_mask(r, item);
  if (!strcmp(item, "all") || !strcmp(item, "root")) return take(r, &r->topology->cpus, false);
  if (has_kind || r->kinds[0]) return take_objects(r, item, has_kind);
  if (bench_cpu_list_read(item, &cpus)) return take(r, &cpus, true);
  return fail(r, "'%s' should be a CPU, as in 0-3,8, or an object, as in core:0-3, package:1.core:0, numa:0", item);
}

/* The next item's length: up to a comma or blank, but with all words of a set in hexadecimal. */
static size_t item_length(const char *text) {
  size_t length = strcspn(text, ", ");
  while (!strncmp(text + (*text == '~'), "0x", 2) && !strncmp(text + length, ",0x", 3))
    length += 1 + strcspn(text + length + 1, ", ");
  return length;
}

/* Adds the first allowed CPU of each core of r->whole to the CPUs that were named themselves. */
static void settle(const reader *r, cpu_set_t *set) {
  const bench_topology *t = r->topology;
  bool taken[CPU_SETSIZE] = {false};
  *set = r->exact;
  for (int i = 0; i < t->count; i++) {
    const int cpu = t->in_order[i];
    if (!bench_has_cpu(&r->whole, cpu) || !bench_has_cpu(r->allowed, cpu) || taken[t->core[cpu]]) continue;
    taken[t->core[cpu]] = true;
    bench_add_cpu(set, cpu);
  }
}

bool bench_locations_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set,
                          char *error, size_t error_bytes) {
  reader r = {.topology = topology, .allowed = allowed, .error = error, .error_bytes = error_bytes};
  for (text += strspn(text, ", "); *text; text += strspn(text, ", ")) {
    char item[ITEM];
    const size_t length = item_length(text);
    if (length >= sizeof item) return fail(&r, "'%.20s...' is too long for one item", text);
    snprintf(item, sizeof item, "%.*s", (int)length, text);
    text += length;
    if (!take_item(&r, item)) return false;
  }
  settle(&r, set);
  return true;
}

#else

bool bench_topology_from_hwloc(bench_topology *topology) {
  (void)topology;
  return false;
}

bool bench_locations_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set,
                          char *error, size_t error_bytes) {
  (void)topology, (void)allowed, (void)set;
  return bench_say(error, error_bytes,
                   "'%.60s' should be numbers of CPUs, such as 0-3,8; to name cores or nodes takes hwloc, which this "
                   "attnbench was built without (Debian: libhwloc-dev)",
                   text);
}
#endif
