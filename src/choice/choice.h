/* SPDX-License-Identifier: MIT */
/* Which kernel was chosen, by what, and by what margin: a value, put into words in one place. */
#ifndef ATTN_CHOICE_H
#define ATTN_CHOICE_H

#include "attn/kernel.h"
#include "src/choice/machine_class.h"

typedef enum attn_cause {
  ATTN_CAUSE_GIVEN, /* named by a test or a program that has a kernel of its own */
  ATTN_CAUSE_NAMED, /* named by an option or a variable */
  ATTN_CAUSE_RULE,  /* a line of the tuning file */
  ATTN_CAUSE_COSTS, /* costs of the tuning file, or of a class of CPUs */
  ATTN_CAUSE_RANK   /* the first of the registry: no kernel that takes the problem has costs */
} attn_cause;

typedef struct attn_choice {
  const attn_kernel *kernel;
  attn_cause cause;
  bool steady;               /* attn_options.steady */
  bool of_range;             /* for packed sequences in one range of lengths (src/plan/by_length.h) */
  const char *cap;           /* the highest tier to use; NULL = no cap. Static text */
  const char *named_by;      /* CAUSE_NAMED: "ATTN_KERNEL". Static text */
  const attn_tuning *tuning; /* the tuning file in force; NULL = none */
  const char *not_tuned;     /* why it did not decide; NULL if it did, or if there is none. Static text, or a process's */
  const attn_tuning *source; /* the costs or the rules */
  double distance;           /* distance of the class from this CPU */
  bool class_named;          /* ATTN_MACHINE names it */
  bool class_adjusted;       /* a factor for each tier, by what was timed here */
  int line;                  /* line that has the rule or the costs */
  attn_dtype dtype;          /* CAUSE_COSTS: type of K and V that they are of */
  double error;              /* error of the costs: root of the mean square, relative */
  const attn_kernel *second; /* the next by costs; NULL = no other has any */
  double margin;             /* times as long as the kernel the second takes */
} attn_choice;

/* Whether the automatic choice and attn_tune() may take the kernel: others run only where they are named. */
bool attn_is_automatic(const attn_kernel_info *kernel);

/* NULL = the kernel can run the problem here; else why not. Thread-local or static text. */
const char *attn_refusal(const attn_kernel *kernel, const attn_problem *problem, const char *cap);

/* In a sentence: the cause, and why kernels that rank before it were not taken. */
void attn_choice_describe(const attn_choice *choice, const attn_problem *problem, char *text, size_t bytes);

#endif
