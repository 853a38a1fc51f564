/* SPDX-License-Identifier: MIT */
/* The program attnbench; commands/commands.c has its sub-commands. */
#include "commands/commands.h"

int main(int argc, char **argv) { return bench_main(argc, argv); }
