/* SPDX-License-Identifier: MIT */
#include "base/handlers.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef _WIN32 /* its few signals come from the thread itself */
void bench_handlers_note(void) {}
void bench_handlers_set(int number, const struct sigaction *action) { (void)sigaction(number, action, NULL); }
int bench_handlers_other(void) { return 0; }
#else

enum { SIGNALS = 64 };

typedef void (*handler)(int);

static bool noted;
static handler known[SIGNALS + 1];

/* SIG_DFL where there is none, or no such signal. */
static handler handler_of(int number) {
  struct sigaction now;
  return sigaction(number, NULL, &now) || now.sa_handler == SIG_IGN ? SIG_DFL : now.sa_handler;
}

void bench_handlers_note(void) {
  noted = true;
  for (int number = 1; number <= SIGNALS; number++) known[number] = handler_of(number);
}

void bench_handlers_set(int number, const struct sigaction *action) {
  if (!sigaction(number, action, NULL)) known[number] = handler_of(number);
}

int bench_handlers_other(void) {
  for (int number = 1; noted && number <= SIGNALS; number++) {
    const handler now = handler_of(number);
    if (now == SIG_DFL || now == known[number]) continue;
    (void)signal(number, SIG_IGN);
    return number;
  }
  return 0;
}
#endif
