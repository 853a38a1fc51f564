/* SPDX-License-Identifier: MIT */
/* A trial: one kernel, or one layer, on one case while it is checked and timed. */
#ifndef BENCH_TRIAL_H
#define BENCH_TRIAL_H

#include "base/build.h"
#include "base/clock.h"
#include "base/process.h"
#include "check/check.h"
#include "layers/layer.h"
#include "timing/rates.h"
#include "timing/reading.h"
#include "timing/stats.h"

/* Measurements of each round. */
typedef struct bench_samples {
  double *time_ns;    /* [rounds] per call */
  double *loop_rate;  /* [rounds] rate of the loop beside it in the same round: flop/s of one core while all threads run the
                         peak loop; bytes/s of all threads for the read loop; 0 without a loop */
  double *busy;       /* [rounds] threads that were busy, by their CPU time */
  double *ran;        /* [rounds] CPU time / time, of each thread: less than 1 where other programs had its core */
  double *late;       /* [rounds] CPU time of the calling thread in looks at outputs / in calls */
  double *core_share; /* [rounds] bench_core_share(), the lower one of before and after the calls; 0: not known */
  int *position;      /* [rounds] place in the order of the round */
  int64_t iterations; /* calls per sample */
  int waited;         /* rounds with as many waits of the calling thread as calls, or more */
  int rounds;
} bench_samples;

/* Where a trial runs (timing/places.h). */
typedef struct bench_place {
  const bench_build *build; /* NULL: attnbench's own */
  attn_plan *plan;          /* NULL: of a layer */
  attn_plan *before;        /* or NULL: bench_trial.before */
  void *workspace, *memory; /* memory: to be freed */
} bench_place;

typedef struct bench_trial {
  const attn_kernel_info *kernel; /* the kernel that runs; bench_automatic until the library has chosen */
  bool automatic;                 /* the library was asked to choose */
  attn_numerics numerics;         /* those of all kernels that run (bench_trial_declare()) */
  bool refused;                   /* the kernel cannot run the case: the verdict says why */
  bool leaves_threads;            /* there were more threads after its check, or after a sample, than before */
  int threads;                    /* the case's; the loop beside it runs on as many at once */
  bool steady;                    /* the case's */

  /* The subject of the trial: a plan on tensors, or a layer, which has its own data. The verdict holds for it alone. */
  const bench_build *build;   /* whose plan it is; NULL: attnbench's own */
  const bench_copies *copies; /* the build at several places in memory; NULL: at one */
  attn_plan *plan;
  attn_plan
      *before; /* NULL, or what each call runs first, in the same workspace: the attention of a case with both passes */
  attn_numerics before_numerics;
  bench_layer_trial *layer;
  bench_tensors *tensors; /* [tensor_count] made with the same values; 1 for a layer */
  int tensor_count;
  bool cold;      /* used in turn, so that each has left the caches before its next use; else in random order */
  bool zero_mean; /* see bench_expected.zero_mean */
  void *workspace;
  size_t workspace_bytes;
  bench_verdict verdict;
  double plan_ns; /* to make the plan or the layer */
  double call_ns; /* one call: a guess from the check, then as calibrated */
  char warnings[200];

  /* The loop that runs beside the samples. */
  const attn_peak_loop *peak; /* loop of the kernel's tier; NULL = none */
  bool reads;                 /* a loop that only reads its tensors, instead of the peak loop */
  double peak_best; /* flop/s of all threads in the best slice, if a kernel beats the median of the slices beside the
                       samples; 0: none does */

  bench_samples samples; /* owned: bench_trial_clear() frees them */

  /* State of bench_time(). */
  bench_peak_slice slice; /* loop NULL: no peak loop */
  int quota;              /* rounds that the trial takes part in */
  int64_t *turn;  /* number of the next call among all trials that share the tensors, which it picks. NULL for one tensor */
  int group;      /* calls between two readings of the clock */
  double row_ns;  /* time of a close look */
  bool by_kernel; /* it begins with another kernel's answer: the oracle takes too long for a row */
  bench_place *places; /* [placing.count]; NULL: all rounds take the plan and the workspace that were checked */
  bench_place home;    /* those */
  bench_placing placing;
} bench_trial;

/* Whose functions the plan belongs to. */
const bench_build *bench_trial_build(const bench_trial *trial);

/* Stands for the library's own choice in a list of kernels: name "auto". */
extern const attn_kernel_info bench_automatic;

/* Gives the trial a verdict that has a status and a reason alone; false. */
#define bench_conclude(trial, how, ...) \
  ((trial)->verdict = (bench_verdict){.status = (how)}, bench_set_reason(&(trial)->verdict, how, __VA_ARGS__))

