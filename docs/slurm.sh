#!/bin/bash
#SBATCH --job-name=recsys
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# sbatch docs/slurm.sh model=dlrm data=criteo sharding=rowwise run_dir=/shared/runs/a data.prepared=/shared/prepared
#
# In the environment of sbatch, if the cluster needs them:
#   INTERFACE=ib0                  the network that the nodes reach each other by: gloo's and NCCL's
#   IMAGE=recsys-train.sqsh        runs in this image, through pyxis' srun --container-image
#   MOUNTS=/shared:/shared         what the image sees besides the working directory
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node do not meet
if [ -n "${INTERFACE:-}" ]; then export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE; fi
options=(--kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK") # since 22.05, srun does not take sbatch's
if [ -n "${IMAGE:-}" ]; then
    options+=(--container-image="$IMAGE" --container-workdir="$PWD" --container-mounts="$PWD:$PWD${MOUNTS:+,$MOUNTS}")
fi

# Near the time limit, Slurm sends USR1 to this shell alone. The ranks end their step and write a checkpoint, and the job
# is queued again, to resume from it. A job that ends by itself, by a mistake in the config too, is not.
# The step is signalled, and not srun, which would kill the ranks.
trap 'near_limit=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"' USR1
srun "${options[@]}" torchrun \
    --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv_backend=c10d --rdzv_endpoint="$first:$port" --rdzv_id="$SLURM_JOB_ID" \
    --max_restarts=3 --shutdown_timeout=240 \
    -m recsys.train resume=auto trainer.save_on_interrupt=true "$@" &
step=$!
code=0
wait "$step" || code=$? # a trap runs only while bash waits, and ends the wait
if [ -n "${near_limit:-}" ]; then
    code=0
    wait "$step" || code=$?
    if ((code != 0 && SECONDS < 45)); then
        echo "slurm.sh: --time is hardly longer than the lead of --signal, so that the job would be queued for ever" >&2
    elif ((code != 0)); then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"
