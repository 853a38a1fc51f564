/* SPDX-License-Identifier: MIT */
/* Messages that nobody waits for: a rank that has died can keep no other one waiting. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ranks/ranks.h"

double ranks_now_s(void) { return 1e-9 * bench_now_ns(); }

bool ranks_letter_is_gone(ranks_letter *letter) {
  int gone = 1;
  if (!letter->text) return true;
  if (MPI_Test(&letter->request, &gone, MPI_STATUS_IGNORE) != MPI_SUCCESS || !gone) return false;
  free(letter->text);
  letter->text = NULL;
  return true;
}

void ranks_send(ranks_letter *letter, int to, int tag, char *text) {
  letter->text = text;
  if (text && MPI_Isend(text, (int)strlen(text), MPI_CHAR, to, tag, MPI_COMM_WORLD, &letter->request) != MPI_SUCCESS)
    letter->request = MPI_REQUEST_NULL;
}

/* Begins to receive a message that has come. */
static void open_letter(ranks_letter *letter, int from, int tag) {
  MPI_Status status;
  int there = 0, bytes = 0;
  if (MPI_Iprobe(from, tag, MPI_COMM_WORLD, &there, &status) != MPI_SUCCESS || !there) return;
  MPI_Get_count(&status, MPI_CHAR, &bytes);
  letter->text = calloc((size_t)bytes + 1, 1);
  if (letter->text && MPI_Irecv(letter->text, bytes, MPI_CHAR, from, tag, MPI_COMM_WORLD, &letter->request) != MPI_SUCCESS)
    letter->request = MPI_REQUEST_NULL;
}

char *ranks_receive(ranks_letter *letter, int from, int tag) {
  int there = 0;
  if (!letter->text) open_letter(letter, from, tag);
  if (!letter->text || MPI_Test(&letter->request, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS || !there) return NULL;
  char *text = letter->text;
  letter->text = NULL;
  return text;
}