/* Adds to the trial's warnings. */
void bench_warn(bench_trial *trial, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One call on the tensors of a turn (any number >= 0). */
attn_status bench_trial_call(const bench_trial *trial, int64_t turn);
attn_status bench_trial_call_before(const bench_trial *trial, int64_t turn); /* bench_trial.before alone */

/* Restores the checked inputs and poisons the output. The poison changes from round to round: NaN, or small numbers. The
 * hash of the right output stays the same, also after bench_trial_renew(), which multiplies V by a factor. */
void bench_trial_restore(const bench_trial *trial, int64_t turn);
uint64_t bench_trial_output_hash(const bench_trial *trial, int64_t turn);
void bench_trial_renew(const bench_trial *trial, int64_t turn, int threads);
void bench_trial_poison(const bench_trial *trial, int64_t turn);

/* Inputs that no call has seen, with some poison in the output (of layers: another one of those that the check has seen).
 * Then what is wrong with the output of a call on them, or NULL: the poison is still there. And, at one row that `random`
 * chooses: it is not what the oracle says. `text` takes the sentence. */
void bench_trial_freshen(const bench_trial *trial, int64_t turn, uint64_t *random);
const char *bench_trial_look(const bench_trial *trial, int64_t turn);
const char *bench_trial_look_closely(const bench_trial *trial, int64_t turn, uint64_t random, char *text, size_t bytes);

/* Fills in `numerics` once plan and tensors, or the layer, are there: the largest numbers of all kernels that run. */
void bench_trial_declare(bench_trial *trial);

/* Moves the trial to the placement of its next round. Whether it was elsewhere. */
bool bench_place_take(bench_trial *trial);

/* Room for the samples of so many rounds. False if memory is short. */
bool bench_trial_allocate(bench_trial *trial, int rounds);
void bench_trial_clear(bench_trial *trial);

/* ---- Samples ------------------------------------------------------------------------------------------------------ */
/* One sample of one trial: calls against the clock, with slices of a loop before and after them. */

/* Everything that timing asks of the world. Tests pass a meter with a simulated clock and scripted trials, and so know every
 * number that must come out. */
typedef struct bench_meter {
  double (*now_ns)(void);
  bench_clocks (*clocks)(void);
  bench_cpu_time (*cpu_now)(void);
  double (*own_cpu_ns)(void);    /* CPU time of the calling thread: bench_cpu_time.own_ns */
  double (*resolution_ns)(void); /* 0 if the clock stands still */
  bench_team (*team)(int threads);
  void (*dismiss)(void);                           /* see bench_team_dismiss() */
  bool (*stays)(int threads, uint64_t float_mode); /* see bench_team_stays() */
  attn_status (*call)(const bench_trial *trial, int64_t turn);
  void (*renew)(const bench_trial *trial, int64_t turn, int threads);
  void (*poison)(const bench_trial *trial, int64_t turn);
  void (*restore)(const bench_trial *trial, int64_t turn);
  uint64_t (*output_hash)(const bench_trial *trial, int64_t turn);
  void (*freshen)(const bench_trial *trial, int64_t turn, uint64_t *random);
  const char *(*look)(const bench_trial *trial, int64_t turn);
  const char *(*look_closely)(const bench_trial *trial, int64_t turn, uint64_t random, char *text, size_t bytes);
  bench_peak_slice (*peak_prepare)(const attn_peak_loop *loop, int threads, double slice_ns);
  double (*peak_rate)(const bench_peak_slice *slice);
  double (*read_rate)(const bench_trial *trial, int64_t turn,
                      int threads); /* see bench_read_rate(); as many passes as a sample has calls */
  double (*bandwidth)(size_t bytes, int threads, bool copies); /* see bench_read_bandwidth(), bench_copy_bandwidth() */
  double (*core_share)(int threads);                           /* see bench_core_share() */
} bench_meter;

extern const bench_meter bench_machine_meter; /* this machine's clock, calls and loops */

typedef struct bench_sampler {
  const bench_meter *meter;
  int team;              /* threads of the last sample, which may still wait for work in a loop that takes CPU time */
  double sample_ns;      /* a sample lasts at least this long */
  double clock_ns;       /* a reading of the clock adds so much to a time */
  double own_clock_ns;   /* a reading of the thread's CPU time adds so much to that */
  uint64_t random;       /* random bits for everything that a kernel must not foresee */
  uint64_t float_mode;   /* the thread's; no call may change it */
  bench_process process; /* before the last sample */
  char error[400];
} bench_sampler;

enum { BENCH_SLICES = 2 }; /* slices before a sample; as many follow it */

/* The rates of the slices that ran last. */
typedef struct bench_slices {
  const attn_peak_loop
      *loop; /* the loop of the last slices, if another trial may use them; NULL: none, or the read loop's */
  double rate[BENCH_SLICES];
} bench_slices;

/* Says what went wrong; false. */
#define bench_sampler_fail(sampler, ...) bench_say((sampler)->error, sizeof(sampler)->error, __VA_ARGS__)

/* Whether the trial had its cores to itself in that round: no other program ran on their other hardware threads. */
bool bench_sample_is_undisturbed(const bench_trial *trial, int round);

/* Whether bench_sample_is_undisturbed() can tell: on CPUs that bench_core_share() knows. */
bool bench_knows_disturbance(const bench_trial *trial);

/* Finds how many calls make a sample, which also warms up, and how long a slice of the peak loop is. Sets call_ns. False
 * with the sampler's error if a call failed. */
bool bench_sample_calibrate(bench_sampler *sampler, bench_trial *trial);

/* Whether calls left the thread's floating-point mode as it was. It is checked after every group of calls, since the mode
 * stays what a call made it. False with the sampler's error, and the mode restored. */
bool bench_sample_keeps_float_mode(bench_sampler *sampler, const bench_trial *trial);

/* Whether calls set no handler of a signal, and left the process and the trial's threads as they were before its sample.
 * False with the sampler's error; the signal is ignored from now on, all else put back. */
bool bench_sample_leaves_process(bench_sampler *sampler, const bench_trial *trial);

/* Appends a sample. *last holds the slices before it, if they are of the trial's loop, and then those after it. False
 * with the sampler's error if a call failed, an output is wrong, or clocks disagree. */
bool bench_sample_take(bench_sampler *sampler, bench_trial *trial, int position, bench_slices *last);

/* Bytes/s of the read loop on the trial's tensors, which are those of its next calls. */
double bench_sample_read(const bench_meter *meter, const bench_trial *trial);

/* The same for a layer, whose data are its own: on buffers of as many bytes. Where the layer only copies, so does the loop.
 */
double bench_sample_read_layer(const bench_meter *meter, const bench_case *bench, double bytes);

/* About how long bench_sample_take() takes. */
double bench_sample_guess_ns(const bench_trial *trial);

/* ---- Rounds ------------------------------------------------------------------------------------------------------- */
/* How a time comes about: rounds in which every trial of a case runs once, in changing order, with a loop beside it. A time
 * cannot be asked for without a passed check: the verdict is part of the trial, and anything but PASS is refused. */

typedef struct bench_timing_options {
  double precision;          /* stop when the 95 % interval of every median is within +-precision (0.01) */
  int min_rounds;            /* 11 */
  int max_rounds;            /* sample cap, at least min_rounds */
  double budget_s;           /* for one case */
  double min_sample_s;       /* a sample repeats the call until it lasts this long, and >= 1000 clock resolutions */
  uint64_t seed;             /* for the order */
  volatile const int *stop;  /* set by Ctrl-C: finish the round and return; NULL = never */
  const bench_meter *meter;  /* NULL = bench_machine_meter */
  const bench_trial *reader; /* whose tensors the read loop reads once a round; NULL: none */
  double *read_rates;        /* [max_rounds] of the read loop, bytes/s */
} bench_timing_options;

typedef enum bench_stop { BENCH_STOP_PRECISION, BENCH_STOP_ROUNDS, BENCH_STOP_BUDGET, BENCH_STOP_INTERRUPT } bench_stop;
extern const char *const bench_stop_names[]; /* "precision" ..., ended by NULL */
#define bench_stop_name(stop) bench_stop_names[stop]

enum { BENCH_MOST_GROUP = 16 };
#define BENCH_GROUP_NS 4e3 /* calls shorter than this share two readings of the clock, if there are tensors enough */

/* How many calls share them. */
int bench_group_of(double call_ns);

/* Times all trials together, whatever threads each has: at most max_rounds samples of each, fewer of those too slow for
 * their share of the budget; sample n of any two trials belongs to the same round. *stop says why the last round was the
 * last. False with a sentence in *error: a trial without PASS, a clock that does not tick, a call that failed, an output
 * that is wrong. *failed: the trial whose call or output it was; NULL for other reasons. */
bool bench_time(bench_trial *const *trials, int count, const bench_timing_options *options, bench_stop *stop,
                const char **error, bench_trial **failed);

#endif
