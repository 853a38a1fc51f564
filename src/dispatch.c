/* SPDX-License-Identifier: MIT */
/* Dispatch: a named kernel or a clear error; otherwise the kernel of a rule, the quickest by costs, or the first of the
 * registry that this CPU and the problem allow and that is not known to be slower. */
#include "dispatch.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bf16_costs.h"
#include "bf16_probe.h"
#include "cpu.h"
#include "error.h"
#include "float_mode.h"
#include "plugin.h"
#include "problem.h"
#include "registry.h"
#include "text.h"
#include "tuning.h"

/* An unset or empty variable is no request. */
static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static attn_status check_cap(const char *source, const char *cap) {
  if (!cap || attn_tier_find(cap) >= 0) return ATTN_OK;
  char names[160] = "";
  for (int i = 0; attn_tier_isa(i); i++) attn_append(names, sizeof names, ", ", attn_tier_isa(i));
  return attn_fail(ATTN_INVALID_ARGUMENT, "%s is '%s'; it must be one of %s", source, cap, names);
}

static const char *lower_cap(const char *a, const char *b) {
  if (!a || !b) return a ? a : b;
  return attn_tier_find(a) < attn_tier_find(b) ? a : b;
}

/* NULL = this CPU can run the kernel; else why not. Thread-local or static text. */
static const char *unusable(const attn_kernel *kernel, const char *cap) {
  const char *reason = attn_tier_unusable(attn_tier_find(kernel->info.isa), cap);
  return reason || !kernel->unusable ? reason : kernel->unusable(cap);
}

/* NULL = the kernel can run the problem here; else why not. Thread-local or static text. */
static const char *refusal(const attn_kernel *kernel, const attn_problem *problem, const char *cap) {
  static _Thread_local char buffer[300];
  const char *reason = unusable(kernel, cap);
  return reason ? reason : kernel->rejects(problem, buffer, sizeof buffer);
}

static void list_usable(const attn_problem *problem, const char *cap, char *names, size_t bytes) {
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++)
    if (!refusal(kernel, problem, cap)) attn_append(names, bytes, ", ", kernel->info.name);
  if (!*names) snprintf(names, bytes, "none");
}

const char *attn_dispatch_claim(const attn_kernel *kernel) { return attn_tier_claim(attn_tier_find(kernel->info.isa)); }

/* The list of usable kernels is for errors alone: to make it asks every kernel, and libraries take long to answer. */
static attn_status choose_named(const attn_problem *problem, const char *name, const char *source, const char *cap,
                                attn_choice *choice) {
  char why[300] = "", usable[400] = "";
  const attn_kernel *kernel = attn_registry_find(name);
  const char *reason = kernel ? refusal(kernel, problem, cap) : attn_registry_missing(name);
  if (!reason) reason = kernel ? attn_dispatch_claim(kernel) : "no kernel of this build is called so";
  if (reason) {
    snprintf(why, sizeof why, "%s", reason); /* list_usable overwrites the text */
    list_usable(problem, cap, usable, sizeof usable);
  }
  if (!kernel)
    return attn_fail(ATTN_UNKNOWN_KERNEL, "%s is '%s', which is not here: %s; kernels that take this problem here: %s",
                     source, name, why, usable);
  if (reason)
    return attn_fail(ATTN_UNSUPPORTED, "%s is '%s', which cannot run: %s; kernels that can: %s", source, name, why, usable);
  choice->kernel = kernel;
  snprintf(choice->why, sizeof choice->why, "named by %s", source);
  return ATTN_OK;
}

