/* SPDX-License-Identifier: MIT */
/** @file
 * For those who write kernels: what a kernel tells the plan, what the plan promises the kernel, and how kernels get into a
 * program from a shared object (attn_load_kernels() in attn.h). Programs that only call libattn do not need this header.
 *
 * The work of one call is cut into units, one per KV head of one batch (unit = batch * heads_kv + kv_head), because all
 * query heads that share a KV head share its packed K and V. A wave of units is in memory at a time. Within a wave the
 * phases run one after the other, the tasks of one phase in any order on any thread:
 *
 *     for each wave: for each phase: for each unit of the wave, each item: run(schedule, args, task, unit_memory, scratch)
 *
 * so a phase may read what an earlier phase left in unit_memory (pack, then compute, then merge).
 *
 * A hand-written kernel is a pure function of its arguments: it allocates nothing, starts no threads, keeps no state, never
 * prints or aborts. For a fixed kernel and CPU each output row's bits depend on that row's inputs alone, so block borders
 * are absolute key indices fixed by (kernel, dtype, dims).
 *
 * Its author writes four functions: rejects, plan, run and, where the automatic choice shall know how long it takes, terms
 * (attn_kernel). Kernels on another library have hooks beside them (attn_library_hooks).
 *
 * examples/own_kernel is a kernel of this kind in a file of its own, with its build.
 */
#ifndef ATTN_KERNEL_H
#define ATTN_KERNEL_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Limits that a kernel may rely on. */
enum {
  ATTN_MAX_PHASES = 6,   /**< Phases of a schedule. */
  ATTN_MAX_TERMS = 64,   /**< Terms of a kernel's time. */
  ATTN_OWN_BYTES = 256,  /**< attn_schedule.own. */
  ATTN_MEMORY_ALIGN = 64 /**< The memory of units and threads is aligned to so many bytes. */
};

/** The steps around a library's products (kernels/library/score_steps.h of the source): for libattn's own plug-ins. */
struct attn_score_steps;

/** How this CPU wants keys and values prefetched if they are read once, by its class (kernels/machines). Bytes are those of
 * K and V of all heads. */
typedef struct attn_prefetch {
  double
      none_up_to; /**< No prefetches if a single row reads at most so many bytes of K and V in order; 0 = always prefetch. */
  double twice_beyond; /**< Each line is prefetched twice if there are more bytes, without gaps; 0 = never. */
} attn_prefetch;

/** Bytes of the caches of one core, by this CPU's class; 0 where no class can be found. */
typedef struct attn_caches {
  int64_t level1; /**< Data. */
  int64_t level2; /**< Data and code. */
} attn_caches;

/** Facts of the machine that plan() may use to decide, beside the problem. They steer speed only, never which keys go
 * together. */
typedef struct attn_machine {
  int threads; /**< Threads that may work at once. */
  /** Never NULL. This and caches() find the CPU's class once per process, which takes milliseconds: only kernels that go by
   * it ask. */
  attn_prefetch (*prefetch)(void);
  const struct attn_score_steps *steps; /**< For the highest tier that CPU and cap allow. */
  attn_caches (*caches)(void);          /**< Never NULL. */
} attn_machine;

/** Phases, tasks and memory of a plan. plan() fills in the fields that are not marked as set by the plan. */
typedef struct attn_schedule {
  attn_problem problem; /**< Set by the plan. */

  int64_t units;                  /**< batch * heads_kv; set by the plan. */
  int64_t wave_units;             /**< Units in memory at a time; set by the plan from unit_bytes and items. */
  int phases;                     /**< 1..ATTN_MAX_PHASES. */
  int64_t items[ATTN_MAX_PHASES]; /**< Tasks of one unit, by phase; longest first. */
  size_t unit_bytes;              /**< Shared memory of one unit. */
  size_t scratch_bytes;           /**< Private memory of one thread. */

  int64_t row_block; /**< Query rows of one compute task. */
  int64_t key_block; /**< Keys scored before P is used; with ATTN_USE_STATE the keys of a piece (attn_plan_piece_keys()). */

  /** The kernel's own plan data: what plan() works out once and run() only reads, such as the layout of its memory. Zeros
   * before plan(); aligned to 8 bytes. A kernel keeps one struct here, `(layout *)(void *)schedule->own`, and asserts its
   * size. */
  unsigned char own[ATTN_OWN_BYTES];
} attn_schedule;

