#!/usr/bin/env bash
#SBATCH --job-name=train --nodes=2 --ntasks-per-node=8 --gres=gpu:8 --cpus-per-task=4
#SBATCH --requeue --signal=B:TERM@120 --open-mode=append --output=train-%j.log
# Trains on several nodes, with a task for each GPU. Two minutes before the time of the job is over, Slurm sends SIGTERM:
# the run saves, the job is put into the queue again, and it goes on from there, until the run is finished.
#   DATA=data-bin SAVE_DIR=/shared/runs/one sbatch --time=12:00:00 slurm_train.sh \
#     --task bitext --criterion translation_ranking --batch-size 256
set -euo pipefail
: "${DATA:?}" "${SAVE_DIR:?}"
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}" WORLD_SIZE="$SLURM_NTASKS"

# shellcheck disable=SC2016  # each task has its own numbers
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec xrep-train "$@"' - \
  "$DATA" --save-dir "$SAVE_DIR" "$@" &
stopped=
trap 'stopped=1; kill -TERM %1' TERM
code=0
wait %1 || code=$?
if [[ -n "$stopped" ]]; then # the signal has ended only the waiting
  code=0
  wait %1 || code=$?
fi
if [[ "$code" == 143 ]]; then # it was stopped and has saved
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
