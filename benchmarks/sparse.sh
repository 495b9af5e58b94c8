#!/usr/bin/env bash
# The measurements of sparse training on one GPU, in pieces of at most ten minutes, most important first.
#
#   benchmarks/sparse.sh PIECE OUT [SECONDS]
#
# PIECE      does
# kernels    the tests of the CUDA kernels
# columns    backprop.py: columns beside AdamW and LoRA, 2.7 B with checkpointing and without, 85 M
# compiled   the same compiled, and ResNet-18
# memory     memory.py: the README's table, 2.7 B with one sequence and with eight
# finetune   `spidersilk tune finetune` at 85 M and 600 steps: AdamW, LoRA, entries, columns (needs the Penn Treebank)
# rivals     the same for the other rivals, in the same file
# long       the same at 2,000 steps, with the trials of 600
# bytes      footprint.py: predicted and measured peaks
# top        top.py: the top part in fine-tuning, then ResNet-18 (CIFAR-10) and the LSTM
#
# OUT receives the files of results/ that changed. A piece that was stopped after SECONDS (540) goes on if its files are
# put back into results/ before it is called again; each finished run is kept.
#
# Environment variables: SPIDERSILK_DATA, the folder of the data sets; RUNS, the folder of runs (/tmp/spidersilk-runs);
# JOBS, runs side by side (3); TRIALS of each method in a tuning (8: five step sizes and three other settings).
set -u
piece=${1:?kernels, columns, compiled, memory, finetune, rivals, long, bytes or top}
out=${2:?folder for the results}
seconds=${3:-540}
runs=${RUNS:-/tmp/spidersilk-runs} jobs=${JOBS:-3} python=${PYTHON:-python3}
began=$(date +%s)
cd "$(dirname "$0")/.."
mkdir -p "$out" "$runs"
touch "$runs/began"
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 SPIDERSILK_OFFLINE=1 COLUMNS=150
left() { echo $((began + seconds - $(date +%s))); }

# Each command for as long as there is time; what it saved before it was stopped stays.
measure() {
    [ "$(left)" -gt 20 ] || { echo "no time for: $*"; return; }
    timeout "$(left)" "$python" "$@"
    echo "$1: exit $?, $(left) s left"
}

tune() {
    local steps=$1 methods=$2
    shift 2
    measure -m spidersilk.lab.cli tune finetune --set size=85m --set text=ptb --steps "$steps" --trials "${TRIALS:-8}" \
        --methods "$methods" --jobs "$jobs" --resume --out "$runs/tune" --time-limit $(($(left) - 15)) "$@"
}

ours=adamw,sparse-adamw,sparse-adamw-columns,lora
case $piece in
kernels) measure -m pytest -q -x tests/kernels/test_cuda.py ;;
columns)
    measure benchmarks/backprop.py --model 2.7b --sequences 8 --save
    measure benchmarks/backprop.py --model 2.7b --sequences 8 --no-checkpointing --save
    measure benchmarks/backprop.py --model 85m --sequences 32 --no-checkpointing --save
    ;;
compiled)
    measure benchmarks/backprop.py --model 2.7b --sequences 8 --compile blocks --methods dense,columns-10,lora-16 --save
    measure benchmarks/backprop.py --model 85m --sequences 32 --no-checkpointing --compile model \
        --methods dense,columns-10,lora-16 --save
    measure benchmarks/backprop.py --model resnet18 --sequences 256 --methods dense,columns-10,rows-10 --save
    ;;
memory)
    table=adamw,adamw-8bit,badam,sparse-5,sparse-10,columns-10,lora-64
    measure benchmarks/memory.py --size 2.7b --sequences 8 --turns 5 --methods "$table" --save
    measure benchmarks/memory.py --size 2.7b --turns 5 --repeats 2 --methods "$table" --once sparse-1,lora-16 --save
    ;;
finetune) tune 600 "$ours" ;;
rivals) tune 600 adamw-8bit,galore,apollo-mini,badam,in-backward ;;
long) tune 600 "$ours" --final-steps 2000 --trials-of results/tune/tune_finetune_85m_ptb_600.json \
    --name tune_finetune_85m_ptb ;;
bytes) measure benchmarks/footprint.py --save ;;
top)
    for case in finetune resnet18-adamw resnet18-sgd lstm-adamw lstm-sgd; do
        measure benchmarks/top.py "$case" --jobs "$jobs" --out "$runs/top" --time-limit $(($(left) - 15))
    done
    ;;
*)
    echo "$piece is not a piece: see the head of $0" >&2
    exit 2
    ;;
esac
find results -name '*.json' -newer "$runs/began" -exec cp {} "$out"/ \;
