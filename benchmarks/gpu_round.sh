#!/usr/bin/env bash
# A round on a GPU host: tests, sanitizers and the figures of RESULTS.md. A log per part goes to OUT.
#
#   benchmarks/gpu_round.sh DATA OUT PART...
#
# DATA holds tox21.h5, tox_all.h5, tox21_bonds.h5, reaction_shape.h5 and cora.h5 (see RESULTS.md), and for the part
# `peer` a folder peers/ with bench_pyg.py and its inputs. OTHER names a checkout of another commit for the part `other`.
# Parts: tests, memcheck, racecheck, steps, many, peer, kernels, commands, explain, shards, ranks, graph, other. A part that fails does
# not stop the next; the exit code is the number of parts that failed.
set -u
data=$1 out=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 MPLBACKEND=Agg
mkdir -p "$out"
cd "$root" || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

gcnbatch() { python3 -m gcnbatch "$@"; }
gpu_tests() { python3 -m pytest -m gpu -q -p no:benchmark -p no:cacheprovider "$@"; }
# Tests of new or changed kernels, small enough for a sanitizer: files, with options.
checked=(tests/ops/test_relu_dropout.py tests/ops/test_concatenate.py tests/backends/cuda/spmm/test_compressed.py
    tests/backends/cuda/spmm/test_large.py tests/backends/cuda/fused/test_cohort.py tests/backends/cuda/fused/test_propagate.py
    "tests/backends/cuda/test_training.py -k Kipf-fused")
sanitize() { # TOOL: a process for each entry, side by side: a tool slows its process, not the GPU
    local at code=0 running=()
    for at in "${!checked[@]}"; do
        # shellcheck disable=SC2086
        compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no python3 -m pytest -m gpu -q -x \
            -p no:benchmark -p no:cacheprovider ${checked[at]} > "$work/$at.log" 2>&1 &
        running+=($!)
    done
    for at in "${!checked[@]}"; do
        wait "${running[at]}" || code=1
        echo "== ${checked[at]}"
        tail -n 12 "$work/$at.log"
    done
    return $code
}
times() { # NAME COUNT COMMAND...: wall seconds of a command that writes to $work/made, process start to exit
    local name=$1 count=$2 begun
    shift 2
    for _ in $(seq "$count"); do
        rm -rf "$work/made"
        begun=$(date +%s%N)
        "$@" > "$work/said" 2>&1 || tail -5 "$work/said"
        echo "{\"what\": \"$name\", \"seconds\": $(((($(date +%s%N) - begun)) / 1000000))e-3}"
    done
}

