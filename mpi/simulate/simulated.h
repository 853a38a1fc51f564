/* SPDX-License-Identifier: MIT */
/* Included before the sources of libattn_mpi in a simulation. A rank that waits asks MPI again and again, and gives the CPU
 * to others meanwhile. In SMPI that would take a step of the simulator each time: it waits there until a message ends. */
#ifndef ATTN_MPI_SIMULATED_H
#define ATTN_MPI_SIMULATED_H

#include <mpi.h>
#include <sched.h>
#include <time.h>

int simulated_testsome(int count, MPI_Request *requests, int *ended, int *indices, MPI_Status *statuses);
int simulated_iprobe(int *there, MPI_Status *status);
int simulated_yield(void);
/* MPI_Allgatherv, or MPI_Allgather where counts and starts are NULL, by way of rank 0. SMPI's own is a message from each
 * rank to each other one, which takes minutes for 1024 ranks. */
int simulated_allgather(const void *own, int count, MPI_Datatype type, void *all, const int *counts, const int *starts,
                        MPI_Comm comm);

/* SMPI makes a communicator by a message from each rank to each other one. There is one plan at a time, so it has the
 * world's, and frees nothing. */
int simulated_idup(MPI_Comm old, MPI_Comm *made, MPI_Request *request);
int simulated_free(MPI_Comm *made);
#define MPI_Comm_idup simulated_idup
#define MPI_Comm_free simulated_free

/* SMPI's nonblocking collectives are a message from each rank to each other one; nothing else is under way with them. */
#define WAITED(request, call)                                (*(request) = MPI_REQUEST_NULL, call)
#define MPI_Ibcast(data, n, type, root, comm, request)       WAITED(request, MPI_Bcast(data, n, type, root, comm))
#define MPI_Iallreduce(own, all, n, type, op, comm, request) WAITED(request, MPI_Allreduce(own, all, n, type, op, comm))
#define MPI_Iallgather(own, n, type, all, m, to, comm, request) \
  WAITED(request, simulated_allgather(own, n, type, all, NULL, NULL, comm))
#define MPI_Iallgatherv(own, n, type, all, counts, starts, to, comm, request) \
  WAITED(request, simulated_allgather(own, n, type, all, counts, starts, comm))

#define MPI_Testsome                                         simulated_testsome
#define MPI_Iprobe(source, tag, communicator, there, status) simulated_iprobe(there, status)
#define sched_yield                                          simulated_yield
#undef nanosleep
#define nanosleep(pause, rest) ((void)(pause), simulated_yield())

#endif
