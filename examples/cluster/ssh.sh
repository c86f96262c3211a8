#!/bin/sh
# The hosts of a file, through ssh without a password; the list begins with this host. Each needs `phalanx` and the program in the same places.
#     ./ssh.sh hosts.txt ./train --epochs 10
set -eu
hosts=$1
shift
exec phalanx run --hostfile "$hosts" -n "${RANKS_PER_HOST:-4}" "$@"
