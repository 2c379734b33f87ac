#!/usr/bin/env bash
# Mines translations in two texts by Slurm arrays: encodes both sides, and then compares them.
#   ENCODER=run1/best SOURCE=de.txt SOURCE_LANG=de TARGET=en.txt TARGET_LANG=en OUTPUT=mined \
#     TASKS=64 SBATCH_OPTIONS="--gres=gpu:1 --time=4:00:00" bash slurm_array.sh
# All nodes must see all paths. OUTPUT is a folder, or an address in an object store (s3://bucket/mined). A task that
# Slurm requeues goes on; if tasks fail, run the same line again.
set -euo pipefail
: "${ENCODER:?}" "${SOURCE:?}" "${SOURCE_LANG:?}" "${TARGET:?}" "${TARGET_LANG:?}" "${OUTPUT:?}"
cpus="${CPUS:-4}"
mkdir -p logs
[[ "$OUTPUT" == *://* ]] || mkdir -p "$OUTPUT"

submit() {  # submit NAME [DEPENDENCY] -- COMMAND...: prints the number of an array of tasks that share a command
  local name="$1" more=()
  shift
  if [[ "$1" != -- ]]; then more=(--dependency="afterok:$1" --kill-on-invalid-dep=yes); shift; fi
  shift
  # shellcheck disable=SC2086  # SBATCH_OPTIONS are several words
  sbatch --parsable --requeue --job-name="$name" --array="0-$((${TASKS:-8} - 1))" --cpus-per-task="$cpus" \
    --output='logs/%x-%A_%a.log' "${more[@]}" ${SBATCH_OPTIONS:-} \
    --wrap "OMP_NUM_THREADS=$cpus $(printf '%q ' "$@") --engine slurm"
}

source=$(submit encode-source -- xrep-encode --path "$ENCODER" --lang "$SOURCE_LANG" --input "$SOURCE" \
  --output "$OUTPUT/source")
target=$(submit encode-target -- xrep-encode --path "$ENCODER" --lang "$TARGET_LANG" --input "$TARGET" \
  --output "$OUTPUT/target")
mine=$(submit mine "$source:$target" -- xrep-mine --source "$SOURCE" --source-vectors "$OUTPUT/source" \
  --target "$TARGET" --target-vectors "$OUTPUT/target" --output "$OUTPUT/mined.tsv" --index "${INDEX:-flat}")
echo "arrays $source, $target and $mine; xrep-jobs status $OUTPUT/mined.tsv tells how far the last one is"
