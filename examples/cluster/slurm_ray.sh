#!/usr/bin/env bash
#SBATCH --job-name=mine --nodes=2 --ntasks-per-node=1 --cpus-per-task=8 --requeue --output=mine-%j.log
# Mines translations on a Ray cluster that lasts as long as this Slurm job. Needs Ray on all nodes.
#   ENCODER=run1/best SOURCE=de.txt SOURCE_LANG=de TARGET=en.txt TARGET_LANG=en OUTPUT=mined.tsv sbatch slurm_ray.sh
# With GPUs: sbatch --gres=gpu:8 slurm_ray.sh; there is then a worker for each of them.
set -euo pipefail
: "${ENCODER:?}" "${SOURCE:?}" "${SOURCE_LANG:?}" "${TARGET:?}" "${TARGET_LANG:?}" "${OUTPUT:?}"
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
address="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --all-ip-addresses | awk '{print $1}'):${PORT:-6379}"
# Only this job can use the cluster. (Old versions of Ray have no tokens.)
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN="$(python3 -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_MODE RAY_AUTH_TOKEN

# It starts Ray on each node, runs the command on the first one when all are there, and stops Ray.
srun ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus="$SLURM_CPUS_PER_TASK" -- \
  env RAY_ADDRESS="$address" xrep-mine --path "$ENCODER" --source "$SOURCE" --source-lang "$SOURCE_LANG" \
  --target "$TARGET" --target-lang "$TARGET_LANG" --output "$OUTPUT" --index "${INDEX:-flat}" --engine ray