enum {
  FAR_BYTES = 3 << 19,         /* K and V of a head, as floats, that leave level 2 where flash packs them: */
  FAR_QUERIES = 24,            /* so many queries do not pay for it, */
  FAR_OF_MANY = 1 << 20,       /* and with so much of a head, */
  FAR_BYTES_OF_ALL = 8 << 20,  /* and so much of all heads, */
  FAR_ROWS_OF_MANY = 8,        /* so many rows of a KV head do not */
  TILE_QUERIES = 24,           /* from here on tiles of 32 queries pay, */
  TILE_QUERIES_OF_GROUPS = 19, /* or from here, if query heads share keys; */
  TILE_PAIRS = 512,            /* fewer queries need so many pairs with keys, because tiles are computed whole, */
  TILE_PAIRS_OF_ONE = 1280,    /* and those that fill one tile of vectors so many, unless keys are narrow: then none pay; */
  TILE_KEYS = 16,              /* and up to so many keys */
  TILE_QUERIES_OF_FEW_KEYS = 28, /* need so many queries */
  TILE_PAIRS_OF_FEW_KEYS = 336,  /* and pairs; */
  DECODED_QUERIES = 16,          /* queries up to which decode is faster than flash_amx, */
  DECODED_QUERIES_OF_WIDE = 24,  /* and where keys are wide, or both kernels copy them and they are not narrow; */
  COPIED_ROWS = 5,               /* rows from which decode_amx is faster than vectors where it copies K and V; */
  FEW_ROWS = 2,                  /* one or two rows, which leave most of a tile empty, */
  BYTES_OF_FEW = 2 << 20,        /* need K and V in level 2, */
  WIDTH_OF_FEW = 192,            /* unless these are no wider, */
  NARROW_WIDTH = 96,             /* of a key and its value */
  WIDE_WIDTH = 384,
  MOST_SHORTER = -33,  /* by few_keys: below 6 keys nothing is measured */
  QUERIES_OF_TILE = 6, /* of flash on vectors */
  KEYS_OF_REST = 8
};

/* What decode and flash take on vectors, by key, in hundredths of a tile of flash: 6 queries of a head. Decode goes through
 * K and V once for every 8, 4, 2 or 1 rows of a KV head; flash packs them once, and then computes its tiles. The narrow
 * columns are what head_dim 32 adds; head_dim 64 adds half. Measured: docs/performance-details.md, "Which kernel when".
 * Whole numbers, because programs may have floating-point exceptions trap. */
typedef struct decode_costs {
  int32_t rows[4], narrow_rows[4]; /* of 8, 4, 2 and 1; 0 of 8: they go as 4 and 4 */
} decode_costs;

typedef struct vector_costs {
  decode_costs key;                    /* of a key by itself (few_rows.h), */
  decode_costs block_key;              /* or in a whole block (group_rows.h), */
  int32_t lanes;                       /* if the head dimensions are multiples of this; 0: there are no such blocks */
  int32_t pack, narrow_pack, far_pack; /* far: for each doubling of K and V of a head, as floats, beyond 256 KiB */
  int32_t few_keys;                    /* with n keys a tile takes few_keys / n more, against decode, than with many */
} vector_costs;

/* In float32 what packing (35) and few keys (-200) cost on AVX2 was measured on Zen 3 alone, a CPU without AVX-512; keys of
 * blocks on Zen 5; the rest on Granite Rapids and Zen 5. */
static const vector_costs avx512_costs[] = {
    {{{210, 105, 65, 55}, {45, 35, 40, 40}}, {{160, 75, 50, 20}, {10, 28, 35, 72}}, 1, 75, -35, 32, 200},
    {{{195, 100, 65, 55}, {85, 55, 40, 40}}, {{148, 66, 38, 31}, {65, 56, 37, 24}}, 1, 150, -10, 13, 200}};
static const vector_costs avx2_costs[] = {
    {{{0, 90, 50, 40}, {0, 20, 15, 5}}, {{0, 66, 45, 25}, {0, 25, 3, 24}}, 8, 35, -20, 20, -200},
    {{{0, 97, 60, 60}, {0, 15, 5, 0}}, {{0, 70, 35, 26}, {0, 25, 15, 0}}, 8, 145, -55, 17, 0}};
static const vector_costs other_costs[] = {
    {.key = {{0, 90, 50, 40}, {0, 20, 15, 5}}, .pack = 40, .narrow_pack = -20, .far_pack = 20, .few_keys = 100},
    {.key = {{0, 97, 60, 60}, {0, 15, 5, 0}}, .pack = 145, .narrow_pack = -55, .far_pack = 17}};

