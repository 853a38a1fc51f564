/* SPDX-License-Identifier: MIT */
/* The sub-commands of attnbench. Each gets its own name as argv[0] and returns an exit code of cli.h. */
#ifndef BENCH_COMMANDS_H
#define BENCH_COMMANDS_H

/* The whole program: main() without the name, so that tests can call it. */
int bench_main(int argc, char **argv);

int bench_run_main(int argc, char **argv);
int bench_check_main(int argc, char **argv);
int bench_compare_main(int argc, char **argv);
int bench_merge_main(int argc, char **argv);
int bench_eval_main(int argc, char **argv);
int bench_plot_main(int argc, char **argv);
int bench_report_main(int argc, char **argv);
int bench_list_main(int argc, char **argv);
int bench_explain_main(int argc, char **argv);
int bench_peak_main(int argc, char **argv);
int bench_tune_main(int argc, char **argv);
int bench_env_main(int argc, char **argv);

#endif