/** One task of a phase. */
typedef struct attn_task {
  int phase;    /**< 0 .. phases - 1. */
  int64_t unit; /**< batch * heads_kv + kv_head. */
  int64_t item; /**< 0 .. items[phase] - 1. */
} attn_task;

/** The terms of a kernel's expected time: how often its loops do each kind of work. A class of CPU (kernels/machines) or a
 * tuning file says how long each term takes; the kernel with the smallest sum of terms times costs is chosen. */
typedef struct attn_kernel_terms {
  int count;                /**< At most ATTN_MAX_TERMS; 0: the kernel ranks behind all that have terms. */
  const char *const *names; /**< `count` names of a-z, 0-9 and _, as tuning files write them. */
  /** Writes `count` numbers >= 0: how often each term occurs when one thread does one sequence of the problem. Sees neither
   * batch nor threads. Called on CPUs that run the kernel only. */
  void (*of)(const attn_problem *problem, double *terms);
} attn_kernel_terms;

/** The further functions of a kernel on another library; each may be NULL. open() makes objects of that library once per
 * plan and close() frees them with the plan. In between they do not change, so that any number of threads may run the plan
 * at once. */
typedef struct attn_library_hooks {
  /** Makes objects from what plan() filled in, keeps their address in `own`, and may add to scratch_bytes what the library
   * wants to work in. On failure nothing is left behind and `reason` holds a sentence. */
  attn_status (*open)(attn_schedule *schedule, char *reason, size_t reason_bytes);
  /** Ends what open() made; called once after each open() that succeeded. */
  void (*close)(attn_schedule *schedule);
  /** Writes the library's version and what else results should name to the text that info.library points to; called before
   * info leaves the registry, by any thread, any number of times. */
  void (*identify)(void);
  /** Why the library cannot be used below `cap` (NULL = no cap) on this CPU, where it chooses its instructions itself; NULL
   * if it can. */
  const char *(*unusable)(const char *cap);
  /** Threads that may work at once. */
  int (*most_threads)(void);
  /** Called before the tasks of each attn_plan_run, on its thread: sets state of the library that is global to the process,
   * such as its number of threads. */
  void (*begin_run)(void);
  /** After them: puts it back when the last of several runs at once has ended. */
  void (*end_run)(void);
} attn_library_hooks;

/** A kernel: what is known about it, and its functions. */
typedef struct attn_kernel {
  attn_kernel_info info;    /**< The info that attn_kernel_find() returns. */
  attn_operation operation; /**< The operation of the problems that it takes; 0 = ATTN_FORWARD. */
  /** For attn_options.steady: the kernel takes any number of queries and keys, and a row's bits depend on neither. */
  bool steady;
  /** The kernel takes ATTN_USE_KEY_BLOCKS and ATTN_USE_FULL_KEY_BLOCKS. Others refuse such a problem before rejects() sees
   * it. */
  bool key_blocks;
  /** The kernel takes attn_problem.dropout. Others refuse such a problem before rejects() sees it. */
  bool dropout;
  /** NULL = takes the problem (which is valid); else the reason in words: static text, or written to `buffer`. */
  const char *(*rejects)(const attn_problem *problem, char *buffer, size_t buffer_bytes);
  /** Fills in phases, items, unit_bytes, scratch_bytes and the blocks. Returns false if a size overflows. Called again with
   * fewer threads if the threads of the first call do not pay. */
  bool (*plan)(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule);
  attn_kernel_terms terms; /**< Optional. */
  /** One task. unit_memory: the unit's shared bytes; scratch: this thread's bytes; both 64-byte aligned. */
  void (*run)(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch);
  const attn_library_hooks *library; /**< NULL for hand-written kernels. */
} attn_kernel;

/* ---- Plug-ins: kernels in a shared object ------------------------------------------------------------------------- */

