#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A sweep as a Slurm job array: each task measures one shard, alone on its node. A task that was cut off continues when the
# array is submitted again. Afterwards: attnbench merge -o sweep sweep-*
#
#   sbatch --array=1-8 examples/sweep/slurm.sh -a seq=128:8192:*2 -a head_dim=64,128 -a threads=1,all
#
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --requeue
set -u
attnbench=${ATTNBENCH:-build/harness/attnbench}
shard=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT
exec "$attnbench" run --shard "$shard" --resume -o "sweep-$SLURM_ARRAY_TASK_ID" "$@"