part_tests() { gpu_tests -n 14 tests; }
part_memcheck() { sanitize memcheck; }
part_racecheck() { sanitize racecheck; }
part_steps() {
    python3 benchmarks/training_step.py configs/tox21.toml "$data/tox21.h5" --backends fused,batched,nonbatched
    python3 benchmarks/training_step.py configs/reaction100.toml "$data/reaction_shape.h5" --backends fused
    python3 benchmarks/training_step.py configs/reaction100.toml "$data/reaction_shape.h5" --backends fused \
        --set cuda.precision=tf32
    python3 benchmarks/training_step.py configs/cora.toml "$data/cora.h5" --backends fused,batched
}
part_many() { python3 benchmarks/many_models.py configs/tox21.toml "$data/tox21.h5"; }
part_peer() { python3 "$data/peers/bench_pyg.py" "$data/peers" --quick tox21 reaction cora reddit; }
part_kernels() {
    gcnbatch bench spmm --figure all -o "$work/spmm" --json
    gcnbatch bench spgemm "$data/tox_all.h5" --classes power_law,stencil,uniform -o "$work/spgemm" --json
    python3 benchmarks/large_graph.py
}
part_commands() {
    local on=(--data "$data/tox21.h5" -o "$work/made")
    times "50 epochs of tox21.toml" 4 gcnbatch train configs/tox21.toml "${on[@]}"
    times "5 folds x 5 repeats" 2 gcnbatch train configs/tox21.toml --folds 5 --repeats 5 "${on[@]}"
    times "ensemble of 100" 1 gcnbatch train configs/tox21.toml --ensemble 100 "${on[@]}"
    times "tune, 200 trials" 1 gcnbatch tune configs/tox21.toml --trials 200 "${on[@]}"
}
part_explain() {
    gcnbatch train configs/tox21_tuned.toml --data "$data/tox21_bonds.h5" --epochs 5 -o "$work/bonds"
    python3 benchmarks/explanations.py "$work/bonds" "$data/tox21_bonds.h5" --molecules 1000 --backend batched \
        --batch-nodes 8192 32768 131072
}
part_shards() { # training that streams a folder of shards, and one file at once: files equal to the byte
    local on=(configs/reaction100.toml --backend batched --epochs 2)
    gcnbatch data shard "$data/reaction_shape.h5" -o "$work/shards" --size 16MB
    gcnbatch train "${on[@]}" --data "$data/reaction_shape.h5" -o "$work/file"
    gcnbatch train "${on[@]}" --data "$work/shards" -o "$work/streamed" --set data.memory_mb=16
    cmp "$work/file/last.safetensors" "$work/streamed/last.safetensors"
}
part_ranks() { # on two GPUs: the time, and files equal to the byte
    local on=(configs/tox21.toml --data "$data/tox21.h5" --folds 5 --repeats 5 -o "$work/made")
    times "folds, one process" 2 gcnbatch train "${on[@]}"
    mv "$work/made" "$work/alone"
    times "folds, two ranks" 2 mpirun --allow-run-as-root --oversubscribe -n 2 python3 -m gcnbatch train "${on[@]}"
    (cd "$work/alone" && find . -name '*.safetensors' -o -name 'history.jsonl' -o -name 'predictions*.csv') |
        while read -r file; do cmp "$work/alone/$file" "$work/made/$file" || exit 1; done
}
part_graph() { # on all GPUs: products of whole numbers, memcheck, times of one large graph and of wide models, the peer's
    local gpus shape run=(mpirun --allow-run-as-root --oversubscribe --bind-to none)
    gpus=$(nvidia-smi --list-gpus | wc -l)
    gcnbatch data synth reddit --scale 0.005 -o "$work/small.h5"
    "${run[@]}" -n "$gpus" python3 -m tests.ranks.pushed_products "$work/small.h5" || exit 1
    "${run[@]}" -n 2 compute-sanitizer --tool memcheck --error-exitcode 9 --report-api-errors no \
        python3 -m tests.ranks.pushed_products "$work/small.h5" || exit 1
    for shape in reddit products "products --labelled 0.08"; do
        # shellcheck disable=SC2086
        "${run[@]}" -n "$gpus" python3 benchmarks/large_graph_ranks.py --shape $shape --losses 8
    done
    for ranks in 1 2 "$gpus"; do
        "${run[@]}" -n "$ranks" python3 benchmarks/several_ranks.py configs/reaction100.toml "$data/reaction_shape.h5" \
            --backend fused --set train.batch_size=$((100 * ranks))
    done
    for shape in reddit "reddit --once" products "products --once"; do
        # shellcheck disable=SC2086
        [ ! -e "$data/peers/bench_full_batch.py" ] ||
            torchrun --standalone --nproc-per-node "$gpus" "$data/peers/bench_full_batch.py" $shape
    done
}
part_other() { PYTHONPATH=$OTHER python3 "$OTHER/benchmarks/training_step.py" configs/tox21.toml "$data/tox21.h5" --backends fused; }

failed=0
for part in "$@"; do
    begun=$(date +%s)
    ("part_$part") > "$out/$part.log" 2>&1
    code=$?
    [ $code = 0 ] || failed=$((failed + 1))
    echo "$part: exit $code after $(($(date +%s) - begun)) s; $(tail -n 1 "$out/$part.log" | cut -c1-200)"
done
exit $failed
