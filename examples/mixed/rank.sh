#!/bin/sh
# One rank of the job: those with even numbers are Rust programs, the others Python programs. MIXED names the Rust program, PYTHON an interpreter with phalanx, torch
# and safetensors.
set -eu

here=$(dirname "$0")
if [ $((PHALANX_RANK % 2)) -eq 0 ]; then
    exec "${MIXED:-$here/../../target/release/mixed}"
else
    exec "${PYTHON:-python}" "$here/train.py"
fi
