"""The scripts of docs/elastic.md run as printed, with the data that readers would load."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from dorm.elastic import ledger
from dorm_lab.bench.elastic.workers import Workers
from tests.docs.shown import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

_DIGITS = """
import os
from compose.apps.learning import digits
_digits = digits.load(os.environ)
"""
_NUMPY = (
    _DIGITS
    + """
import numpy as np
def load():
    return _digits.images, (_digits.labels % 2).astype(float)
def predict(features, weights):
    return 1 / (1 + np.exp(-features @ weights))
def loss(predicted, labels):
    return -np.log(np.where(labels > 0, predicted, 1 - predicted) + 1e-12)
"""
)
_TORCH = (
    _DIGITS
    + """
import time
import torch
torch.set_num_threads(1)
def load_tensors():
    return torch.tensor(_digits.images, dtype=torch.float32), torch.tensor(_digits.labels)
"""
)


def script(heading: str) -> str:
    """The first Python block below a heading."""
    text = (REPOSITORY / "docs" / "elastic.md").read_text().split(f"\n## {heading}\n")[1]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def written(tmp_path: Path, before: str, code: str, after: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(before + code + after)
    return str(path)


def test_the_script_in_numpy(tmp_path: Path) -> None:
    after = "print(job.left, np.mean((predict(data, weights) > 0.5) == labels) > 0.85, flush=True)\n"
    slower = script("A script that can be resized").replace(
        "step.report(loss=total / step.batch)", "step.report(loss=total / step.batch); time.sleep(0.06)"
    )
    workers = Workers(tmp_path / "job", written(tmp_path, "import time\n" + _NUMPY, slower, after))
    try:
        workers.announce(0)
        workers.until(lambda: 0 in workers.epochs())
        workers.announce(0, 1)
        assert workers.wait(0, 1) == [0, 0]
        assert workers.output(0) == workers.output(1) == "False True\n"
        assert workers.epochs() == dict.fromkeys(range(10), ledger.expected(1797).digest)
    finally:
        workers.close()


@pytest.mark.timeout(300)
def test_ten_lines_make_a_pytorch_script_elastic(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
    code = script("With PyTorch")
    assert len(re.findall(r"# \d+$", code, re.MULTILINE)) <= 10
    slower = code.replace("        optimizer.step()\n", "        optimizer.step()\n        time.sleep(0.3)\n")
    # The model of one that leaves is as far as the job was by then.
    after = """
with torch.no_grad():
    print(job.left, job.left or float((model(x).argmax(1) == y).float().mean()) > 0.85, flush=True)
"""
    workers = Workers(tmp_path / "job", written(tmp_path, _TORCH, slower, after))
    try:
        workers.announce(0, 1)
        workers.until(lambda: 0 in workers.epochs(), timeout=120.0)
        workers.announce(0, 1, 2)
        workers.until(lambda: any(change["cause"] == "grow" for change in workers.changes()), timeout=120.0)
        workers.signal(0, signal.SIGKILL)
        workers.until(lambda: any(change["cause"] == "death" for change in workers.changes()), timeout=120.0)
        workers.announce(2)
        assert workers.wait(1, 2) == [0, 0]
        assert (workers.output(1), workers.output(2)) == ("True True\n", "False True\n")
        assert workers.epochs() == dict.fromkeys(range(8), ledger.expected(1797).digest)
    finally:
        workers.close()


@pytest.mark.timeout(300)
def test_a_lightning_module_trains_in_the_elastic_loop(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs Lightning: `make test-engines`")
    waits = "time.sleep(0.05 if step.epoch < 4 or len(job.members) > 1 else 1.0)"  # for the newcomer
    slower = script("With Lightning").replace("optimizer.step()\n", f"optimizer.step(); {waits}\n")
    after = """
with torch.no_grad():
    print(job.left, float((module.net(x).argmax(1) == y).float().mean()) > 0.85, flush=True)
"""
    workers = Workers(tmp_path / "job", written(tmp_path, _TORCH, slower, after))
    try:
        workers.announce(0)
        workers.until(lambda: 0 in workers.epochs(), timeout=120.0)
        workers.announce(0, 1)
        assert workers.wait(0, 1, timeout=120.0) == [0, 0]
        assert [workers.output(slot).splitlines()[-1] for slot in (0, 1)] == ["False True"] * 2
        assert workers.epochs() == dict.fromkeys(range(8), ledger.expected(1797).digest)
    finally:
        workers.close()
