/* SPDX-License-Identifier: MIT */
/* The walk along a line: rows, points, bisection, and the rules that come of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "tuning/tuning.h"

static const double BORDER = 1.12;    /* borders between queries are known within this factor */
static const double ROW_BORDER = 1.6; /* and those between keys */
static const double MOST_WORK = 3e8;  /* multiply-adds of a call: milliseconds */
static const double MOST_POINT_S = 0.05;
static const double LEAST_POINT_S = 0.001;
static const double LONGER = 4; /* times as long takes a second look */
enum {
  HEADS_KV = 2,
  MORE_HEADS_KV = 8,    /* of a second look, whose K and V lie in another level of the caches */
  TYPICAL_POINTS = 160, /* of a line */
  POINTS_LEFT = 30,     /* at least, whatever was timed */
  MOST_DECODED = 32,    /* rows of a KV head that decode takes */
  OPEN_FROM = 64        /* queries that stand for all larger numbers */
};

typedef struct row {
  int64_t seq_k;
  int count;
  bench_tune_point points[TUNE_POINTS];
} row;

typedef struct walk {
  const bench_tune_source *source;
  const bench_tune_line *line;
  bench_tune_result *result;
  double end_s;
  int count, timed;
  row rows[TUNE_ROWS]; /* by seq_k */
} walk;

static bool is_over(const walk *w) { return w->source->now_s(w->source->context) >= w->end_s; }

/* ---- Points ---- */

static void add_costs(walk *w, const bench_tune_shape *shape, const attn_tune_report *report) {
  for (int i = 0; i < report->timed; i++)
    for (int k = 0; k < TUNE_AUTO && attn_kernel_get(k); k++)
      if (report->entry[i].rounds > 2 && strcmp(attn_kernel_get(k)->name, report->entry[i].kernel) == 0)
        bench_tune_cost_add(&w->result->costs[k][shape->dtype], shape, report->entry[i].time_ns);
}

static double work_of(const bench_tune_shape *s) {
  return 2.0 * (double)(s->dim * s->group * s->heads_kv) * (double)s->seq_k * (double)s->seq_q;
}

/* Keeps a row's points in order. */
static void insert(row *r, const bench_tune_point *point) {
  int at = r->count++;
  for (; at > 0 && r->points[at - 1].seq_q > point->seq_q; at--) r->points[at] = r->points[at - 1];
  r->points[at] = *point;
}

static bool time_point(walk *w, const bench_tune_shape *shape, double seconds, bench_tune_point *point) {
  attn_tune_report report;
  if (!w->source->measure(w->source->context, shape, seconds, &report)) return false;
  w->result->points++;
  add_costs(w, shape, &report);
  return bench_tune_point_read(&report, shape->seq_q, point);
}

/* An even share of the time that is left: long calls take more than theirs. */
static double point_seconds(const walk *w) {
  const int left = TYPICAL_POINTS - w->timed > POINTS_LEFT ? TYPICAL_POINTS - w->timed : POINTS_LEFT;
  const double time_left = w->end_s - w->source->now_s(w->source->context);
  return fmax(LEAST_POINT_S, fmin(MOST_POINT_S, time_left / left));
}

/* A second, longer look where the built-in choice seems slow: one disturbed sample must not make a rule, nor one that fits
 * some numbers of KV heads alone, which rules do not tell apart. */
static bool time_twice(walk *w, const bench_tune_shape *shape, bench_tune_point *point) {
  bench_tune_shape more = *shape;
  bench_tune_point again;
  const double seconds = point_seconds(w);
  w->timed++;
  if (!time_point(w, shape, seconds, point)) return false;
  if (bench_tune_suits(point, TUNE_AUTO)) return true;
  more.heads_kv = MORE_HEADS_KV;
  if (work_of(&more) > MOST_WORK) more.heads_kv = HEADS_KV;
  if (!time_point(w, &more, LONGER * seconds, &again)) return false;
  bench_tune_point_join(point, &again);
  return true;
}

/* False if the point adds nothing: it is too large, or time is over. */
static bool measure(walk *w, row *r, int64_t seq_q) {
  const bench_tune_line *l = w->line;
  const bench_tune_shape shape = {.dtype = l->dtype,
                                  .causal = l->causal,
                                  .dim = l->dim,
                                  .group = l->group,
                                  .heads_kv = HEADS_KV,
                                  .seq_k = r->seq_k,
                                  .seq_q = seq_q};
  bench_tune_point point;
  if (r->count == TUNE_POINTS || is_over(w) || work_of(&shape) > MOST_WORK || (l->causal && seq_q > r->seq_k)) return false;
  if (!time_twice(w, &shape, &point)) return false;
  insert(r, &point);
  return true;
}

