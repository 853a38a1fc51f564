/* SPDX-License-Identifier: MIT */
/* attnbench as a child. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cli.h"
#include "ranks/ranks.h"

void ranks_scratch(const ranks_sweep *s, const char *name, char *path) {
  snprintf(path, RANKS_PATH, "%.4000s/%.80s", s->scratch, name);
}

char *ranks_file_text(const char *path) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = fopen(path, "re"), *memory = open_memstream(&text, &bytes);
  for (int c; file && memory && (c = getc(file)) != EOF;) putc(c, memory);
  if (file) (void)fclose(file);
  return memory && !fclose(memory) && text ? text : calloc(1, 1);
}

static void redirect(int from, const char *to) {
  const int file = to ? open(to, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
  if (file >= 0) (void)dup2(file, from);
}

static _Noreturn void become(const char *program, char **argv, const char *out, const char *err) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGUSR1, SIG_DFL); /* see attnbench_mpi.c */
  redirect(STDOUT_FILENO, out);
  redirect(STDERR_FILENO, err);
  execv(program, argv);
  perror(program);
  _exit(BENCH_EXIT_INTERNAL);
}

/* attnbench ARGUMENTS MORE. */
static char **join(const ranks_sweep *s, const char *const *more) {
  int count = 0;
  while (more[count]) count++;
  char **argv = calloc((size_t)(s->argument_count + count + 2), sizeof *argv);
  if (!argv) return NULL;
  argv[0] = (char *)s->attnbench;
  memcpy(argv + 1, s->arguments, (size_t)s->argument_count * sizeof *argv);
  memcpy(argv + 1 + s->argument_count, more, (size_t)count * sizeof *argv);
  return argv;
}

pid_t ranks_child_start(const ranks_sweep *s, const char *const *more, const char *out, const char *err) {
  char **argv = join(s, more);
  fflush(NULL);
  const pid_t child = argv ? fork() : -1;
  if (!child) become(s->attnbench, argv, out, err);
  free(argv);
  return child;
}

int ranks_exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

int ranks_child_run(const ranks_sweep *s, const char *const *more, const char *out, const char *err) {
  int status = 0;
  const pid_t child = ranks_child_start(s, more, out, err);
  return child > 0 && waitpid(child, &status, 0) == child ? ranks_exit_code(status) : BENCH_EXIT_INTERNAL;
}

bool ranks_child_is_fine(int code) {
  return code == BENCH_EXIT_OK || code == BENCH_EXIT_FAILED || code == BENCH_EXIT_NOTHING || code == BENCH_EXIT_SKIPPED;
}

static void append_last_line(const char *path, char *words, size_t bytes) {
  char *text = ranks_file_text(path);
  size_t length = text ? strlen(text) : 0;
  while (length && text[length - 1] == '\n') text[--length] = 0;
  const char *line = length ? strrchr(text, '\n') : NULL;
  if (length) bench_append(words, bytes, ": %.300s", line ? line + 1 : text);
  free(text);
}

void ranks_child_explain(const ranks_sweep *s, int code, char *words, size_t bytes) {
  char log[RANKS_PATH];
  ranks_scratch(s, "log", log);
  if (code > 128 && code != BENCH_EXIT_INTERRUPTED)
    snprintf(words, bytes, "attnbench was ended by signal %d (%s)", code - 128, strsignal(code - 128));
  else
    snprintf(words, bytes, "attnbench ended with exit code %d", code);
  append_last_line(log, words, bytes);
}
