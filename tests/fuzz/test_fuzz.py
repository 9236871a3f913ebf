"""A short run of the fuzz, what failed once, and that the fuzz itself finds, names, repeats and shrinks what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from agents import progress
from dorm.core.fold import evolve as evolving
from events.kinds import ContainerStarted
from events.nats import reader as jetstream_reader
from tests.core.mutants import mutate_method
from tests.fuzz import running
from tests.fuzz.mutations import json_of, msgpack_of, mutated_tree
from tests.fuzz.running import Work, fails, input_of, planned, repeat, run, save
from tests.fuzz.samples import SPECS
from tests.fuzz.target import Simple
from tests.fuzz.targets import TARGETS
from tests.tries import tries

FOUND = sorted((Path(__file__).parent / "found").glob("*.hex"))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_malformed_does_harm(name: str) -> None:
    whole = sum(target.share for target in TARGETS.values())
    count = max(60, tries(15_000, 300_000) * TARGETS[name].share // whole)
    done = run(Work(name, 0, 0, count))
    assert [(failure.name, failure.error) for failure in done.failures] == []
    assert done.inputs == count


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    assert repeat(path) is None


def test_an_input_is_the_same_wherever_it_is_made() -> None:
    for target in TARGETS.values():
        assert [input_of(target, 3, number) for number in range(20)] == [
            input_of(target, 3, number) for number in range(20)
        ]


def test_all_inputs_are_planned_once() -> None:
    work = planned(10_000, 7, [], 100)
    for name in TARGETS:
        numbers = [n for one in work if one.target == name for n in range(one.first, one.first + one.count)]
        assert numbers == list(range(len(numbers)))
    assert 10_000 <= sum(one.count for one in work) <= 10_000 + len(TARGETS)
    assert {one.target for one in planned(50, 7, ["codec"], 100)} == {"codec"}


def test_a_progress_file_that_ends_an_agent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate_method(monkeypatch, progress.ProgressFile, "_newest_first", "UnicodeDecodeError, ", "")
    assert run(Work("progress", 0, 0, 300)).failures


def test_a_reader_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate_method(monkeypatch, jetstream_reader.Reader, "_take", "except ValueError:", "except ZeroDivisionError:")
    assert run(Work("nats-message", 0, 0, 300)).failures


def test_a_fold_that_believes_foreign_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[type, Any] = {**evolving._HANDLERS}
    handlers[ContainerStarted] = _start_twice
    monkeypatch.setattr(evolving, "_HANDLERS", handlers)
    failures = run(Work("fold", 0, 0, 200)).failures
    assert any("running" in failure.error for failure in failures)


def _start_twice(state: object, event: object, record: object) -> None:
    """A fold that counts a start each time it is told of."""
    found = evolving._container_of(state, event, record)  # type: ignore[arg-type]
    if found is not None:
        found[2].state = "running"
        found[1].running += 1


def _make(random: Random) -> bytes:
    return random.randbytes(200) + b"!" + random.randbytes(200)


def _check(data: bytes) -> None:
    if b"!" in data:
        raise KeyError("!")


def test_a_failure_is_named_and_shrunk_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "planted", Simple("planted", 1, _make, _check))
    first, *others = run(Work("planted", 5, 10, 4)).failures
    assert (first.target, first.name, first.data) == ("planted", "5/10", b"!")
    assert first.where.startswith("KeyError at fuzz/test_fuzz.py:")
    assert [failure.name for failure in others] == ["5/11", "5/12", "5/13"]
    path = save(tmp_path, first)
    again = repeat(path)
    assert again is not None
    assert again.where == first.where


def test_what_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SLOW_S", 0.0)
    failure = fails(Simple("slow", 1, _make, lambda data: None), b"x", "0/0")
    assert failure is not None
    assert "Slow" in failure.where


def test_an_input_that_never_comes_to_an_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(running, "HANG_S", 0.2)
    monkeypatch.setitem(TARGETS, "hanging", Simple("hanging", 1, _make, for_ever))
    failures = run(Work("hanging", 0, 0, 1)).failures
    assert "Hang" in failures[0].where


def test_trees_are_encoded_as_others_would() -> None:
    for spec in SPECS:
        assert msgpack.unpackb(msgpack_of(spec)) == spec
        assert json.loads(json_of(spec)) == spec


def test_a_mutation_leaves_what_it_was_made_of_alone() -> None:
    before = json_of(SPECS[1])
    for seed in range(500):
        mutated_tree(Random(seed), SPECS[1])
    assert json_of(SPECS[1]) == before
