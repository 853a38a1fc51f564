/* attnbench env: the audit of machine, build and noise. */
#include <errno.h>
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "environment.h"

static const char epilogue[] =
    "Exit code 4 if --strict was given and a fact is BAD. 'unknown' means that this system does not say:\n"
    "nothing is guessed.\n";

/* False after an error, said on stderr. */
static bool write_file(const bench_environment *environment, const char *path) {
  bool to_stdout = strcmp(path, "-") == 0;
  FILE *file = to_stdout ? stdout : fopen(path, "w");
  if (file) bench_environment_write_json(environment, file);
  bool failed = !file || ferror(file);
  if (file && !to_stdout) failed = fclose(file) || failed;
  if (failed) fprintf(stderr, "attnbench env: cannot write '%s': %s\n", path, strerror(errno));
  return !failed;
}

int bench_env_main(int argc, char **argv) {
  const char *json = NULL;
  bool strict = false;
  const cli_option options[] = {
      {CLI_STRING, 0, "json", "FILE", "write the facts as JSON instead of the table; - is stdout", &json},
      {CLI_FLAG, 0, "strict", NULL, "exit with 4 if the machine is unfit to measure: any fact is BAD", &strict},
      CLI_END,
  };
  const cli_command command = {.name = "env",
                               .usage = "[options]",
                               .summary =
                                   "Says what this machine and this build are, what disturbs measurements here, and "
                                   "which command would mend it.",
                               .options = options,
                               .epilogue = epilogue};
  int exit_code;
  if (!cli_parse(&command, argc, argv, &exit_code)) return exit_code;

  static bench_environment environment;
  bench_environment_read(&environment, argc, argv, 0);
  if (json && !write_file(&environment, json)) return BENCH_EXIT_INTERNAL;
  if (!json) bench_environment_print(&environment, stdout);
  return strict && bench_environment_worst(&environment) == BENCH_BAD ? BENCH_EXIT_UNFIT : BENCH_EXIT_OK;
}
