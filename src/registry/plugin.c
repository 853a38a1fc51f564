/* SPDX-License-Identifier: MIT */
/* Plug-ins: finds a shared object, looks at the one symbol that it exports, and adds its kernels to the registry, all of
 * them or none. Nothing of an object runs before its version and its sizes are known to be right, but for what the loader
 * runs.
 *
 * An object is never closed, not even one that is refused: the plans and names that programs hold point into it, and
 * libraries such as OpenBLAS have threads that run its code. */
#define _GNU_SOURCE /* secure_getenv */
#include "src/registry/plugin.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plugin/own_plugin.h"
#include "plugin_folders.h"
#include "src/api/error.h"
#include "src/api/resources.h"
#include "src/api/text.h"
#include "src/api/version.h"
#include "src/registry/cpu.h"
#include "src/registry/library_hooks.h"
#include "src/registry/registry.h"
#include "src/registry/shared_object.h"

enum { MOST_RENAMED = 16 }; /* kernels of a plug-in that is loaded under other names */

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* ---- Whether an object is a plug-in for this library ---- */

static attn_status check_sizes(const attn_plugin *p, const char *file) {
  if (p->abi != ATTN_KERNEL_ABI)
    return attn_fail(ATTN_UNSUPPORTED,
                     "%s is built for version %" PRIu32
                     " of the kernel interface, and libattn %s has version %d; build it with "
                     "the headers of this libattn",
                     file, p->abi, ATTN_VERSION_TEXT, ATTN_KERNEL_ABI);
  const struct {
    const char *name;
    uint32_t its;
    size_t ours;
  } sizes[] = {{"attn_plugin", p->plugin_bytes, sizeof(attn_plugin)},
               {"attn_kernel", p->kernel_bytes, sizeof(attn_kernel)},
               {"attn_schedule", p->schedule_bytes, sizeof(attn_schedule)},
               {"attn_problem", p->problem_bytes, sizeof(attn_problem)},
               {"attn_args", p->args_bytes, sizeof(attn_args)}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].its != sizes[i].ours)
      return attn_fail(ATTN_UNSUPPORTED,
                       "in %s an %s has %" PRIu32 " bytes, and in libattn %s %zu; build it with the headers of this libattn",
                       file, sizes[i].name, sizes[i].its, ATTN_VERSION_TEXT, sizes[i].ours);
  if (p->own && strcmp(p->own->version, ATTN_VERSION_TEXT) != 0)
    return attn_fail(ATTN_UNSUPPORTED, "%s belongs to libattn %s, and this is libattn %s", file, p->own->version,
                     ATTN_VERSION_TEXT);
  return ATTN_OK;
}

/* The member that a kernel must have and has not; NULL = it is complete. */
static const char *lacking(const attn_kernel *k) {
  const attn_library_hooks *hooks = attn_hooks_of(k);
  const struct {
    const char *member;
    bool there;
  } needs[] = {{"info.algorithm", k->info.algorithm},
               {"info.isa", k->info.isa},
               {"info.library (\"\" for none)", k->info.library},
               {"info.summary", k->info.summary},
               {"rejects", k->rejects},
               {"plan", k->plan},
               {"run", k->run},
               {"close for its open", !hooks->open || hooks->close},
               {"end_run for its begin_run", !hooks->begin_run || hooks->end_run}};
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
    if (!needs[i].there) return needs[i].member;
  return NULL;
}

/* Small letters, digits and underscores: what options and environment variables can name. */
static bool is_name(const char *name) {
  return name && *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name) &&
         strlen(name) < ATTN_KERNEL_NAME_BYTES;
}

