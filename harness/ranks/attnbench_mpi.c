/* SPDX-License-Identifier: MIT */
/* The program attnbench-mpi. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "ranks/ranks.h"

static ranks_sweep sweep = {.patience_s = 60};

static const cli_option options[] = {
    {CLI_STRING, 'o', "output", "DIR", "the result folder, on the node of rank 0; a sweep that it holds goes on",
     &sweep.folder},
    {CLI_FLAG, 0, "overwrite", NULL, "replace the results that DIR holds", &sweep.overwrite},
    {CLI_FLAG, 0, "share", NULL,
     "every rank measures, also beside others of its node: for ranks bound to CPUs of their own, or to try things out",
     &sweep.share},
    {CLI_DURATION, 0, "patience", "TIME",
     "a rank that is silent for so long is lost; a child that takes so much longer than ten times its guess is ended "
     "(default 60s)",
     &sweep.patience_s},
    {CLI_STRING, 0, "attnbench", "FILE", "the attnbench to run (default: that beside this program)", &sweep.attnbench},
    CLI_END,
};

static const cli_command command = {
    .name = "-mpi",
    .usage = "-o DIR [options] run|check [options of attnbench run or check]",
    .summary =
        "One sweep over the ranks of mpirun or srun: rank 0 deals the cases, longest first, to ranks that are free, one "
        "rank a node, and keeps one journal. What follows `run` or `check` says which cases, kernels and settings.",
    .options = options,
    .epilogue = "Exit codes: those of attnbench run; 1 also if cases could not be measured.\n"};

/* Options that this program sets itself, or that make no sense for a case alone. */
static const char *const refused[] = {"-o",       "--output",     "--csv",   "--json",   "--samples",
                                      "--resume", "--overwrite",  "--shard", "--budget", "--dry-run",
                                      "-n",       "--unmeasured", "--case",  NULL};

static bool is_option(const char *argument, const char *name) {
  const size_t length = strlen(name);
  return !strncmp(argument, name, length) && (!argument[length] || argument[length] == '=' || name[1] != '-');
}

static int check_arguments(void) {
  if (!sweep.folder) return cli_usage_error("-mpi", "-o DIR is missing: the folder of the results");
  if (!sweep.argument_count) return cli_usage_error("-mpi", "run or check is missing, and what is to be measured");
  if (sweep.patience_s < 1) return cli_usage_error("-mpi", "--patience: should be at least 1 s");
  for (int i = 1; i < sweep.argument_count; i++)
    for (int k = 0; refused[k]; k++)
      if (is_option(sweep.arguments[i], refused[k]))
        return cli_usage_error("-mpi", "%s belongs to a run of attnbench alone; results go to -o DIR, before %s", refused[k],
                               sweep.arguments[0]);
  return 0;
}

/* The words before `run` or `check` are for this program. False with an exit code. */
static bool parse(int argc, char **argv, int *code) {
  int own = 1;
  while (own < argc && strcmp(argv[own], "run") && strcmp(argv[own], "check")) own++;
  sweep.argument_count = argc - own;
  sweep.arguments = argv + own;
  if (!cli_parse(&command, own, argv, code)) return false;
  return (*code = check_arguments()) == 0;
}

/* attnbench stands beside this program. */
static void find_attnbench(void) {
  static char path[RANKS_PATH];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
  char *slash = length > 0 ? strrchr(path, '/') : NULL;
  if (slash) memcpy(slash + 1, "attnbench", sizeof "attnbench");
  if (!sweep.attnbench) sweep.attnbench = path;
}

/* A process around the rank, for mpirun to look at: MPICH's ends every rank when one is killed, whatever its options, but
 * not when this process then ends as if all were well. It also asks the others by SIGUSR1 to clean up. Returns an exit code
 * there, -1 in the rank. */