/* ---- Rows ---- */

/* Points of rows first..last by seq_q. Returns how many. */
static int pool(const walk *w, int first, int last, const bench_tune_point **points) {
  int count = 0;
  for (int i = first; i <= last; i++)
    for (int j = 0; j < w->rows[i].count; j++) {
      int at = count++;
      for (; at > 0 && points[at - 1]->seq_q > w->rows[i].points[j].seq_q; at--) points[at] = points[at - 1];
      points[at] = &w->rows[i].points[j];
    }
  return count;
}

/* A number between two, in the middle of their logarithms; 0 if they are near enough. */
static int64_t between(int64_t a, int64_t b, double near) {
  const int64_t middle = (int64_t)sqrt((double)a * (double)b);
  return (double)b > near * (double)a && middle > a && middle < b ? middle : 0;
}

/* Bisects the first border that is not narrow yet. False if there is none. */
static bool bisect(walk *w, row *r) {
  const bench_tune_point *points[TUNE_POINTS];
  bench_tune_segment segments[TUNE_POINTS];
  for (int i = 0; i < r->count; i++) points[i] = &r->points[i];
  const int count = bench_tune_cut(points, r->count, segments);
  for (int i = 0; i + 1 < count; i++) {
    const int64_t middle = between(points[segments[i].last]->seq_q, points[segments[i + 1].first]->seq_q, BORDER);
    if (middle && measure(w, r, middle)) return true;
  }
  return false;
}

/* Queries where times make steps: tiles of flash have 6 rows on vectors and 32 in the tile unit; decode takes up to 32 rows
 * of a KV head, by 8, 4, 2, 1 or 16. */
static void measure_row(walk *w, row *r) {
  static const int64_t coarse[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 18, 19, 24, 64, 256};
  for (size_t i = 0; i < sizeof coarse / sizeof *coarse; i++) {
    const int64_t seq_q = coarse[i], rows = w->line->group * seq_q;
    if (rows <= MOST_DECODED || seq_q <= 8 || seq_q % 6 == 0 || seq_q >= OPEN_FROM) (void)measure(w, r, seq_q);
  }
  while (bisect(w, r)) continue;
}

static void add_row(walk *w, int at, int64_t seq_k) {
  if (w->count == TUNE_ROWS || is_over(w)) return;
  memmove(&w->rows[at + 1], &w->rows[at], (size_t)(w->count - at) * sizeof(row));
  w->count++;
  w->rows[at] = (row){.seq_k = seq_k};
  measure_row(w, &w->rows[at]);
}

static int segments_of(const walk *w, int first, int last) {
  const bench_tune_point *points[TUNE_ROWS * TUNE_POINTS];
  bench_tune_segment segments[TUNE_ROWS * TUNE_POINTS];
  return bench_tune_cut(points, pool(w, first, last, points), segments);
}

/* Whether one row's cuts suit all of the rows: together they need no more segments than alone. */
static bool are_alike(const walk *w, int first, int last) {
  const int together = segments_of(w, first, last), before = segments_of(w, first, last - 1);
  const int alone = segments_of(w, last, last);
  return together <= (before > alone ? before : alone);
}

/* Rows between neighbours that differ. */
static void bisect_rows(walk *w) {
  for (int i = 0; i + 1 < w->count && w->count < TUNE_ROWS && !is_over(w); i++) {
    const int64_t middle = between(w->rows[i].seq_k, w->rows[i + 1].seq_k, ROW_BORDER);
    if (!middle || are_alike(w, i, i + 1)) continue;
    add_row(w, i + 1, middle);
    i--;
  }
}

/* ---- Rules ---- */

static int64_t border(int64_t a, int64_t b) { return (int64_t)sqrt((double)a * (double)b); }

static bool is_in(const bench_tune_point *p, const int64_t seq_q[2]) { return p->seq_q >= seq_q[0] && p->seq_q <= seq_q[1]; }

/* Evidence of a rule for `kernel`: the points of rows first..last that it holds for. */
static void set_evidence(const walk *w, int first, int last, int kernel, bench_tune_rule *rule) {
  double sum = 0;
  int count = 0;
  for (int i = first; i <= last; i++)
    for (int j = 0; j < w->rows[i].count; j++) {
      const bench_tune_point *p = &w->rows[i].points[j];
      const double margin = p->ratio[TUNE_AUTO] / p->ratio[kernel];
      if (!is_in(p, rule->seq_q)) continue;
      sum += log(margin);
      if (!count || margin < rule->low) rule->low = margin;
      if (!count || margin > rule->high) rule->high = margin, rule->second = attn_kernel_get(p->automatic)->name;
      count++;
    }
  rule->margin = exp(sum / count);
}