/** Version of everything in this header that a plug-in and the library share. It changes when a plug-in has to change. */
#define ATTN_KERNEL_ABI 3

/** Facts and functions of the library that a plug-in may use. Tiers are numbered, low to high within an architecture. */
typedef struct attn_host {
  size_t struct_size;  /**< sizeof(attn_host) of the library; later versions add members at the end. */
  const char *version; /**< attn_version(). */
  /** The number of the tier of that name, -1 if there is none. */
  int (*tier_find)(const char *isa);
  /** NULL if this CPU can run the tier and it is not above `cap` (NULL = no cap); else why not, in the thread's own text. */
  const char *(*tier_unusable)(int tier, const char *cap);
  /** The highest tier that this CPU can run. */
  const char *(*tier_best)(void);
} attn_host;

/** Parts of libattn's own plug-ins that have no stable form (kernels/plugin/own_plugin.h of the source). */
struct attn_own_plugin;

/** The contents of a plug-in: its exported symbol, attn_plugin_entry, is an object of this type. ATTN_EXPORT_KERNELS makes
 * it. It and all it points to live as long as the process: a plug-in that has been loaded is never unloaded, because plans
 * and threads may still need it. */
typedef struct attn_plugin {
  uint32_t abi;          /**< ATTN_KERNEL_ABI: the first member in every version. */
  uint32_t plugin_bytes; /**< sizeof(attn_plugin). This and the next four must be the library's own: a kernel has to know all
                            options of a problem, to refuse those that it does not compute. */
  uint32_t kernel_bytes; /**< sizeof(attn_kernel). */
  uint32_t schedule_bytes; /**< sizeof(attn_schedule). */
  uint32_t problem_bytes;  /**< sizeof(attn_problem). */
  uint32_t args_bytes;     /**< sizeof(attn_args). */

  const attn_kernel *const *kernels; /**< Their names are not taken yet; they rank behind the kernels that are there. */
  int kernel_count;                  /**< At least 1. */
  /** NULL, or called once, before the kernels can be found. NULL = ready, else why not, in static text. It may not call
   * libattn but through `host`. */
  const char *(*start)(const attn_host *host);

  const struct attn_own_plugin *own; /**< NULL for all plug-ins but libattn's own. */
} attn_plugin;

/** The symbol of attn_plugin that attn_load_kernels() looks for, unless it is told another. */
#define ATTN_PLUGIN_ENTRY "attn_plugin_entry"

/** Marks an object that a plug-in exports. */
#if defined(_WIN32)
#define ATTN_PLUGIN_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define ATTN_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define ATTN_PLUGIN_EXPORT
#endif

/** The first members of attn_plugin. */
#define ATTN_PLUGIN_SIZES                                                                                         \
  ATTN_KERNEL_ABI, (uint32_t)sizeof(attn_plugin), (uint32_t)sizeof(attn_kernel), (uint32_t)sizeof(attn_schedule), \
      (uint32_t)sizeof(attn_problem), (uint32_t)sizeof(attn_args)

/** Makes a shared object a plug-in: written once in it, with the addresses of its kernels.
 *
 *     static const attn_kernel mine = {.info = {.name = "mine", ...}, .rejects = rejects, .plan = plan, .run = run};
 *     ATTN_EXPORT_KERNELS(&mine);
 *
 *     cc -O3 -fPIC -shared mine.c -o libmine.so */
#define ATTN_EXPORT_KERNELS(...) ATTN_EXPORT_KERNELS_AS(attn_plugin_entry, __VA_ARGS__)

/** The same under a symbol of one's own, for a shared object with several sets of kernels: "./libmine.so:symbol" loads one.
 */
#define ATTN_EXPORT_KERNELS_AS(symbol, ...)                                                                               \
  static const attn_kernel *const symbol##_kernels[] = {__VA_ARGS__};                                                     \
  extern ATTN_PLUGIN_EXPORT const attn_plugin symbol;                                                                     \
  const attn_plugin symbol = {ATTN_PLUGIN_SIZES, symbol##_kernels, (int)(sizeof symbol##_kernels / sizeof(void *)), NULL, \
                              NULL}

#ifdef __cplusplus
}
#endif
#endif
