#!/bin/sh
# The search of appendix B: every learning rate with every batch size, and the run that is best on the English dev set.
#
#   examples/hictl/xtreme/search.sh examples/hictl/xtreme/ner.yaml ner panx/ runs/search/ner
#
# The arguments are a recipe, the name of its evaluation, the data, and a folder for the runs; further arguments are
# passed to xrep-train. RATES and SIZES change the grid: for the large model RATES="3e-6 5e-6 1e-5" SIZES="32 64".
set -eu
recipe=$1 test=$2 data=$3 runs=$4
shift 4
for rate in ${RATES:-5e-6 1e-5 1.5e-5 2e-5 2.5e-5 3e-5}; do
    for size in ${SIZES:-16 32}; do
        run=$runs/lr$rate-batch$size
        xrep-train --config "$recipe" "$@" --lr "$rate" --batch-size "$size" --save-dir "$run"
        xrep-eval "$test" --path "$run/best" --data "$data" --split dev --langs en --json "$run/dev.json"
    done
done
python - "$runs" <<'END'
import json
import pathlib
import sys

files = pathlib.Path(sys.argv[1]).glob("*/dev.json")
for value, run in sorted(((json.loads(file.read_text())["values"]["mean"], file.parent) for file in files), reverse=True):
    print(f"{value:.2f}  {run}")
END
