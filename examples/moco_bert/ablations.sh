#!/bin/sh
# The ablations of the paper (tables 4-6 and figure 2): each run changes one setting and is then evaluated on Tatoeba,
# BUCC and STS, as far as their data is named. At a small scale:
#
#   export TATOEBA="--data $(xrep-data get demo --print-path)/test" STS="--data sts/STSBenchmark"
#   examples/moco_bert/ablations.sh runs/ablations --task bitext --criterion dual_moco --max-steps 300
# At the paper's scale, whose base arm has a queue of 204,800 (section 3.4), on four GPUs:
#   export STS="--data sts/" BUCC="--data bucc2018/ --langs zh-en" TATOEBA="--data tatoeba/ --langs zh" SCALE=paper
#   TRAIN="torchrun --nproc-per-node 4 -m xrep_cli.train" examples/moco_bert/ablations.sh runs/ablations \
#       --config moco_bert/en-zh
# To run only some of the changes:
#   CHANGES="criterion.queue_size=1024 criterion.momentum=0" examples/moco_bert/ablations.sh ...
#
# The first argument is the folder for the runs; the other arguments are passed to xrep-train. TATOEBA, BUCC and STS are
# further arguments of xrep-eval.
set -eu
runs=$1
shift
temperatures="criterion.temperature=0.01 criterion.temperature=0.07 criterion.temperature=0.1"
poolings="model.pooling=max model.pooling=cls"
if [ "${SCALE:-small}" = paper ]; then
    set -- "$@" criterion.queue_size=204800
    queues="criterion.queue_size=102400 criterion.queue_size=409600 task.batch_size=64" # 64 on each GPU: 256, figure 2
    momenta="criterion.momentum=0 criterion.momentum=0.99 criterion.momentum=0.9999"
else
    queues="criterion.queue_size=0 criterion.queue_size=1024 criterion.queue_size=8192 criterion.queue_size=65536"
    momenta="criterion.momentum=0 criterion.momentum=0.99 criterion.momentum=0.999"
fi
for change in none ${CHANGES:-$queues $temperatures $momenta $poolings}; do
    run=$runs/$change
    [ "$change" = none ] && change=
    ${TRAIN:-xrep-train} "$@" --save-dir "$run" $change
    [ -z "${TATOEBA:-}" ] || xrep-eval tatoeba --path "$run/best" $TATOEBA --json "$run/tatoeba.json"
    [ -z "${BUCC:-}" ] || xrep-eval bucc --path "$run/best" $BUCC --json "$run/bucc.json"
    [ -z "${STS:-}" ] || xrep-eval sts --path "$run/best" $STS --json "$run/sts.json"
done