static const vector_costs *vector_costs_of(const char *isa) {
  if (strncmp(isa, "avx512", 6) == 0) return avx512_costs;
  return strcmp(isa, "avx2") == 0 ? avx2_costs : other_costs;
}

static int64_t cost_of_rows(const decode_costs *c, int64_t rows, int64_t narrow) {
  static const int64_t at_once[] = {8, 4, 2, 1}, from[] = {7, 3, 2, 1};
  int64_t cost = 0;
  for (int i = 0; i < 4; i++)
    for (; rows >= from[i] && c->rows[i] > 0; rows -= at_once[i]) cost += c->rows[i] + narrow * c->narrow_rows[i] / 100;
  return cost;
}

/* Whether keys go in blocks: a row that is left beside tiles of 8, 4 and 2 needs one of two head dimensions. */
static bool has_blocks(const vector_costs *c, const attn_problem *p, int64_t rows) {
  const bool usual = p->dim_qk == p->dim_v && (p->dim_qk == 64 || p->dim_qk == 128);
  return c->lanes > 0 && (p->dim_qk | p->dim_v) % c->lanes == 0 && (rows % 4 != 1 || usual);
}

/* Keys behind the last whole block take as long as some more would. */
static int64_t decode_cost(const vector_costs *c, const attn_problem *p, int64_t narrow) {
  const int64_t rows = p->heads_q / p->heads_kv * p->seq_q;
  const int64_t whole = has_blocks(c, p, rows) ? attn_keys_in_blocks(p) : 0, rest = p->seq_k - whole;
  const int64_t keys = rest + (rest > 0 && whole > 0 ? KEYS_OF_REST : 0);
  if (p->seq_k == 0) return 0;
  return (whole * cost_of_rows(&c->block_key, rows, narrow) + keys * cost_of_rows(&c->key, rows, narrow)) / p->seq_k;
}

/* How often 256 KiB have to be doubled to make so many bytes, in hundredths, straight between powers of two. */
static int64_t doublings(int64_t bytes) {
  int64_t near = 256 << 10, whole = 0;
  if (bytes <= near) return 0;
  for (; bytes >= 2 * near; near *= 2) whole += 100;
  return whole + 100 * (bytes - near) / near;
}

static int64_t flash_cost(const vector_costs *c, const attn_problem *p, int64_t narrow) {
  const int64_t bytes = (int64_t)sizeof(float) * p->seq_k * (p->dim_qk + p->dim_v);
  const int64_t tiles = p->heads_q / p->heads_kv * ((p->seq_q + QUERIES_OF_TILE - 1) / QUERIES_OF_TILE);
  const int64_t by_keys = p->seq_k > 0 ? c->few_keys / p->seq_k : 0;
  const int64_t tile = 100 + (by_keys > MOST_SHORTER ? by_keys : MOST_SHORTER);
  return c->pack + (narrow * c->narrow_pack + doublings(bytes) * c->far_pack) / 100 + tiles * tile;
}

/* Whether decode on vectors, which accepts the problem, is quicker than flash on vectors of the same tier. */
static bool suits_decode(const attn_problem *p, const char *isa) {
  const vector_costs *c = vector_costs_of(isa);
  const int64_t dims = p->dim_qk + p->dim_v, narrow = dims < 64 ? 100 : 6400 / dims; /* below 32 nothing is measured */
  const int64_t rows = p->heads_q / p->heads_kv * p->seq_q, bytes_of_key = (int64_t)sizeof(float) * dims;
  if (p->seq_k > FAR_BYTES / bytes_of_key) return p->seq_q <= FAR_QUERIES;
  if (rows <= FAR_ROWS_OF_MANY && p->seq_k > FAR_OF_MANY / bytes_of_key &&
      p->seq_k > FAR_BYTES_OF_ALL / bytes_of_key / p->heads_kv)
    return true;
  c += p->dtype_kv != ATTN_F32;
  return decode_cost(c, p, narrow) < flash_cost(c, p, narrow);
}

