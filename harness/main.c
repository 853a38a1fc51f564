/* SPDX-License-Identifier: MIT */
/* attnbench: see commands.c. */
#include "commands/commands.h"

int main(int argc, char **argv) { return bench_main(argc, argv); }
