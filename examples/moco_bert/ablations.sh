#!/bin/sh
# Tables 4-6 and figure 2 of the paper in small: one run for each change of one setting, then Tatoeba and STS-B.
#
#   export TATOEBA="--data $(xrep-data get demo --print-path)/test" STS="--data sts/STSBenchmark"
#   examples/moco_bert/ablations.sh runs/ablations --task bitext --criterion dual_moco --max-steps 300
#   CHANGES="criterion.queue_size=1024 criterion.momentum=0" examples/moco_bert/ablations.sh ...      only these
#
# The first argument is where runs go, the rest is xrep-train's. TATOEBA and STS are what xrep-eval is told besides.
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
