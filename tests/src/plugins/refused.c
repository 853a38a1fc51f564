/* SPDX-License-Identifier: MIT */
/* Plug-ins that attn_load_kernels() must refuse. WRONG, set by CMake, is the fault of this one. */
#include "attn/kernel.h"
#include "kernels/plugin/own_plugin.h"

enum { NOTHING, ENTRY, ABI, SIZE, NAME, TAKEN, TWICE, TIER, MEMBER, START, VERSION, COUNT, GROWN, NEWER };

static const char *rejects(const attn_problem *problem, char *buffer, size_t bytes) {
  (void)problem, (void)buffer, (void)bytes;
  return "it is for tests";
}

static bool plan(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  (void)problem, (void)machine, (void)schedule;
  return false;
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  (void)schedule, (void)args, (void)task, (void)unit_memory, (void)scratch;
}

#define NAMED(text)                                                       \
  {                                                                       \
    .info = {.name = text,                                                \
             .algorithm = "none",                                         \
             .isa = WRONG == TIER ? "sse2" : "c",                         \
             .library = "",                                               \
             .summary = "for tests"},                                     \
    .rejects = rejects, .plan = plan, .run = WRONG == MEMBER ? NULL : run \
  }

static const attn_kernel kernels[] = {
    NAMED("test_first"),
    NAMED(WRONG == NAME    ? "Test-kernel"
          : WRONG == TAKEN ? "flash_c"
          : WRONG == TWICE ? "test_first"
                           : "test_second"),
};
static const attn_kernel *const addresses[] = {&kernels[0], &kernels[1]};

static const char *start(const attn_host *host) {
  if (host->struct_size < sizeof *host || host->tier_find("c") != 0 || host->tier_find("sse2") >= 0 ||
      host->tier_unusable(0, NULL) || !host->tier_best() || !host->version)
    return "the host is not as attn/kernel.h says";
  return WRONG == START ? "it does not want to" : NULL;
}

static const attn_own_plugin of_another_version = {.version = "0.0.7"};

#if WRONG == 1 /* ENTRY */
extern ATTN_PLUGIN_EXPORT const attn_plugin older_symbol, another_symbol;
const attn_plugin older_symbol = {.abi = 98};
const attn_plugin another_symbol =
#else
extern ATTN_PLUGIN_EXPORT const attn_plugin attn_plugin_entry;
const attn_plugin attn_plugin_entry =
#endif
    {.abi = WRONG == ABI ? 99 : ATTN_KERNEL_ABI,
     .plugin_bytes = sizeof(attn_plugin) + (WRONG == NEWER ? sizeof(void *) : 0), /* one more field */
     .kernel_bytes = sizeof(attn_kernel) - (WRONG == SIZE ? 8 : 0),
     .schedule_bytes = sizeof(attn_schedule),
     .problem_bytes = sizeof(attn_problem) + (WRONG == GROWN ? 16 : 0),
     .args_bytes = sizeof(attn_args),
     .kernels = addresses,
     .kernel_count = WRONG == COUNT ? 0 : 2,
     .start = start,
     .own = WRONG == VERSION ? &of_another_version : NULL};
