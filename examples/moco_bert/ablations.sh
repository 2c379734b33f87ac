#!/bin/sh
# The ablations of the paper (tables 4-6 and figure 2) at a small scale: each run changes one setting and is then
# evaluated on Tatoeba and STS-B.
#
#   export TATOEBA="--data $(xrep-data get demo --print-path)/test" STS="--data sts/STSBenchmark"
#   examples/moco_bert/ablations.sh runs/ablations --task bitext --criterion dual_moco --max-steps 300
# To run only some of the changes:
#   CHANGES="criterion.queue_size=1024 criterion.momentum=0" examples/moco_bert/ablations.sh ...
#
# The first argument is the folder for the runs; the other arguments are passed to xrep-train. TATOEBA and STS are
# further arguments of xrep-eval.
set -eu
runs=$1
shift
queues="criterion.queue_size=0 criterion.queue_size=1024 criterion.queue_size=8192 criterion.queue_size=65536"
temperatures="criterion.temperature=0.01 criterion.temperature=0.07 criterion.temperature=0.1"
momenta="criterion.momentum=0 criterion.momentum=0.99 criterion.momentum=0.999"
poolings="model.pooling=max model.pooling=cls"
for change in none ${CHANGES:-$queues $temperatures $momenta $poolings}; do
    run=$runs/$change
    [ "$change" = none ] && change=
    xrep-train "$@" --save-dir "$run" $change
    xrep-eval tatoeba --path "$run/best" $TATOEBA --json "$run/tatoeba.json"
    xrep-eval sts --path "$run/best" $STS --json "$run/sts.json"
done
