#!/usr/bin/env bash
# Fine-tuning a GPT of 0.5 M parameters with SparseAdamW, on one CPU thread: how large a share of each matrix, and longer
# runs with two values of beta2, beside AdamW and LoRA.
#
#   benchmarks/selections.sh shares      56 runs of about half a minute, into results/tune/runs_shares.json
#   benchmarks/selections.sh long        16 runs of about a minute and a half, into results/tune/runs_long.json
#
# It needs the Penn Treebank (SPIDERSILK_DATA). A part that was stopped goes on where it was.
set -euo pipefail
part=${1:?shares or long}
runs=${RUNS:-/tmp/spidersilk-runs}/$part
cd "$(dirname "$0")/.."

fine_tune() {  # seed, steps, form, step size, the run's name, and what else is set
    local seed=$1 steps=$2 form=$3 lr=$4 name=$5
    shift 5
    OMP_NUM_THREADS=1 spidersilk run finetune -o "$form" --set lr="$lr" --set seed="$seed" --set steps="$steps" \
        --set text=ptb --set pretrain_steps=1000 --set train_bytes=1000000 --set eval_samples=200 \
        --set name="$name-seed$seed" --out "$runs" --resume "$@" </dev/null
}

for seed in 1 2; do
    if [ "$part" = shares ]; then
        for form in sparse-adamw sparse-adamw-columns; do
            for share in 0.05 0.1 0.2 0.4; do
                for lr in 0.0016 0.0032 0.0064; do
                    fine_tune "$seed" 200 "$form" "$lr" "$form-k$share-lr$lr" --set k2="$share" --set evaluations=4
                done
            done
            for lr in 0.016 0.032; do  # as before step_scale: all that is trained steps by lr
                fine_tune "$seed" 200 "$form" "$lr" "$form-k0.1-lr$lr-unscaled" --set 'arguments={step_scale: 1.0}' \
                    --set evaluations=4
            done
        done
    elif [ "$part" = long ]; then
        for form in sparse-adamw sparse-adamw-columns; do
            for beta2 in 0.95 0.999; do
                fine_tune "$seed" 600 "$form" 0.0032 "$form-lr0.0032-beta2-$beta2" \
                    --set "arguments={beta2: $beta2}" --set evaluations=6
            done
        done
        for lr in 0.0016 0.0032; do
            fine_tune "$seed" 600 adamw "$lr" "adamw-lr$lr-beta2-0.95" --set 'arguments={beta2: 0.95}' --set evaluations=6
        done
        for lr in 0.005 0.01; do
            fine_tune "$seed" 600 lora "$lr" "lora-lr$lr" --set 'arguments={alpha: 128}' --set evaluations=6
        done
    else
        echo "error: there is no part $part: shares or long" >&2
        exit 2
    fi
done
spidersilk collect "$runs" --to "results/tune/runs_$part.json"