/* Whether kernels on tiles have to copy K and V, whose width is no multiple of theirs. */
static bool copies_tiles(const attn_problem *p) { return (p->dim_qk | p->dim_v) % 32; }

static bool is_small_for_tiles(const attn_problem *p) {
  const int64_t pairs = p->seq_q * p->seq_k;
  if (p->seq_k <= TILE_KEYS) return p->seq_q < TILE_QUERIES_OF_FEW_KEYS || pairs < TILE_PAIRS_OF_FEW_KEYS;
  if (p->seq_q <= QUERIES_OF_TILE) return pairs < TILE_PAIRS_OF_ONE || p->dim_qk + p->dim_v < NARROW_WIDTH;
  return p->seq_q < (p->heads_q > p->heads_kv ? TILE_QUERIES_OF_GROUPS : TILE_QUERIES) && pairs < TILE_PAIRS;
}

/* Whether the tile unit computes the problem, and is quick. */
static bool suits_tiles(const attn_problem *p, const char *cap) {
  const attn_kernel *tiles = attn_registry_find("flash_amx");
  return tiles && !is_small_for_tiles(p) && !refusal(tiles, p, cap);
}

/* Keys from which decode_amx is quicker than vectors: the more rows of a KV head, the fuller its tiles, and the wider the
 * keys, the less softmax weighs. */
static int64_t least_decoded_keys(int64_t rows, int64_t dims, bool copies) {
  static const struct {
    int64_t rows; /* up to so many */
    int64_t narrow, medium, wide, copied;
  } borders[] = {{FEW_ROWS, 96, 96, 200, 0},
                 {4, 80, 72, 56, 0},
                 {8, 48, 40, 30, 128},
                 {16, 36, 24, 16, 44},
                 {INT64_MAX, 36, 20, 14, 44}};
  int i = 0;
  while (rows > borders[i].rows) i++;
  if (copies) return borders[i].copied;
  return dims < NARROW_WIDTH ? borders[i].narrow : dims < WIDE_WIDTH ? borders[i].medium : borders[i].wide;
}

/* Whether one or two rows are worth its tiles, by what K and V take. */
static bool suits_few_rows(const attn_problem *p) {
  const int64_t dims = p->dim_qk + p->dim_v, bytes_of_key = 2 * dims * p->heads_kv;
  return dims <= WIDTH_OF_FEW || (dims <= WIDE_WIDTH && p->seq_k <= BYTES_OF_FEW / bytes_of_key);
}

/* NULL, or why decode_amx, which accepts the problem, is not the quickest: its tiles hold 16 rows of a KV head, and
 * flash_amx's 32 queries. */
static const char *slower_in_decoding_tiles(const attn_problem *p) {
  const int64_t rows = p->heads_q / p->heads_kv * p->seq_q, dims = p->dim_qk + p->dim_v;
  const bool copies = copies_tiles(p);
  const bool saves_much = dims >= WIDE_WIDTH || (copies && dims >= NARROW_WIDTH);
  if (p->seq_q > (saves_much ? DECODED_QUERIES_OF_WIDE : DECODED_QUERIES))
    return "slower than flash_amx for so many queries";
  const bool suits = (!copies || rows >= COPIED_ROWS) && p->seq_k >= least_decoded_keys(rows, dims, copies) &&
                     (rows > FEW_ROWS || suits_few_rows(p));
  return suits ? NULL : "slower than vectors for so few rows and keys";
}

static const double WORTH_BF16_DOT = 1.1; /* times as fast as widening; the probe's noise is smaller */

static bool is_measured(const attn_kernel *kernel) { return strcmp(kernel->info.isa, "avx512bf16") == 0; }

