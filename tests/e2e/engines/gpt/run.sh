#!/bin/bash
# Trains, keeps a log beside the project, and says when it is over.
set -eo pipefail
mkdir -p ../log
export SNAPSHOTS=${DORM_CHECKPOINT_DIR:-../snapshots}
python3 train.py "$@" 2>&1 | tee ../log/train.txt
echo "the script goes on after $(wc -l < ../log/train.txt) lines"
