#!/bin/bash
#SBATCH --job-name=recsys
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# sbatch docs/slurm.sh model=dlrm data=criteo sharding=rowwise run_dir=/shared/runs/a data.prepared=/shared/prepared
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node do not meet

# export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0

srun --kill-on-bad-exit=1 torchrun \
    --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv_backend=c10d --rdzv_endpoint="$first:$port" --rdzv_id="$SLURM_JOB_ID" \
    --max_restarts=3 \
    -m recsys.train resume=auto "$@"
