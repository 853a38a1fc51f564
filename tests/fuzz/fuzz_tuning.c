/* SPDX-License-Identifier: MIT */
/* The reader of tuning files on any text. With an odd first byte the text follows the head of a file of this machine, so
 * that its rules are read. */
#include <stdio.h>
#include <string.h>

#include "attn/attn.h"
#include "fuzz.h"
#include "src/choice/paying_threads.h"
#include "src/choice/tuning.h"
#include "src/registry/registry.h"

static bool takes(const attn_kernel *kernel, void *problem) { return !attn_kernel_rejects(&kernel->info, problem); }

static void use_rules(const attn_tuning *tuning) {
  static const int64_t sizes[][3] = {{1, 1, 1},  {1, 4096, 128}, {64, 64, 64}, {40, 1 << 20, 80},
                                     {1, 0, 64}, {40, 0, 64},    {0, 300, 64}, {0, 0, 64}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    attn_problem problem;
    attn_problem_init(&problem, 2, 8, 2, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][2]);
    const attn_tuning_rule *rule = attn_tuning_find(tuning, &problem);
    if (rule && (rule->line < 1 || !rule->kernel[0] || !(rule->margin >= 0))) fuzz_fail("a rule without evidence");
    int count;
    attn_expected best[2];
    const attn_kernel_costs *costs = attn_tuning_costs(tuning, &count);
    attn_expect(costs, count, &problem, takes, &problem, best);
    if (best[0].costs && !(best[0].ns >= 0 && best[0].ns <= best[1].ns)) fuzz_fail("costs that are not in order");
    const int threads = attn_paying_threads(tuning, attn_registry_find("flash_c"), &problem, 3, 7);
    if (threads < 1 || threads > 7) fuzz_fail("%d threads of 7", threads);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[1 << 16];
  fuzz_bytes bytes = {data, data + size};
  attn_tuning *tuning;
  const bool whole = fuzz_byte(&bytes) % 2;
  size_t length = whole ? attn_tuning_head(text, sizeof text) : 0;
  const size_t left = (size_t)(bytes.end - bytes.at), room = sizeof text - length;
  const size_t more = left < room ? left : room;
  if (more) memcpy(text + length, bytes.at, more);
  length += more;
  const attn_status status = attn_tuning_read("fuzzed", text, length, &tuning);
  if ((status == ATTN_OK) != (tuning != NULL)) fuzz_fail("status %d does not fit the result", (int)status);
  if (status != ATTN_OK && !attn_last_error()[0]) fuzz_fail("refused without a word");
  if (tuning) use_rules(tuning);
  attn_tuning_destroy(tuning);
  return 0;
}
