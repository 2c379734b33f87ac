#!/bin/sh
# The search of appendix C: every learning rate, and the run that is best on the English dev set.
#
#   examples/dap/search.sh examples/dap/xnli.yaml xnli xnli/ runs/search/dap
#
# The arguments are a recipe, the name of its evaluation, the data, and a folder for the runs; further arguments are
# passed to xrep-train. RATES changes the grid.
set -eu
recipe=$1 test=$2 data=$3 runs=$4
shift 4
for rate in ${RATES:-1e-5 3e-5 5e-5 7e-5}; do
    run=$runs/lr$rate
    xrep-train --config "$recipe" "$@" --lr "$rate" --save-dir "$run"
    xrep-eval "$test" --path "$run/best" --data "$data" --split dev --langs en --json "$run/dev.json"
done
python - "$runs" <<'END'
import json
import pathlib
import sys

files = pathlib.Path(sys.argv[1]).glob("*/dev.json")
for value, run in sorted(((json.loads(file.read_text())["values"]["mean"], file.parent) for file in files), reverse=True):
    print(f"{value:.2f}  {run}")
END