static attn_status check_kernel(const attn_plugin *p, int index, const char *file) {
  const attn_kernel *k = p->kernels[index];
  const char *name = k ? k->info.name : NULL;
  if (!is_name(name))
    return attn_fail(ATTN_UNSUPPORTED,
                     "kernel %d of %s is called '%s'; a name has small letters, digits and underscores, at most %d", index,
                     file, name ? name : "", ATTN_KERNEL_NAME_BYTES - 1);
  if (lacking(k)) return attn_fail(ATTN_UNSUPPORTED, "kernel '%s' of %s lacks %s", name, file, lacking(k));
  if (attn_tier_find(k->info.isa) < 0) {
    char tiers[160] = "";
    for (int i = 0; attn_tier_isa(i); i++) attn_append(tiers, sizeof tiers, ", ", attn_tier_isa(i));
    return attn_fail(ATTN_UNSUPPORTED, "kernel '%s' of %s is of tier '%s'; it must be one of %s", name, file, k->info.isa,
                     tiers);
  }
  const attn_kernel *other = attn_registry_find(name);
  for (int i = 0; i < index && !other; i++)
    if (strcmp(p->kernels[i]->info.name, name) == 0) other = p->kernels[i];
  if (!other) return ATTN_OK;
  const char *holder = attn_kernel_file(&other->info);
  return attn_fail(ATTN_UNSUPPORTED, "%s has a kernel '%s', and %s has one of that name already", file, name,
                   holder                     ? holder
                   : attn_registry_find(name) ? "libattn itself"
                                              : "the same file");
}

static attn_status check_plugin(const attn_plugin *p, const char *file) {
  attn_status status = check_sizes(p, file);
  if (status == ATTN_OK && (p->kernel_count < 1 || !p->kernels))
    status = attn_fail(ATTN_UNSUPPORTED, "%s brings no kernel", file);
  for (int i = 0; status == ATTN_OK && i < p->kernel_count; i++) status = check_kernel(p, i, file);
  return status;
}

/* ---- Adding one ---- */

static attn_status add(const attn_plugin *p, const char *file) {
  static const attn_host host = {.struct_size = sizeof host,
                                 .version = ATTN_VERSION_TEXT,
                                 .tier_find = attn_tier_find,
                                 .tier_unusable = attn_tier_unusable,
                                 .tier_best = attn_tier_best};
  if (attn_registry_has(p)) return ATTN_OK;
  const attn_status status = check_plugin(p, file);
  if (status != ATTN_OK) return status;
  const char *reason = p->start ? p->start(&host) : NULL;
  if (reason) return attn_fail(ATTN_UNSUPPORTED, "%s cannot start: %s", file, reason);
  char *kept = strdup(file); /* for attn_kernel_file(), as long as the process lives */
  if (!kept) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the name of %s", file);
  if (attn_registry_add(p, kept)) return ATTN_OK;
  free(kept);
  return attn_fail(ATTN_UNSUPPORTED, "%s brings %d kernels, and there is no room for so many", file, p->kernel_count);
}

/* ---- Under other names ---- */

/* A plug-in whose kernels are copies of another's, with a suffix behind their names. */
typedef struct renamed {
  attn_plugin plugin;
  const attn_kernel *kernels[MOST_RENAMED];
  attn_kernel kernel[MOST_RENAMED];
  char name[MOST_RENAMED][2 * ATTN_KERNEL_NAME_BYTES];
} renamed;

static void rename_kernels(renamed *r, const attn_plugin *p, const char *suffix) {
  r->plugin = *p;
  r->plugin.own = NULL;
  if (!p->kernels || p->kernel_count > MOST_RENAMED) return;
  r->plugin.kernels = r->kernels;
  for (int i = 0; i < p->kernel_count; i++) {
    snprintf(r->name[i], sizeof r->name[i], "%.*s%s", ATTN_KERNEL_NAME_BYTES, p->kernels[i]->info.name, suffix);
    r->kernel[i] = *p->kernels[i];
    r->kernel[i].info.name = r->name[i];
    r->kernels[i] = &r->kernel[i];
  }
}

static attn_status add_renamed(const attn_plugin *p, const char *suffix, const char *name) {
  const attn_status sizes = check_sizes(p, name);
  renamed *r = sizes == ATTN_OK ? calloc(1, sizeof *r) : NULL; /* never freed: kernels stay */
  if (sizes != ATTN_OK) return sizes;
  if (!r) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the kernels of %s", name);
  rename_kernels(r, p, suffix);
  const attn_status status = add(&r->plugin, name);
  if (status != ATTN_OK) free(r);
  return status;
}

