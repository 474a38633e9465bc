#!/bin/sh
# All tests and benchmarks of a GPU, within 25 minutes. Results: files in $OUT, or in benchmarks/results/gpu/CARD; what
# each part printed: in $OUT, or in outputs/gpu, where the results of --small are, too.
#
#   benchmarks/gpu/run.sh                  on a GPU
#   benchmarks/gpu/run.sh --small          tiny sizes on a CPU, which show that all of it runs
#
# Needs what recsys itself needs, iopath included, which TorchRec's models import, and pytest. MINUTES (25): the time for
# all of it; each part gets its share. TEST_WORKERS (0): processes of tests/gpu.
cd "$(dirname "$0")/../.." || exit 1
given=
test "$1" = --small && given="--device cpu --small --only ${ONLY:-recsys,loop,cached,HBM,float32}"
test -n "$OUT" && export OUT
logs=${OUT:-outputs/gpu}
export PYTHONPATH=benchmarks:$PYTHONPATH
mkdir -p "$logs"
python=${PYTHON:-uv run --no-sync python}
failed=0

part() { # minutes of 25, name, command: a part that fails or is too slow does not end the others
    seconds=$(($1 * ${MINUTES:-25} * 60 / 25)) name=$2
    shift 2
    limit=
    test "$name" = tests || limit="--seconds $((seconds - 15))"
    echo "$name" && timeout -k 10 "$seconds" "$@" $limit >"$logs/$name.txt" 2>&1 || { echo "$name: exit $?" && failed=1; }
}

nvidia-smi >"$logs/nvidia_smi.txt" 2>&1
part 7 tests $python -m pytest -m gpu -n ${TEST_WORKERS:-0} --dist load -q tests/gpu
part 10 dlrm $python benchmarks/gpu/dlrm_gpu.py $given
part 3 sequences $python benchmarks/gpu/sequences_gpu.py $given
part 2 host_memory $python benchmarks/gpu/host_memory.py $given
part 3 from_files $python benchmarks/gpu/from_files.py $given
exit $failed
