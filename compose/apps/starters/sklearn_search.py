"""A search over the settings of a classifier, in scikit-learn: each container tries its part of the candidates.

python3 sklearn_search.py [--folds 5] [--pace SECONDS]

Containers do not communicate with each other.  Each candidate's score is a file in DORM_CHECKPOINT_DIR, which all
containers share: there is no other state.  So a resize costs only the candidates that were being tried, and does not
affect the result.  The program needs no `--resume`, because it looks for existing scores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sklearn.datasets import load_digits
from sklearn.model_selection import ParameterGrid, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

GRID = {"svc__C": [0.1, 1.0, 10.0], "svc__gamma": [0.0005, 0.002, 0.008, 0.03], "svc__kernel": ["rbf", "sigmoid"]}


def main() -> int:
    options = _parser().parse_args()
    rank, size = int(os.environ.get("DORM_RANK", "0")), int(os.environ.get("DORM_WORLD_SIZE", "1"))
    with TemporaryDirectory() as alone:
        scores = Path(os.environ.get("DORM_CHECKPOINT_DIR", alone))
        candidates = list(ParameterGrid(GRID))
        missing = [number for number in range(len(candidates)) if not _file(scores, number).exists()]
        print(f"rank {rank} of {size}: {len(missing)} of {len(candidates)} candidates are left", flush=True)
        digits = load_digits()
        model = make_pipeline(StandardScaler(), SVC())
        for number in missing[rank::size]:
            began = time.monotonic()
            model.set_params(**candidates[number])
            score = float(cross_val_score(model, digits.data, digits.target, cv=options.folds).mean())
            time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
            _write(_file(scores, number), {"settings": candidates[number], "accuracy": score})
            if rank == 0:
                _report(scores)
        while rank == 0 and len(list(scores.glob("candidate-*.json"))) < len(candidates):
            time.sleep(1)  # the others are not done
            _report(scores)
        if rank == 0:
            print(json.dumps({"result": _report(scores)}), flush=True)
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folds", type=int, default=5, help="parts of the cross-validation (%(default)s)")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="least seconds of a candidate; stands for a heavier model"
    )
    return parser


def _file(scores: Path, number: int) -> Path:
    return scores / f"candidate-{number:03}.json"


def _write(file: Path, score: dict[str, object]) -> None:
    """Write a score completely or not at all: a container may be stopped at any time."""
    partial = file.with_suffix(f".partial-{os.environ.get('DORM_SLOT', '0')}")
    with partial.open("w") as opened:
        json.dump(score, opened)
        opened.flush()
        os.fsync(opened.fileno())
    partial.replace(file)


def _report(scores: Path) -> dict[str, Any]:
    """Report how many candidates all containers have tried, and the error of the best one, which is returned.  Only rank 0
    does so, because concurrent counts of two containers could arrive in any order."""
    candidates: list[dict[str, Any]] = [
        json.loads(file.read_text()) for file in sorted(scores.glob("candidate-*.json"))
    ]
    best = max(candidates, key=lambda candidate: float(candidate["accuracy"]))
    if progress := os.environ.get("DORM_PROGRESS"):
        with Path(progress).open("a") as file:
            file.write(json.dumps({"step": len(candidates), "loss": 1.0 - best["accuracy"]}) + "\n")
            file.write(json.dumps({"checkpoint": len(candidates)}) + "\n")
    return best


if __name__ == "__main__":
    sys.exit(main())