/* `name` is the plug-in's name from now on: the file, and the symbol if one was given. suffix: appended to the names of its
 * kernels, or NULL. */
static attn_status add_object(void *object, const char *file, const char *symbol, const char *suffix, const char *name) {
  const attn_plugin *plugin = attn_object_symbol(object, symbol ? symbol : ATTN_PLUGIN_ENTRY);
  if (plugin) return suffix ? add_renamed(plugin, suffix, name) : add(plugin, name);
  return attn_fail(ATTN_UNSUPPORTED, "%s is no plug-in%s: it does not export %s (ATTN_EXPORT_KERNELS%s makes it)", file,
                   symbol ? " of that name" : "", symbol ? symbol : ATTN_PLUGIN_ENTRY, symbol ? "_AS" : "");
}

/* ---- Finding one ---- */

enum { PATH_BYTES = 1024, PLACES = 3 };

/* The folders in which plug-ins are looked for before the loader looks; "" for one that cannot be known. */
typedef struct places {
  char own[PATH_BYTES], below[PATH_BYTES];
  const char *folder[PLACES];
} places;

static void find_places(places *p) {
  attn_object_own_folder(p->own, sizeof p->own);
  snprintf(p->below, sizeof p->below, "%.900s%s", p->own, *p->own ? "/" ATTN_PLUGIN_SUBFOLDER : "");
  p->folder[0] = p->own;
  p->folder[1] = p->below;
  p->folder[2] = ATTN_PLUGIN_FOLDER;
}

/* The symbol of FILE:SYMBOL; NULL if the text is a file, whose name may have a colon too. */
static const char *symbol_in(const char *path) {
  const char *colon = strrchr(path, ':');
  return colon && !strpbrk(colon, ATTN_FOLDER_SEPARATORS) && !attn_object_exists(path) ? colon + 1 : NULL;
}

/* Libraries that start threads while they are loaded. */
static const struct {
  const char *plugin, *variable;
  size_t bytes;
} threaded[] = {
#define ATTN_LIBRARY(folder, library, package)
#define ATTN_LIBRARY_THREADS(plugin, variable, mebibytes) {#plugin, variable, (size_t)(mebibytes) << 20},
#include "kernels/libraries.def"
#undef ATTN_LIBRARY
#undef ATTN_LIBRARY_THREADS
};

/* Whether `path` is the file of this plug-in. */
static bool is_file_of(const char *path, const char *plugin) {
  char file[128];
  const size_t length = (size_t)snprintf(file, sizeof file, ATTN_PLUGIN_FILE, plugin), all = strlen(path);
  return all >= length && strcmp(path + all - length, file) == 0;
}

/* Such a library may hang or end the process where the system does not give what its threads need. */
static attn_status check_room(const char *file) {
  for (size_t i = 0; i < sizeof threaded / sizeof *threaded; i++) {
    if (!is_file_of(file, threaded[i].plugin)) continue;
    const char *asked = attn_object_secure_getenv(threaded[i].variable);
    const int threads = asked && atoi(asked) > 0 ? atoi(asked) : attn_online_cpus();
    if (!attn_has_room_for_threads(threads, threaded[i].bytes))
      return attn_fail(ATTN_UNSUPPORTED,
                       "cannot load %s: the system does not allow the %d threads that its library starts, and %zu MiB of "
                       "address space for each (ulimit -u, ulimit -v; %s lowers their number)",
                       file, threads, threaded[i].bytes >> 20, threaded[i].variable);
  }
  return ATTN_OK;
}

static attn_status load_path(const char *path, const char *suffix, const char *name) {
  char file[4 * PATH_BYTES], error[600];
  const char *symbol = symbol_in(path);
  const size_t length = symbol ? (size_t)(symbol - 1 - path) : strlen(path);
  if (length >= sizeof file) return attn_fail(ATTN_UNSUPPORTED, "cannot load a path of %zu bytes", length);
  snprintf(file, sizeof file, "%.*s", (int)length, path);
  const attn_status status = check_room(file);
  if (status != ATTN_OK) return status;
  void *object = attn_object_open(file, error, sizeof error);
  return object ? add_object(object, file, symbol, suffix, name)
                : attn_fail(ATTN_UNSUPPORTED, "cannot load %s: %s", file, error);
}

