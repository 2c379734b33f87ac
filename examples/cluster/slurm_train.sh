#!/usr/bin/env bash
#SBATCH --job-name=train --nodes=2 --ntasks-per-node=8 --gres=gpu:8 --cpus-per-task=4
#SBATCH --requeue --signal=TERM@120 --open-mode=append --output=train-%j.log
# Trains on several nodes, with a task for each GPU. Two minutes before the time of the job is over, Slurm sends SIGTERM
# to the tasks: the run saves, the job is put into the queue again, and it goes on from there, until the run is finished.
#   DATA=data-bin SAVE_DIR=/shared/runs/one sbatch --time=12:00:00 slurm_train.sh \
#     --task bitext --criterion translation_ranking --batch-size 256
set -euo pipefail
: "${DATA:?}" "${SAVE_DIR:?}"
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}" WORLD_SIZE="$SLURM_NTASKS"

# shellcheck disable=SC2016  # each task has its own numbers
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec xrep-train "$@"' - \
  "$DATA" --save-dir "$SAVE_DIR" "$@" && exit
code=$?
if [[ "$code" == 143 ]]; then # all tasks have saved after SIGTERM
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
