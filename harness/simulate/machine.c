/* SPDX-License-Identifier: MIT */
/* Topology files: a line for each node, and what holds for all. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "kernels/common/problem/arithmetic.h"
#include "simulate/simulate.h"

const char bench_topology_help[] =
    "\nTopology file: lines of fields, in any order; # begins a comment.\n"
    "  node cores=32 bandwidth=200   a NUMA node, its cores, and GB/s of its memory; a line for each;\n"
    "       remote=80 caches=4       also GB/s from all other nodes' memory (default: what these give),\n"
    "                                and its last-level caches (default: 1)\n"
    "  memory spread                 where tensors lie: spread over all nodes (default), local = in the\n"
    "                                node of the thread that needs them, first = in the first node,\n"
    "                                heads = each head in the node that the library gives its tasks to\n"
    "  deal flat                     who takes which task: by nodes (default), or flat = as on one node\n"
    "  loop us=5                     time to start and join the threads (default: of two threads as\n"
    "                                measured here, and as much for each doubling)\n";

typedef struct reading {
  const char *name;
  int line;
  char *error;
  size_t error_bytes;
} reading;

static bool field_fails(const reading *r, const char *field, const char *value, const char *right) {
  return bench_say(r->error, r->error_bytes, "%s, line %d: %s is '%s'; it must be %s", r->name, r->line, field, value,
                   right);
}

/* The value of `key` in the next word, "key=value". */
static bool read_number(const reading *r, const char *word, const char *key, double least, double most, const char *right,
                        double *value) {
  const size_t length = strlen(key);
  const char *text = word + length + 1;
  if (!cli_read_real(text, value) || *value < least || *value > most) return field_fails(r, key, text, right);
  return true;
}

static bool has_key(const char *word, const char *key) {
  return strncmp(word, key, strlen(key)) == 0 && word[strlen(key)] == '=';
}

static const char *const right_cores = "a whole number from 1 to 4096", *const right_rate = "GB/s above 0",
                         *const right_us = "microseconds above 0", *const right_caches = "a whole number from 1 to 64";

static bool read_caches(const reading *r, const char *word, int *caches) {
  double value;
  if (!read_number(r, word, "caches", 1, SIM_MOST_CACHES, right_caches, &value)) return false;
  *caches = (int)value;
  return value == *caches || field_fails(r, "caches", word + strlen("caches="), right_caches);
}

static bool read_node(const reading *r, char *words, sim_machine *m) {
  double cores = 0, rate = 0, remote = 0;
  int caches = 1;
  if (m->nodes == SIM_MOST_NODES)
    return bench_say(r->error, r->error_bytes, "%s, line %d: node %d; there may be at most %d", r->name, r->line,
                     m->nodes + 1, SIM_MOST_NODES);
  for (char *word; (word = strtok_r(NULL, " \t\r", &words));) {
    if (has_key(word, "cores")) {
      if (!read_number(r, word, "cores", 1, CLI_MOST_THREADS, right_cores, &cores)) return false;
      if (cores != (int)cores) return field_fails(r, "cores", word + strlen("cores="), right_cores);
    } else if (has_key(word, "bandwidth")) {
      if (!read_number(r, word, "bandwidth", 1e-6, 1e9, right_rate, &rate)) return false;
    } else if (has_key(word, "remote")) {
      if (!read_number(r, word, "remote", 1e-6, 1e9, right_rate, &remote)) return false;
    } else if (has_key(word, "caches")) {
      if (!read_caches(r, word, &caches)) return false;
    } else {
      return field_fails(r, "a field of node", word, "cores=N, bandwidth=GB/s, remote=GB/s or caches=N");
    }
  }
  if (cores == 0) return field_fails(r, "cores", "", right_cores);
  if (rate == 0) return field_fails(r, "bandwidth", "", right_rate);
  m->node[m->nodes++] = (sim_node){(int)cores, rate, remote, caches};
  m->cores += (int)cores;
  return true;
}