/* NULL, or why products by VDPBF16PS are not the quickest. */
static const char *slower_than_widening(void) {
  static _Thread_local char reason[80];
  const double gain = attn_bf16_gain();
  if (gain > WORTH_BF16_DOT) return NULL;
  if (gain == 0) return "no memory to measure whether it is faster than widening";
  snprintf(reason, sizeof reason, "a probe found it %.2f times as fast as widening here", gain);
  return reason;
}

/* ---- By costs ---- */

/* NULL, or why a kernel that a tuning file names cannot run here. */
static const char *missing_or_refusing(const attn_kernel *kernel, const char *name, const attn_problem *problem,
                                       const char *cap) {
  const char *reason = kernel ? refusal(kernel, problem, cap) : attn_registry_missing(name);
  return kernel || reason ? reason : "no kernel of this process has that name";
}

/* The first, from `from` on, whose kernel can run; `count` if there is none. */
static int next_that_runs(const attn_expected_cost *e, int from, int count, const attn_problem *problem, const char *cap) {
  while (from < count && missing_or_refusing(attn_registry_find(e[from].costs->kernel), e[from].costs->kernel, problem, cap))
    from++;
  return from;
}

/* Costs may be 0. */
static double times_as_long(double ns, double least) {
  if (ns <= least) return 1;
  return least > 0 ? ns / least : INFINITY;
}

/* The quickest of those that can run; NULL if there is none. Says by what margin. */
static const attn_kernel *choose_expected(const attn_problem *problem, const char *cap, const attn_expected_cost *e,
                                          int count, const char *whose, char *why, size_t bytes) {
  int best = next_that_runs(e, 0, count, problem, cap);
  while (best < count && attn_dispatch_claim(attn_registry_find(e[best].costs->kernel)))
    best = next_that_runs(e, best + 1, count, problem, cap);
  if (best == count) return NULL;
  const int second = next_that_runs(e, best + 1, count, problem, cap);
  char line[20] = "", margin[100] = "no other kernel with costs can run";
  if (e[best].costs->line) snprintf(line, sizeof line, ", line %d", e[best].costs->line);
  if (second < count)
    snprintf(margin, sizeof margin, "%s takes %.2f times as long", e[second].costs->kernel,
             times_as_long(e[second].ns, e[best].ns));
  snprintf(why, bytes, "%.340s%s: by costs with an error of %.0f %% (root mean square), %s", whose, line,
           100 * e[best].costs->error, margin);
  return attn_registry_find(e[best].costs->kernel);
}

/* NULL, or why the automatic choice passes over a kernel that would take the problem. The choice sees the shape of one
 * sequence, never batch or threads. */
static const char *passed_over(const attn_kernel *kernel, const attn_problem *p, const char *cap) {
  if (strcmp(kernel->info.name, "flash_amx") == 0)
    return is_small_for_tiles(p) ? "slower than vectors for so few queries and keys" : NULL;
  const char *reason = is_measured(kernel) ? slower_than_widening() : NULL;
  if (reason || strcmp(kernel->info.algorithm, "decode") != 0) return reason;
  if (strcmp(kernel->info.isa, "amx") == 0) return slower_in_decoding_tiles(p);
  if (!suits_decode(p, kernel->info.isa)) return "slower than flash for so many queries";
  return p->seq_q > DECODED_QUERIES && suits_tiles(p, cap) ? "slower than flash_amx for so many queries" : NULL;
}

/* By costs, where products by VDPBF16PS are quick: they are as good for some problems as widening, but not for all. False if
 * the problem is none that costs are known of. */
static bool choose_by_bf16_costs(const attn_problem *problem, const char *cap, attn_choice *choice) {
  attn_expected_cost expected[ATTN_EXPECTED_COSTS];
  char whose[160];
  if (attn_tuning_excludes(problem)) return false;
  const uint64_t mode = attn_float_mode_enter();
  const int count = attn_expect(attn_bf16_costs, ATTN_BF16_COSTS, problem, expected);
  snprintf(whose, sizeof whose, "automatic, by costs of Zen 5 (a probe found it %.2f times as fast as widening)",
           attn_bf16_gain());
  const attn_kernel *kernel = choose_expected(problem, cap, expected, count, whose, choice->why, sizeof choice->why);
  attn_float_mode_leave(mode);
  if (kernel) choice->kernel = kernel;
  return kernel;
}

