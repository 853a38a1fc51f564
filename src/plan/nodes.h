/* SPDX-License-Identifier: MIT */
/* NUMA nodes: those that the threads of a call may run on, and the one that a thread is on. A set of nodes is 64 bits, bit n
 * for the system's node n. Only speed depends on them. */
#ifndef ATTN_NODES_H
#define ATTN_NODES_H

#include "attn/extend.h" /* attn_parallel_nodes() */

enum { ATTN_MOST_NODES = 64, ATTN_MOST_CPUS = 1024 /* a cpu_set_t has as many */ };

/* The node of each CPU. */
typedef struct attn_node_map {
  int cpus; /* one more than the highest CPU that is listed */
  unsigned char node[ATTN_MOST_CPUS];
  uint64_t nodes; /* those that have CPUs; 0: the system says nothing of nodes */
} attn_node_map;

/* Reads the lists of CPUs of a folder such as /sys/devices/system/node: its files nodeN/cpulist. */
void attn_node_map_read(const char *folder, attn_node_map *map);

/* The nodes in a set, and how many of them are below `node`: the place of one that is in the set. */
static inline int attn_nodes_count(uint64_t nodes) {
  int count = 0;
  for (; nodes; nodes &= nodes - 1) count++;
  return count;
}
static inline int attn_nodes_below(uint64_t nodes, int node) {
  return attn_nodes_count(nodes & ((UINT64_C(1) << node) - 1));
}

/* The place in the set of the node that the calling thread, worker `worker` of a call, runs on. */
int attn_nodes_here(uint64_t nodes, int worker);

/* For tests and the simulator of attnbench: from now on worker w runs on CPU w (modulo the map's CPUs) of this map, and a
 * call may use all of it. NULL: this machine again. No call may run meanwhile. */
void attn_nodes_pretend(const attn_node_map *map);

#endif
