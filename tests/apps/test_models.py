"""The mathematics of the sample apps, in this process."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

import compose.apps
from compose.apps import factorize
from compose.apps.learning import checkpoint, digits, options, training
from compose.apps.learning.batches import SHARDS, Batches, shards_of
from compose.apps.ring.collective import Ring
from compose.apps.worker.contract import read_place
from compose.apps.worker.failures import CheckpointUnusable
from compose.apps.worker.process import Stop
from compose.apps.worker.progress import Progress
from events.spec import check_spec

if TYPE_CHECKING:
    from compose.apps.learning.model import Program

pytestmark = pytest.mark.slow

APPS = Path(compose.apps.__file__).parent
SPECS = sorted(APPS.glob("*.yaml"))


def program(name: str) -> Program:
    found: Program = importlib.import_module(f"compose.apps.{name}").PROGRAM
    return found


@pytest.mark.parametrize("name", ["logistic", "factorize", "mlp"])
def test_gradients_match_the_loss(name: str) -> None:
    its = program(name)
    model = its.build(digits.load({}), dict.fromkeys(its.sizes, 3))
    random = np.random.default_rng(5)
    start = model.start(random)
    point = start + 0.1 * random.standard_normal(start.shape)
    rows = np.arange(3, 40, dtype=np.int64)
    _, gradient = model.gradient(point, rows)
    for _ in range(5):
        direction = random.standard_normal(point.shape)
        step = 1e-6
        ahead, _ = model.gradient(point + step * direction, rows)
        behind, _ = model.gradient(point - step * direction, rows)
        assert (ahead - behind) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-5)


@pytest.mark.soak
def test_factorization_approaches_the_optimum_from_above() -> None:
    data = digits.load({})
    chosen = options.parse(factorize.PROGRAM, ["--steps", "300", "--factors", "6"])
    model = factorize.PROGRAM.build(data, chosen.sizes)
    start = model.start(np.random.default_rng(1))
    state = checkpoint.Checkpoint(0, 0.0, start, np.zeros_like(start), {})
    place = read_place({})
    worker = training.Worker(place, model, chosen, Ring(place, None, None, 1.0), Stop(), Progress(None))
    loss = worker.train(state).loss

    centred = data.images - data.images.mean(axis=0)
    best = 0.5 * float(np.square(np.linalg.svd(centred, compute_uv=False)[6:]).sum()) / len(centred)
    assert best <= loss * (1 + 1e-12)
    assert loss == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_classifiers_generalise(name: str) -> None:
    its = program(name)
    chosen = options.parse(its, ["--steps", "200"])
    model = its.build(digits.load({}), chosen.sizes)
    start = model.start(np.random.default_rng(1))
    place = read_place({})
    worker = training.Worker(place, model, chosen, Ring(place, None, None, 1.0), Stop(), Progress(None))
    state = worker.train(checkpoint.Checkpoint(0, 0.0, start, np.zeros_like(start), {}))
    assert model.quality(state.parameters)["held_out_accuracy"] > 0.88


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 24, 30])
def test_every_shard_has_one_worker_and_order_follows_rank(world_size: int) -> None:
    shards = [shards_of(rank, world_size) for rank in range(world_size)]
    assert [shard for mine in shards for shard in mine] == list(range(SHARDS))
    counts = [len(mine) for mine in shards]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("rows", "size"), [(1416, 720), (1797, 1797), (100, 7), (100, 99)])
def test_every_epoch_sees_every_row_once(rows: int, size: int) -> None:
    batches = Batches(rows, size, seed=3)
    steps = [np.concatenate(batches.shards(step)) for step in range(1, 4 * rows // size + 2)]
    assert all(len(step) == size for step in steps)
    stream = np.concatenate(steps)
    for epoch in range(len(stream) // rows):
        assert sorted(stream[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    # A resumed worker sees the same step without having seen those before.
    last = len(steps)
    assert np.array_equal(np.concatenate(Batches(rows, size, seed=3).shards(last)), steps[-1])


def test_a_checkpoint_with_any_byte_changed_is_refused_or_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    saved = checkpoint.Checkpoint(3, 0.5, random.standard_normal(20), random.standard_normal(20), {"seed": 1})
    checkpoint.save(tmp_path, saved)
    file = tmp_path / checkpoint.FILE
    content = file.read_bytes()
    refused = 0
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            loaded = checkpoint.load(tmp_path, {"seed": 1}, 20)
        except CheckpointUnusable:
            refused += 1
        else:
            assert loaded.digest() == saved.digest()
    assert refused > len(content) // 2
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(CheckpointUnusable):
            checkpoint.load(tmp_path, {"seed": 1}, 20)


@pytest.mark.parametrize("file", SPECS, ids=lambda file: file.stem)
def test_specs_are_valid_and_run_their_programs(file: Path) -> None:
    spec = check_spec(yaml.safe_load(file.read_text()))
    assert spec.command[:3] == ["python3", "-m", f"compose.apps.{file.stem}"]
    if spec.elastic == "live":
        assert spec.resume == [], "it continues from its newest checkpoint by itself"
        return
    assert spec.resume == [*spec.command, "--resume"]
    if file.stem == "torch_mlp":
        return  # PyTorch is not a part of the usual environment; tests/e2e/engines runs this spec
    chosen = options.parse(program(file.stem), spec.resume[3:])
    assert chosen.resume
    assert chosen.pace > 0


def test_every_program_has_a_spec() -> None:
    assert [file.stem for file in SPECS] == sorted(path.stem for path in APPS.glob("*.py") if path.stem != "__init__")
