#!/usr/bin/env bash
# The paper's experiments at full scale on one GPU, in pieces of a few minutes, most important runs first.
#
#   benchmarks/paper.sh PIECE OUT [SECONDS]
#
# PIECE    needs                       does
# small    mnist, ptb, perhaps svhn    Figure 1 right, Figure 2, sparsity sweep, Table 1 of FC and CNN
# seeds    mnist, perhaps svhn         those of small that take under a minute, with SEEDS seeds
# cifar    cifar10                     Figure 1 left, Table 1 of FC and CNN
# language ptb                         Figure 2, then with a vocabulary of 10,000
# ablations mnist, ptb, movielens      ablations and controls with SEEDS seeds: k1 : k2, reset, loop lengths, plain SGD
# entropy  cifar10, svhn               Table 1 of ResNet-18 (150 epochs of SpiderBoost)
# tune     cifar10, ptb, mnist         SGD, momentum, AdamW, SparseSGD and SparseAdamW tuned: ResNet-18, CNN, language
# longer   cifar10                     the CNN of tune, tuned at 8 N for runs to 8 N
# logistic mnist                       logistic regression tuned, on the CPU
# others   cifar10, ptb, mnist         the other methods of the tasks of tune
# rest     all                         the rest of `reproduce all`; also MovieLens 1M and a vocabulary of 10,000
#
# OUT receives the JSON files that changed; copy tune_*.json into results/tune and the others into results/paper. Runs
# that results/ or an earlier piece has finished are not repeated. Runs are stopped after SECONDS (500); allow the machine a minute more.
#
# Environment variables, with their defaults:
# RUNS             folder of the runs (/tmp/spidersilk-runs); runs found there are continued
# JOBS             runs side by side (14) in small, seeds, language (at most 8), ablations, longer and rest
# SEEDS            number of seeds (3) in seeds and ablations
# MPS              0: without NVIDIA's MPS, which lets small kernels of several processes run at once
# SPIDERSILK_DATA  folder of the data sets
#
# Pieces that write different files can run side by side. Then start MPS first (in /tmp/spidersilk-mps): a piece that
# starts it also ends it.
set -u
piece=${1:?small, seeds, cifar, language, ablations, entropy, tune, longer, logistic, others or rest}
out=${2:?folder for the results}
seconds=${3:-500}
runs=${RUNS:-/tmp/spidersilk-runs}
jobs=${JOBS:-14}
python=${PYTHON:-python3}
began=$(date +%s)
cd "$(dirname "$0")/.."
held=$runs/held given=$runs/given # results with additions, and as results/ had them
mkdir -p "$out" "$held" "$given"
for file in results/paper/*.json results/tune/tune_*.json; do
    if [ -f "$file" ] && ! cmp -s "$file" "$given/$(basename "$file")"; then # new, or changed in results/ since
        cp "$file" "$held"/
        cp "$file" "$given"/
    fi
done
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 SPIDERSILK_OFFLINE=1 COLUMNS=150
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/spidersilk-triton}

mine=
left() { echo $((began + seconds - $(date +%s))); }

start_mps() {
    [ "${MPS:-1}" = 1 ] && command -v nvidia-cuda-mps-control >/dev/null || { echo "without MPS"; return; }
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/spidersilk-mps CUDA_MPS_LOG_DIRECTORY=/tmp/spidersilk-mps-log
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d >/dev/null 2>&1 && mine=1 # else another piece has started it
    if timeout 40 "$python" -c 'import torch; torch.ones(9, device="cuda").sum().item()'; then
        echo "with MPS"
    else
        echo "MPS does not work here"
        stop_mps
        mine=
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    fi
}

stop_mps() { [ -z "$mine" ] || echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1; }

# reproduce NAME JOBS WHAT OPTIONS...
reproduce() {
    local name=$1 many=$2
    shift 2
    "$python" -m spidersilk.lab.cli reproduce "$@" --scale paper --jobs "$many" --resume --out "$runs" \
        --collect "$held" --time-limit "$(left)" >"$runs/log_${piece}_$name.txt" 2>&1
    echo "$name: exit $?, $(left) s left"
}

# tune NAME JOBS TASK OPTIONS...
tune() {
    local name=$1 many=$2
    shift 2
    [ "$(left)" -gt 15 ] || { echo "$name: no time"; return; }
    "$python" -m spidersilk.lab.cli tune "$@" --jobs "$many" --resume --out "$runs/tune" --to "$held" \
        --time-limit "$(left)" >"$runs/log_${piece}_$name.txt" 2>&1
    echo "$name: exit $?, $(left) s left"
}

language=(language --set eval_pieces=100 --budget 1 --final-budget 1)
five=sparse-sgd,sparse-adamw,adamw,momentum,sgd
trap stop_mps EXIT
[ "$piece" = logistic ] || start_mps
case $piece in
small)
    # The language model's runs are few and long, the others many and short: two batches side by side.
    printed='figure2-sgd,figure2-spiderboost,figure2-sparse-spiderboost,figure2-sparse-sgd-tuned,figure2-sgd-tuned'
    reproduce figure2 6 figure2 --only "$printed,figure2-sparse-spiderboost-adaptive" &
    table='table1-cnn-mnist,table1-fc-mnist,sparsity-fc-*,table1-cnn-svhn,table1-fc-svhn'
    reproduce small $((jobs - 6)) figure1,sparsity,table1 --only "figure1-right-*,sparsity-cnn-*,$table"
    wait
    ;;
seeds)
    reproduce seeds "$jobs" figure1,sparsity,table1 --seeds "${SEEDS:-3}" \
        --only 'figure1-right-*,sparsity-*,table1-cnn-mnist,table1-fc-mnist,table1-cnn-svhn,table1-fc-svhn'
    ;;
cifar)
    # One ResNet fills the GPU; eight at a time run at equal pace, so their curves can be compared when time is over.
    first=$(printf 'figure1-left-%s,' sgd spiderboost sparse-spiderboost sparse-sgd sparse-svrg \
        sparse-spiderboost-adaptive)
    reproduce cifar 8 figure1,table1 --only "${first}table1-cnn-cifar10,table1-fc-cifar10,figure1-left-*"
    ;;
language)
    many=$((jobs > 8 ? 8 : jobs))
    first=$(printf 'figure2-%s,' spiderboost sparse-svrg sparse-spiderboost sgd sparse-spiderboost-adaptive \
        sparse-svrg-refresh sparse-svrg-selected sparse-sgd sgd-tuned sparse-sgd-tuned)
    large=$(printf 'figure2-10k-%s,' sgd spiderboost sparse-spiderboost sparse-svrg sparse-sgd)
    reproduce language "$many" figure2 --only "$first${large}figure2-10k-*"
    ;;
ablations)
    reproduce ablations "$jobs" ablation-reset,ablation-lengths,ablation-split,controls-figure2,controls-figure3 \
        --seeds "${SEEDS:-3}" --only 'controls-figure2-*,reset-*,lengths-*,*'
    ;;
entropy)
    reproduce entropy 2 table1 --only 'table1-resnet18-cifar10,table1-resnet18-svhn'
    ;;
tune)
    # These five use gradients, not differences of gradients, so bfloat16 is safe. The sparse ones take about eight
    # steps where the others take one, so they go first. ResNet-18 fills the GPU, the others its gaps.
    resnet=(image --set model=resnet18 --set data=cifar10 --set channels_last=true --set bf16=true)
    tune resnet 8 "${resnet[@]}" --set eval_samples=5000 --methods "$five" --budget 1 --final-budget 4 &
    tune cnn_cifar 5 image --set model=cnn --set data=cifar10 --methods "$five" --budget 2 --final-budget 2
    tune language 5 "${language[@]}" --methods "$five"
    tune cnn 5 image --set model=cnn --set data=mnist --methods "$five" --budget 1 --final-budget 4
    wait
    ;;
longer)
    longer=(--budget 8 --final-budget 8 --name tune_image_cnn_cifar10_8)
    tune cnn_cifar_8 "$jobs" image --set model=cnn --set data=cifar10 --methods "$five" "${longer[@]}"
    ;;
logistic)
    tune mnist 3 logistic --set data=mnist --device cpu --budget 12 --final-budget 30
    ;;
others)
    tune language 4 "${language[@]}" &
    tune cnn_cifar 6 image --set model=cnn --set data=cifar10 --budget 2 --final-budget 2 &
    tune cnn 4 image --set model=cnn --set data=mnist --budget 1 --final-budget 4
    wait
    ;;
rest)
    reproduce rest "$jobs" all
    ;;
*)
    echo "$piece is not a piece: see the head of $0" >&2
    exit 2
    ;;
esac
for file in "$held"/*.json; do # files that changed
    cmp -s "$file" "$given/$(basename "$file")" || cp "$file" "$out"/
done
tail -n "${LINES_SHOWN:-60}" "$runs/log_${piece}_"*.txt
