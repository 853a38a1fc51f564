/* SPDX-License-Identifier: MIT */
/* A simulated clock and scripted trials, so that every number that timing reports is known beforehand. The tests that use
 * them have simulated_begin() and simulated_end() as set-up and teardown. */
#ifndef TESTS_SIMULATED_H
#define TESTS_SIMULATED_H

#ifndef TEST_SETUP
#define TEST_SETUP simulated_begin
#endif
#ifndef TEST_TEARDOWN
#define TEST_TEARDOWN simulated_end
#endif
int simulated_begin(void **state), simulated_end(void **state);
#include "tests/support/layer_support.h"
#include "timing/setup.h"

enum { MOST_EVENTS = 20000, MOST_ROUNDS = 64, MOST_TENSORS = BENCH_MOST_GROUP, MOST_TRIALS = 6 };

/* ---- The world ------------------------------------------------------------------------------------------------------- */

/* The simulated behaviour of a trial. The first member must be `kernel`, to which the trial points. */
typedef struct script {
  attn_kernel_info kernel;
  double call_ns[MOST_ROUNDS]; /* a call in round r takes call_ns[r % lengths] */
  int lengths;
  double control_factor; /* factor of the times of the A/A control, a second trial of the same kernel */
  double own_share;      /* share of its calls that the calling thread itself runs; 0: all */
  double busy;           /* busy threads; 0: as many as the trial has, or as a larger team that still spins */
  double alone_factor;   /* factor of the times of a trial with one thread, beside others; 0 = 1 */
  double late_share;     /* share of a call's time that the first look at its output takes */
  bool waits;            /* each call waits once */
  bool remembers;        /* repeats its first answer for a tensor, whatever the tensor holds now */
  int idle_from;         /* from this round on it writes no output; 0 = never */
  int wrong_from;        /* from this round on it writes another output */
  int hidden_from;       /* from this round on, where no close look sees it */
  int fail_from;         /* from this round on its calls fail */
  int interrupt_in;      /* in this round the user presses Ctrl-C; 0 = never */
} script;

typedef enum event_kind { CALL, FRESHEN, LOOK, RENEW, POISON, RESTORE, HASH, LOOK_CLOSELY, PEAK, READ, DISMISS } event_kind;

typedef struct event {
  event_kind kind;
  const bench_trial *trial; /* NULL: PEAK, DISMISS */
  const attn_peak_loop *loop;
  int64_t turn;
  double rate;
} event;

typedef struct simulated_world {
  double now_ns, resolution_ns, peak_rate;
  double row_ns;      /* a close look; 0: 1000 */
  double readings_ns; /* all readings of the calling thread's CPU time */
  double best_factor; /* factor of the peak of the last loop; 0 = 1 */
  event log[MOST_EVENTS];
  int events;
  int64_t calls;
  bench_cpu_time cpu;
  int threads, most_threads, cpus; /* threads that spin; most that OpenMP gives; CPUs that it may use (0: enough) */
  int version[MOST_TENSORS];       /* version of the inputs */
  int remembered[MOST_TENSORS];    /* the first version that a call saw */
  bool marked[MOST_TENSORS];       /* the output holds the mark of freshen() */
  uint64_t output[MOST_TENSORS];   /* outputs of the trial that was poisoned last */
  volatile int stop;
  const bench_trial *control;
  const script *all;                 /* the script of every trial; NULL: each trial has its own */
  double libc_factor, system_factor; /* factors by which the C library's clock, and system calls, are too quick; 0 = 1 */
  double slow_until_ns;              /* until then peak loops are disturbed */
  int slices;
  int read_rounds;     /* reads so far, of a loop that reads once a round */
  double read_gbs;     /* rate of all threads; 0: faster than any kernel */
  bool read_disturbed; /* in the seven rounds a quarter of it */
  bool read_slower;    /* in round n a share of 1 / (n + 1) */
  size_t bandwidth_bytes;
  int disturb;                             /* so many of the next calls take a hundred times as long */
  int (*effect)(const bench_trial *trial); /* called in every call: SPOILT or FAILED; NULL: all are right */
  double luck;                             /* standard deviation of the log-times of placements; 0: all are alike */
  const void *place[3 * MOST_ROUNDS],
      *owner[3 * MOST_ROUNDS]; /* workspaces in the order of their first calls; whose each is */
  int places, shared;          /* so many calls were in the workspace of another trial */
  const void *filled;          /* the last workspace that was, */
  size_t filled_bytes;
  int filled_by;                 /* and by how many threads */
  int core_looks, looks_a_round; /* looks at the core's share; looks_a_round 0: it is not known */
  uint64_t disturbed;            /* rounds in which one of these looks finds another program, as bits */
} simulated_world;
enum { SPOILT = 1, FAILED = 2 };
extern simulated_world sim;
extern const bench_meter simulated;

/* A script whose calls all take as long. */
script steady(const char *name, double ns);
extern script any; /* for tests that need no other one */

/* A trial of one thread that passed its check. */
bench_trial trial_of(const script *s);

/* Allocations fail after so many; -1: none does. */
void fail_allocations_after(int count);

/* ---- One run of the rounds ------------------------------------------------------------------------------------------- */

typedef struct timing {
  bench_trial trial[MOST_TRIALS];
  int64_t turn;
  int count;
  bench_timing_options options;
  bench_stop stop;
  const char *error;
  bench_trial *failed;
} timing;
extern timing t; /* the current run, which the teardown clears */

/* Sets up a run of these scripts with fixed rounds of 1 us samples and no peak loop. clear_run() frees what it holds. */
void set_up(const script *const *scripts, int count, int rounds);
void clear_run(void);

/* Sets up a run of the scripts whose addresses are given. */
#define SET_UP(rounds, ...) \
  set_up((const script *const[]){__VA_ARGS__}, (int)COUNT(((const script *const[]){__VA_ARGS__})), rounds)

/* Runs the rounds; run_well() fails the test where they fail. */
bool run_rounds(void);
void run_well(void);

void assert_close(double a, double b);

/* ---- From trials to rows --------------------------------------------------------------------------------------------- */

extern bench_setup setup; /* the current case with scripted trials; only its id is real. The teardown clears it */
extern bench_row rows[MOST_TRIALS];
extern const bench_case_settings seven_rounds;
extern const char one_thread[], two_threads[]; /* cases */

void open_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count);

/* Times the case and makes its rows. */
void time_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count);

#endif