static int guard(void) {
  int status = 0;
  signal(SIGUSR1, SIG_IGN);
  const pid_t rank = fork();
  if (rank <= 0) return (void)prctl(PR_SET_PDEATHSIG, SIGKILL), -1;
  while (waitpid(rank, &status, 0) != rank) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* Rank 0 reads the arguments first, so that an error is said once. False with an exit code. */
static bool read_arguments(int argc, char **argv, int *code) {
  bool fine = sweep.rank || parse(argc, argv, code);
  MPI_Bcast(&fine, 1, MPI_C_BOOL, 0, MPI_COMM_WORLD);
  MPI_Bcast(code, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return fine && (!sweep.rank || parse(argc, argv, code));
}

static void open_rank(int *argc, char ***argv) {
  int length;
  MPI_Init(argc, argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &sweep.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &sweep.ranks);
  MPI_Get_processor_name(sweep.host, &length);
}

static void open_scratch(void) {
  const char *folder = getenv("TMPDIR");
  snprintf(sweep.scratch, sizeof sweep.scratch, "%.4000s/attnbench-mpi-XXXXXX", folder && *folder ? folder : "/tmp");
  if (mkdtemp(sweep.scratch)) return;
  perror(sweep.scratch);
  MPI_Abort(MPI_COMM_WORLD, BENCH_EXIT_INTERNAL);
}

static void close_scratch(void) {
  static const char *const names[] = {"log",         "list",         "journal.jsonl", "results.csv",
                                      "samples.csv", "results.json", "env.json",      "table.txt"};
  char path[RANKS_PATH];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    ranks_scratch(&sweep, names[i], path);
    (void)unlink(path);
  }
  (void)rmdir(sweep.scratch);
}

/* Files and summary, by attnbench from the journal. */
static int write_files(void) {
  const char *const more[] = {"-o", sweep.folder, "--resume", "--unmeasured", "-q", NULL};
  return ranks_child_run(&sweep, more, NULL, NULL);
}

/* Rank 0 works too: it deals between two looks at its own child. */
static int work(ranks_dealer *dealer, bool *lost) {
  ranks_worker worker = {.sweep = &sweep};
  while (ranks_work(&worker)) {
    if (dealer) ranks_deal(dealer);
    usleep(20000); /* MPI's own waiting would take a CPU from the child */
  }
  *lost = worker.abandoned;
  return worker.abandoned ? BENCH_EXIT_INTERNAL : 0;
}

/* Rank 0, with the folder locked. */
static int deal(const bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME], bool *lost) {
  const int lock = bench_folder_lock(sweep.folder);
  ranks_dealer *dealer = lock >= 0 ? ranks_deal_open(&sweep, works, hosts) : NULL;
  *lost = !dealer;
  if (!dealer) return BENCH_EXIT_INTERNAL;
  (void)work(dealer, lost);
  const int failed = ranks_deal_close(dealer, lost);
  (void)close(lock);
  const int code = write_files();
  return !code && failed ? BENCH_EXIT_FAILED : code;
}

static int run(bool *lost) {
  const size_t count = (size_t)sweep.ranks;
  bool *works = calloc(count, sizeof *works);
  char(*hosts)[MPI_MAX_PROCESSOR_NAME] = calloc(count, sizeof *hosts);
  int code = works && hosts ? ranks_open(&sweep, works, hosts) : BENCH_EXIT_INTERNAL;
  if (!code) code = sweep.rank ? work(NULL, lost) : deal(works, hosts, lost);
  free(works);
  free(hosts);
  return code;
}

int main(int argc, char **argv) {
  bool lost = false;
  int code = guard();
  if (code >= 0) return code;
  open_rank(&argc, &argv);
  if (read_arguments(argc, argv, &code)) {
    find_attnbench();
    open_scratch();
    code = run(&lost);
    close_scratch();
  }
  if (lost) MPI_Abort(MPI_COMM_WORLD, code); /* MPI_Finalize() would wait for ranks that are lost */
  MPI_Finalize();
  return code;
}