/* The only further word of a line, as an index into names; -1 after an error. */
static int read_word(const reading *r, char *words, const char *field, const char *const *names, const char *right) {
  const char *word = strtok_r(NULL, " \t\r", &words), *more = word ? strtok_r(NULL, " \t\r", &words) : NULL;
  const int index = word && !more ? cli_index_of(word, names) : -1;
  if (index < 0) field_fails(r, field, more ? more : word ? word : "", right);
  return index;
}

static bool read_memory(const reading *r, char *words, sim_machine *m) {
  static const char *const names[] = {"spread", "local", "first", "heads", NULL};
  const int index = read_word(r, words, "memory", names, "spread, local, first or heads");
  m->memory = (sim_memory)max64(index, 0);
  return index >= 0;
}

static bool read_deal(const reading *r, char *words, sim_machine *m) {
  static const char *const names[] = {"nodes", "flat", NULL};
  const int index = read_word(r, words, "deal", names, "nodes or flat");
  m->flat = index == 1;
  return index >= 0;
}

static bool read_loop(const reading *r, char *words, sim_machine *m) {
  const char *word = strtok_r(NULL, " \t\r", &words);
  if (!word || !has_key(word, "us") || strtok_r(NULL, " \t\r", &words))
    return field_fails(r, "loop", word ? word : "", "us=MICROSECONDS");
  const bool read = read_number(r, word, "us", 1e-6, 1e9, right_us, &m->loop_ns);
  m->loop_ns *= 1e3;
  return read;
}

static bool read_line(const reading *r, char *line, sim_machine *m) {
  static const char *const names[] = {"node", "memory", "deal", "loop", NULL};
  static bool (*const readers[])(const reading *, char *, sim_machine *) = {read_node, read_memory, read_deal, read_loop};
  char *words;
  line[strcspn(line, "#")] = 0;
  const char *word = strtok_r(line, " \t\r", &words);
  const int index = word ? cli_index_of(word, names) : -1;
  if (!word) return true;
  return index >= 0 ? readers[index](r, words, m) : field_fails(r, "the first word", word, "node, memory, deal or loop");
}

bool sim_machine_read(const char *name, const char *text, sim_machine *machine, char *error, size_t error_bytes) {
  reading r = {.name = name, .error = error, .error_bytes = error_bytes};
  char line[400];
  *machine = (sim_machine){0};
  while (*text) {
    const size_t length = strcspn(text, "\n");
    r.line++;
    if (length >= sizeof line)
      return bench_say(error, error_bytes, "%s, line %d has %zu characters; at most %zu are read", name, r.line, length,
                       sizeof line - 1);
    memcpy(line, text, length);
    line[length] = 0;
    text += length + (text[length] == '\n');
    if (!read_line(&r, line, machine)) return false;
  }
  return machine->nodes > 0 ||
         bench_say(error, error_bytes, "%s has no node; it needs a line such as 'node cores=32 bandwidth=200'", name);
}

sim_machine sim_machine_scaled(int cores, double bytes_per_ns) {
  return (sim_machine){.nodes = 1, .cores = cores, .node = {{.cores = cores, .bytes_per_ns = bytes_per_ns * cores}}};
}

int sim_node_of(const sim_machine *m, int thread) {
  int node = 0;
  for (int cores = m->node[0].cores; thread >= cores; cores += m->node[++node].cores) assert(node + 1 < m->nodes);
  return node;
}

attn_node_map sim_node_map(const sim_machine *m, int threads) {
  attn_node_map map = {.cpus = (int)min64(threads, ATTN_MOST_CPUS), .nodes = 1};
  for (int i = 0; i < threads && !m->flat; i++) {
    const int node = sim_node_of(m, i);
    map.nodes |= UINT64_C(1) << node;
    if (i < map.cpus) map.node[i] = (unsigned char)node;
  }
  return map;
}