static attn_status choose_automatically(const attn_problem *problem, const char *cap, attn_choice *choice) {
  char refused[1850] = "", line[360];
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++) {
    const char *reason = refusal(kernel, problem, cap);
    if (!reason) reason = passed_over(kernel, problem, cap);
    if (!reason) reason = attn_dispatch_claim(kernel);
    if (!reason) break;
    snprintf(line, sizeof line, "%s (%s)", kernel->info.name, reason);
    attn_append(refused, sizeof refused, ", ", line);
  }
  choice->kernel = kernel;
  if (!choice->kernel) return attn_fail(ATTN_UNSUPPORTED, "no kernel takes this problem here: %s", refused);
  if (is_measured(kernel) && choose_by_bf16_costs(problem, cap, choice)) return ATTN_OK;
  char probe[80] = "";
  if (is_measured(kernel))
    snprintf(probe, sizeof probe, " (a probe found it %.2f times as fast as widening)", attn_bf16_gain());
  snprintf(choice->why, sizeof choice->why, "automatic: the best-ranked kernel that accepts%s%s%s", probe,
           *refused ? "; passed over: " : "", refused);
  return ATTN_OK;
}

/* Says which rule decided and by what margin. */
static void explain_rule(const attn_tuning_rule *rule, const char *path, char *why, size_t bytes) {
  snprintf(why, bytes, "tuning file %.300s, line %d: %s took %.2f times as long where it was measured (%.2f to %.2f)", path,
           rule->line, rule->second, rule->margin, rule->low, rule->high);
}

/* The quickest by the file's costs. NULL, and the reason in `why`, if there is none. */
static const attn_kernel *choose_by_file_costs(const attn_problem *problem, const char *cap, const attn_tuning *tuning,
                                               char *why, size_t bytes) {
  attn_expected_cost expected[ATTN_EXPECTED_COSTS];
  char whose[340];
  snprintf(whose, sizeof whose, "tuning file %.300s", attn_tuning_path(tuning));
  const int count = attn_tuning_expect(tuning, problem, expected);
  const attn_kernel *kernel = choose_expected(problem, cap, expected, count, whose, why, bytes);
  if (!kernel)
    snprintf(why, bytes, "%s%s", whose, count ? ": no kernel of its costs can run here" : " says nothing of this problem");
  return kernel;
}

/* The kernel of the rule. NULL, and the reason in `why`, if it cannot run. */
static const attn_kernel *choose_by_file_rule(const attn_problem *problem, const char *cap, const attn_tuning_rule *rule,
                                              const char *path, char *why, size_t bytes) {
  const attn_kernel *kernel = attn_registry_find(rule->kernel);
  const char *reason = missing_or_refusing(kernel, rule->kernel, problem, cap);
  if (!reason) reason = attn_dispatch_claim(kernel);
  if (!reason) {
    explain_rule(rule, path, why, bytes);
    return kernel;
  }
  snprintf(why, bytes, "tuning file %.300s, line %d wants %s, which cannot run: %.300s", path, rule->line, rule->kernel,
           reason);
  return NULL;
}

/* By the first rule of the file that holds the problem, or else by its costs. NULL, and the reason in `why`, if it has
 * neither or they name no kernel that can run. */
static const attn_kernel *choose_tuned(const attn_problem *problem, const char *cap, const attn_tuning *tuning, char *why,
                                       size_t bytes) {
  const char *path = attn_tuning_path(tuning), *reason = attn_tuning_excludes(problem);
  if (reason) return snprintf(why, bytes, "tuning file %.300s says nothing of this problem: %s", path, reason), NULL;
  const attn_tuning_rule *rule = attn_tuning_find(tuning, problem);
  return rule ? choose_by_file_rule(problem, cap, rule, path, why, bytes)
              : choose_by_file_costs(problem, cap, tuning, why, bytes);
}

