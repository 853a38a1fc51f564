/* SPDX-License-Identifier: MIT */
/* Packages, nodes, cores and caches, and the CPUs that timed threads are kept on. */
#include <stdio.h>
#include <string.h>

#include "machine/affinity.h"
#include "machine/cpu_list.h"
#include "machine/environment_private.h"

static void add_number(bench_environment *e, const char *name, int number) {
  bench_fact_add(e, name, BENCH_OK, "", "%d", number);
}

/* The CPUs of the topology that this process may use; all of them if it is another machine's. */
static cpu_set_t usable_cpus(const bench_topology *topology) {
  cpu_set_t set;
  if (!topology->here || sched_getaffinity(0, sizeof set, &set)) return topology->cpus;
  return set;
}

static void add_affinity(bench_environment *e) {
  char list[400];
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) {
    bench_fact_note(e, "affinity", "");
    return;
  }
  bench_cpu_list_write(&set, list, sizeof list);
  bench_fact_add(e, "affinity", BENCH_OK, "", "CPUs %s", list);
}

void bench_environment_set_binding(bench_environment *environment, const cpu_set_t *cpus, int threads) {
  char text[512];
  const bool bound = bench_describe_binding(bench_topology_get(), cpus, threads, text, sizeof text);
  int place = 0;
  while (place < environment->count && strcmp(environment->facts[place].name, "binding")) place++;
  const int last = environment->count;
  bench_fact_add(environment, "binding", bound ? BENCH_OK : BENCH_WARN, bound ? "" : "fewer threads", "%s", text);
  if (place == last || environment->count == last) return;
  environment->facts[place] = environment->facts[last];
  environment->count = last;
}

void bench_environment_add_topology(bench_environment *environment) {
  const bench_topology *t = bench_topology_get();
  const cpu_set_t usable = usable_cpus(t);
  bench_fact_note(environment, "topology", t->source);
  add_number(environment, "packages", t->packages);
  add_number(environment, "nodes", t->nodes);
  add_number(environment, "cores", t->cores);
  add_number(environment, "pus", t->count);
  if (t->caches[0]) bench_fact_note(environment, "caches", t->caches);
  add_affinity(environment);
  bench_environment_set_binding(environment, &usable, 0);
}
