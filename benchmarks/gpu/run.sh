#!/bin/sh
# All tests and benchmarks of a GPU, within 25 minutes. Results: files in $OUT, or in benchmarks/results/gpu.
#
#   benchmarks/gpu/run.sh                  on a GPU
#   benchmarks/gpu/run.sh --small          tiny sizes on a CPU, which show that all of it runs
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-benchmarks/results/gpu}
export OUT PYTHONPATH=benchmarks:$PYTHONPATH
mkdir -p "$OUT"
python=${PYTHON:-uv run --no-sync python}
given=
test "$1" = --small && given="--device cpu --small --rounds 1 --only ${ONLY:-recsys,loop,cached,HBM,float32}"
failed=0

part() { # seconds, name, command: a part that fails or is too slow does not end the others
    seconds=$1 name=$2
    shift 2
    echo "$name" && timeout -k 10 "$seconds" "$@" >"$OUT/$name.txt" 2>&1 || { echo "$name: exit $?" && failed=1; }
}

nvidia-smi >"$OUT/nvidia_smi.txt" 2>&1
part 420 tests $python -m pytest -m gpu -n 0 -q tests/gpu
part 600 dlrm $python benchmarks/gpu/dlrm_gpu.py --rounds 1 $given # each option once: tables of 16 GiB are made anew
part 180 sequences $python benchmarks/gpu/sequences_gpu.py $given
part 150 host_memory $python benchmarks/gpu/host_memory.py $given
part 150 from_files $python benchmarks/gpu/from_files.py $given
exit $failed