/* In the default floating-point mode: costs are inexact, and the caller may have traps for that. */
static const attn_kernel *choose_tuned_in_mode(const attn_problem *problem, const char *cap, const attn_tuning *tuning,
                                               char *why, size_t bytes) {
  const uint64_t mode = attn_float_mode_enter();
  const attn_kernel *kernel = choose_tuned(problem, cap, tuning, why, bytes);
  attn_float_mode_leave(mode);
  return kernel;
}

/* By the tuning file if it has a rule or costs, else by the built-in rules, saying why. */
static attn_status choose_by_rules(const attn_problem *problem, const char *cap, const char *refused, attn_choice *choice) {
  char tuned[800] = "";
  if (refused) snprintf(tuned, sizeof tuned, "%.790s", refused);
  if (choice->tuning) {
    choice->kernel = choose_tuned_in_mode(problem, cap, choice->tuning, tuned, sizeof tuned);
    if (choice->kernel) return snprintf(choice->why, sizeof choice->why, "%s", tuned), ATTN_OK;
  }
  const attn_status status = choose_automatically(problem, cap, choice);
  if (status != ATTN_OK || !*tuned) return status;
  char built_in[sizeof choice->why];
  memcpy(built_in, choice->why, sizeof built_in);
  snprintf(choice->why, sizeof choice->why, "%s; %.1100s", tuned, built_in);
  return ATTN_OK;
}

attn_status attn_dispatch_cap(const attn_options *options, const char **cap) {
  const char *asked = options->max_isa, *variable = environment("ATTN_MAX_ISA");
  attn_status status = check_cap("attn_options.max_isa", asked);
  if (status == ATTN_OK) status = check_cap("ATTN_MAX_ISA", variable);
  if (status == ATTN_OK) *cap = lower_cap(asked, variable);
  return status;
}

bool attn_dispatch_names_kernel(void) { return environment("ATTN_KERNEL"); }

attn_status attn_dispatch(const attn_problem *problem, const attn_options *options, attn_choice *choice) {
  assert(attn_problem_validate(problem) == ATTN_OK);
  const char *cap;
  attn_status status = attn_plugins_check_named();
  if (status == ATTN_OK) status = attn_dispatch_cap(options, &cap);
  if (status != ATTN_OK) return status;
  const char *refused = NULL; /* why ATTN_TUNING's file is not used */
  choice->cap = cap;
  choice->tuning = options->tuning;
  if (!choice->tuning) status = attn_tuning_named(&choice->tuning, &refused);
  if (status != ATTN_OK) return status;
  if (options->kernel) return choose_named(problem, options->kernel, "attn_options.kernel", cap, choice);
  const char *variable_kernel = environment("ATTN_KERNEL");
  if (variable_kernel) return choose_named(problem, variable_kernel, "ATTN_KERNEL", cap, choice);
  return choose_by_rules(problem, cap, refused, choice);
}

/* ---- The registry's public questions ---- */

static const char *keep(const char *reason) {
  static _Thread_local char kept[400];
  if (!reason) return NULL;
  snprintf(kept, sizeof kept, "%s", reason);
  return kept;
}

const char *attn_kernel_unusable(const attn_kernel_info *info) {
  const attn_kernel *kernel = info ? attn_registry_find(info->name) : NULL;
  if (!kernel) return "no kernel of this build has that name";
  const char *cap = environment("ATTN_MAX_ISA");
  if (check_cap("ATTN_MAX_ISA", cap) != ATTN_OK) return keep(attn_last_error());
  return keep(unusable(kernel, cap));
}

const char *attn_kernel_rejects(const attn_kernel_info *info, const attn_problem *problem) {
  const char *unusable = attn_kernel_unusable(info);
  if (unusable) return unusable;
  attn_problem own;
  if (attn_problem_read(problem, &own) != ATTN_OK) return keep(attn_last_error());
  return keep(refusal(attn_registry_find(info->name), &own, NULL));
}