static bool add_rule(bench_tune_result *result, const bench_tune_rule *rule) {
  bench_tune_rule *rules = bench_grown(result->rules, result->rule_count, sizeof *rules);
  if (!rules) return false;
  result->rules = rules;
  rules[result->rule_count++] = *rule;
  return true;
}

/* Points of the row that a rule holds for; with `needy`, those that the built-in choice does not suit. */
static int count_points(const row *r, const bench_tune_rule *rule, bool needy) {
  int count = 0;
  for (int i = 0; i < r->count; i++)
    count += is_in(&r->points[i], rule->seq_q) && !(needy && bench_tune_suits(&r->points[i], TUNE_AUTO));
  return count;
}

/* Leaves of the rows of a segment those of its rule: from the first to the last that needs it. Causal rows of few keys have
 * no points of many queries, so they are none of its rows; rows of many keys lack points that take too long, and the rule
 * holds for them. */
static void set_keys(const walk *w, int *first, int *last, bench_tune_rule *rule) {
  while (*first < *last && !count_points(&w->rows[*first], rule, true)) ++*first;
  while (*last > *first && count_points(&w->rows[*last], rule, false) && !count_points(&w->rows[*last], rule, true)) --*last;
  rule->seq_k[0] = *first ? border(w->rows[*first - 1].seq_k, w->rows[*first].seq_k) + 1 : 1;
  rule->seq_k[1] = *last + 1 < w->count ? border(w->rows[*last].seq_k, w->rows[*last + 1].seq_k) : INT64_MAX;
}

/* Queries that a segment's rule holds for: from the first to the last point that needs it, and half the way to those beside
 * them, so that it reaches over nothing that was not measured. */
static void set_queries(const bench_tune_point *const *points, int count, bench_tune_segment *s, bench_tune_rule *rule) {
  while (bench_tune_suits(points[s->first], TUNE_AUTO)) s->first++;
  while (bench_tune_suits(points[s->last], TUNE_AUTO)) s->last--;
  const int64_t least = points[s->first]->seq_q, most = points[s->last]->seq_q;
  int before = s->first, after = s->last;
  while (before >= 0 && points[before]->seq_q == least) before--;
  while (after < count && points[after]->seq_q == most) after++;
  rule->seq_q[0] = before >= 0 ? border(points[before]->seq_q, least) + 1 : 1;
  rule->seq_q[1] = after < count ? border(most, points[after]->seq_q) : most >= OPEN_FROM ? INT64_MAX : 2 * most;
}

/* Rules of rows first..last, where the built-in choice does not suit. */
static bool make_rules(const walk *w, int first, int last) {
  const bench_tune_point *points[TUNE_ROWS * TUNE_POINTS] = {NULL};
  bench_tune_segment cut[TUNE_ROWS * TUNE_POINTS];
  const int total = pool(w, first, last, points), count = bench_tune_cut(points, total, cut);
  bool fine = true;
  for (int i = 0; i < count && fine && count <= total; i++) {
    bench_tune_rule rule = {.dtype = w->line->dtype, .causal = w->line->causal};
    if (cut[i].kernel == TUNE_AUTO) continue;
    set_queries(points, total, &cut[i], &rule);
    int from = first, to = last;
    set_keys(w, &from, &to, &rule);
    rule.step = w->line->step;
    memcpy(rule.dim, w->line->dims, sizeof rule.dim);
    memcpy(rule.group, w->line->groups, sizeof rule.group);
    rule.kernel = attn_kernel_get(cut[i].kernel)->name;
    set_evidence(w, from, to, cut[i].kernel, &rule);
    fine = add_rule(w->result, &rule);
  }
  return fine;
}

/* Neighbouring rows that are alike share their rules. */
static bool conclude(const walk *w) {
  bool fine = true;
  for (int first = 0, last = 0; first < w->count && fine; first = last + 1) {
    for (last = first; last + 1 < w->count && are_alike(w, first, last + 1);) last++;
    fine = make_rules(w, first, last);
  }
  return fine;
}

bool bench_tune_walk(const bench_tune_source *source, const bench_tune_line *line, double seconds,
                     bench_tune_result *result) {
  static const int64_t coarse[] = {9, 19, 37, 83, 189, 550, 1490, 4490}; /* as most: no multiples of what kernels take */
  walk *w = calloc(1, sizeof *w);
  if (!w) return false;
  w->source = source;
  w->line = line;
  w->result = result;
  w->end_s = source->now_s(source->context) + seconds;
  for (size_t i = sizeof coarse / sizeof *coarse; i-- > 0;) add_row(w, 0, coarse[i]); /* short calls fit into what is left */
  bisect_rows(w);
  const bool fine = conclude(w);
  free(w);
  return fine;
}
