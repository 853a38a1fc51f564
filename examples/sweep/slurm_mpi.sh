#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A sweep as one Slurm job with MPI: rank 0 deals cases to the nodes, a rank each. A job that was cut off continues when it
# is submitted again. The results are in sweep/.
#
#   sbatch --nodes=8 examples/sweep/slurm_mpi.sh run -a seq=128:8192:*2 -a head_dim=64,128 -a threads=1,all
#
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --no-kill
set -u
# shellcheck disable=SC2206 # ATTNBENCH_MPI may bring options
program=(${ATTNBENCH_MPI:-build/harness/attnbench-mpi})
exec srun --kill-on-bad-exit=0 --cpu-bind=none "${program[@]}" -o sweep "$@"