static attn_status not_found(const char *name, const char *file, const places *p, const char *error) {
  char looked[PLACES * PATH_BYTES] = "";
  const char *reason = attn_registry_not_built(name);
  for (int i = 0; i < PLACES; i++)
    if (*p->folder[i]) attn_append(looked, sizeof looked, ", ", p->folder[i]);
  return attn_fail(ATTN_UNSUPPORTED, "there is no plug-in '%s'%s%s: %s is not in %s, and the loader says: %s", name,
                   reason ? ", which was not built: " : "", reason ? reason : "", file, looked, error);
}

static attn_status load_name(const char *name) {
  places p;
  char file[128], path[2 * PATH_BYTES], error[600];
  if (attn_registry_has_built_in(name)) return ATTN_OK;
  snprintf(file, sizeof file, ATTN_PLUGIN_FILE, name);
  find_places(&p);
  for (int i = 0; i < PLACES; i++) {
    snprintf(path, sizeof path, "%s/%s", p.folder[i], file);
    if (*p.folder[i] && attn_object_exists(path)) return load_path(path, NULL, path);
  }
  const attn_status status = check_room(file);
  if (status != ATTN_OK) return status;
  void *object = attn_object_open(file, error, sizeof error);
  if (!object) return not_found(name, file, &p, error);
  attn_object_path(attn_object_symbol(object, ATTN_PLUGIN_ENTRY), file, path, sizeof path);
  return add_object(object, path, NULL, NULL, path);
}

static attn_status load(const char *plugin) {
  if (plugin && strpbrk(plugin, ATTN_FOLDER_SEPARATORS)) return load_path(plugin, NULL, plugin);
  if (is_name(plugin)) {
    const attn_status status = load_name(plugin);
    if (status != ATTN_OK) attn_registry_remember_failure(plugin, attn_last_error());
    return status;
  }
  return attn_fail(ATTN_INVALID_ARGUMENT,
                   "plugin is %s%s%s; it must be a name such as openblas, or a path with a slash in it", plugin ? "'" : "",
                   plugin ? plugin : "NULL", plugin ? "'" : "");
}

/* ---- ATTN_LOAD ---- */

static _Atomic bool named_loaded;
static attn_status named_status;
static char named_error[1200];

static void load_each(const char *names) {
  char name[PATH_BYTES];
  while (names && *names && named_status == ATTN_OK) {
    const size_t length = strcspn(names, ATTN_LIST_SEPARATOR);
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    if (length) named_status = load(name);
    names += length + (names[length] != '\0');
  }
  if (named_status != ATTN_OK) snprintf(named_error, sizeof named_error, "ATTN_LOAD has '%s': %s", name, attn_last_error());
}

void attn_plugins_load_named(void) {
  if (atomic_load_explicit(&named_loaded, memory_order_acquire)) return;
  pthread_mutex_lock(&loading);
  if (!named_loaded) load_each(attn_object_secure_getenv("ATTN_LOAD"));
  atomic_store_explicit(&named_loaded, true, memory_order_release);
  pthread_mutex_unlock(&loading);
}

attn_status attn_plugins_check_named(void) {
  attn_plugins_load_named();
  return named_status == ATTN_OK ? ATTN_OK : attn_fail(named_status, "%s", named_error);
}

attn_status attn_load_kernels(const char *plugin) {
  attn_plugins_load_named();
  pthread_mutex_lock(&loading);
  const attn_status status = load(plugin);
  pthread_mutex_unlock(&loading);
  return status;
}

attn_status attn_plugins_load_as(const char *path, const char *suffix, const char *name) {
  attn_plugins_load_named();
  pthread_mutex_lock(&loading);
  const attn_status status = load_path(path, suffix, name);
  pthread_mutex_unlock(&loading);
  return status;
}
