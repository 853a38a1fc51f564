/* SPDX-License-Identifier: MIT */
/* A run on machines that are not at hand: times of single tasks, measured here, are played on any number of threads. Who
 * takes which task, and when it may begin, is asked of the library's own deal (src/plan/deal.h).
 *
 * A task takes as long as it took alone, and longer by what its bytes take beside others that read. Where the tasks that run
 * together want more bytes per second of a node's memory than it gives, all that read there take longer by the same factor;
 * and so do all that read other nodes' memory, where they want more than their node gets from there. */
#ifndef BENCH_SIMULATE_H
#define BENCH_SIMULATE_H

#include "attn/attn.h"
#include "cases/case.h"
#include "src/plan/deal.h"
#include "src/plan/nodes.h"

/* ---- Machines ----------------------------------------------------------------------------------------------------- */

enum { SIM_MOST_NODES = 64, SIM_MOST_CACHES = 64 };

/* Where the bytes of all tasks lie: alike in all nodes, in the node of the thread that needs them, all in the first, or each
 * head's in the node that its tasks are dealt to where the deal knows nodes (src/plan/deal.h). */
typedef enum sim_memory { SIM_SPREAD, SIM_LOCAL, SIM_FIRST, SIM_HEADS } sim_memory;

typedef struct sim_node {
  int cores;
  double bytes_per_ns; /* its memory gives so much */
  double remote;       /* its cores get so much from all other memories, in bytes per ns; 0: as much as these give */
  int caches;          /* last-level caches that its cores are divided among; 0 = 1 */
} sim_node;

/* Threads take the cores of the first node, then those of the next. */
typedef struct sim_machine {
  int nodes, cores;
  sim_node node[SIM_MOST_NODES];
  sim_memory memory;
  bool flat;      /* the library knows of no nodes */
  double loop_ns; /* starting and joining a parallel loop; 0: as measured here */
} sim_machine;

/* The help for a topology file. */
extern const char bench_topology_help[];

/* Reads a machine from the text of a topology file called `name`. False with a sentence that names line and field. */
bool sim_machine_read(const char *name, const char *text, sim_machine *machine, char *error, size_t error_bytes);

/* One node, each of whose cores can read so much at once with all others. */
sim_machine sim_machine_scaled(int cores, double bytes_per_ns);

/* The node of a thread; and the nodes of so many threads as the library is to see them when it makes a plan: all, though
 * the map has room for the CPUs of the first threads only. */
int sim_node_of(const sim_machine *machine, int thread);
attn_node_map sim_node_map(const sim_machine *machine, int threads);

/* ---- Playing ------------------------------------------------------------------------------------------------------ */

/* Tasks are numbered by phase, then unit, then item. */
typedef struct sim_work {
  const attn_schedule *schedule;
  const double *task_ns;         /* [tasks] alone on one core */
  double bytes[ATTN_MAX_PHASES]; /* a task of the phase reads and writes so many in memory */
  double packed_bytes;           /* a unit's, packed in the first phase, which each cache then reads once */
  double wait_ns;                /* a byte takes a core so much longer while all others read than alone */
  double take_ns;                /* to take a task */
  double loop_ns;                /* to start and join the threads */
} sim_work;

int64_t sim_task_count(const attn_schedule *schedule);
int64_t sim_task_number(const attn_schedule *schedule, const attn_task *task);

/* Thread time of a run, in nanoseconds: threads * ns is the sum of all. */
typedef struct sim_result {
  double ns;         /* the run */
  double work_ns;    /* the tasks, as long as they take alone */
  double memory_ns;  /* and longer, for want of bytes per second */
  double waiting_ns; /* for earlier phases of a unit */
  double over_ns;    /* after a thread's last task, until the last thread's */
  double loop_ns;    /* starting and joining */
  double longest_ns; /* the longest task alone */
  int64_t tasks;
  int working; /* threads that took a task */
} sim_result;

/* False if memory is short. threads <= machine->cores. */
bool sim_play(const sim_work *work, int threads, const sim_machine *machine, sim_result *result);

/* The largest loss in a word or two; "work" if less than a twentieth of the thread time is lost. */
const char *sim_limit(const sim_result *result, int threads);

/* ---- Measuring ---------------------------------------------------------------------------------------------------- */

/* The tasks of a case, as the library plans it for so many threads. */
typedef struct sim_row {
  int threads; /* the case asks for so many; the plan may take fewer */
  int planned;
  char kernel[64];
  int64_t rows, keys, tasks; /* blocks of queries and keys; tasks of all phases */
  double measured_ns;        /* a call on so many threads; 0: there are not so many CPUs */
  double of_measured;        /* with it: predicted over measured of one round, the median of rounds */
  double one_ns;             /* predicted for the plan of one thread */
  sim_result result;
} sim_row;

typedef struct sim_bench sim_bench;

/* Opens a case, whatever its threads, for measurements on this machine. NULL, with a sentence in error. */
sim_bench *sim_bench_open(const bench_case *bench, char *error, size_t error_bytes);
void sim_bench_close(sim_bench *sim); /* NULL is fine */

/* Predicts a call on `threads` threads of the machine; NULL: one of as many cores as threads, whose memory is as fast for
 * each core as this machine's is for all CPUs at once. False with a sentence. */
bool sim_bench_predict(sim_bench *sim, int threads, const sim_machine *machine, sim_row *row, char *error,
                       size_t error_bytes);

/* With row->threads threads: one thread's time over theirs together; and the share of their time without a task. */
double sim_efficiency(const sim_row *row);
double sim_idle(const sim_row *row);

/* Predicts cases, prints a table, and writes JSON (NULL: none, - = stdout instead of the table). Returns an exit code,
 * having said why on stderr. machine: as above. */
int sim_explain(const bench_case *cases, int count, const sim_machine *machine, const char *json);

#endif
