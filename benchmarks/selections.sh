#!/usr/bin/env bash
# Fine-tuning a GPT of 0.5 M parameters with SparseAdamW, on one CPU thread: how large a share of each matrix, and beta2.
#
#   benchmarks/selections.sh shares      48 runs of about half a minute, into results/tune/runs_shares.json
#   benchmarks/selections.sh beta2       16 runs of about a minute and a half, into results/tune/runs_beta2.json
#
# It needs the Penn Treebank (SPIDERSILK_DATA). A part that was stopped goes on where it was.
set -euo pipefail
part=${1:?shares or beta2}
runs=${RUNS:-/tmp/spidersilk-runs}/$part

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
        done
    elif [ "$part" = beta2 ]; then
        for beta2 in 0.95 0.999; do
            while read -r form lr; do
                fine_tune "$seed" 600 "$form" "$lr" "$form-lr$lr-beta2-$beta2" \
                    --set "arguments={beta2: $beta2}" --set evaluations=6
            done <<'EOF'
sparse-adamw 0.0032
sparse-adamw 0.0064
sparse-adamw-columns 0.0032
sparse-adamw-columns 0.0064
EOF
        done
    else
        echo "error: there is no part $part: shares or beta2" >&2
        exit 2
    fi
done
spidersilk collect "$runs" --to "results/tune/runs_$part.json"
