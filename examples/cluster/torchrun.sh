#!/bin/sh
# torchrun starts the ranks, 4 on each of 2 hosts. Run it on each, with the same secret (64 hexadecimal digits, `openssl rand -hex 32`):
#     PHALANX_SECRET=… ./torchrun.sh node-a:29500 ./train --epochs 10
set -eu
: "${PHALANX_SECRET:?the same on all hosts: openssl rand -hex 32}"
rendezvous=$1
shift
exec torchrun --nnodes "${HOSTS:-2}" --nproc-per-node "${RANKS_PER_HOST:-4}" --rdzv-backend c10d --rdzv-endpoint "$rendezvous" --no-python "$@"
