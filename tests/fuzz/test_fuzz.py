"""A short run of the fuzz, inputs that failed once, and that the fuzz itself finds, names, repeats and shrinks failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from agents import progress
from dorm.core import containers
from dorm.core import evolve as evolving
from dorm.core.folded import APP, IGNORED, Effect
from events.kinds import ContainerStarted
from events.nats import reader as jetstream_reader
from tests.core.mutants import mutate_method
from tests.fuzz import running
from tests.fuzz.edits import Source, changed, json_of, msgpack_of
from tests.fuzz.running import Work, fails, planned, repeat, run, save, source_of
from tests.fuzz.samples import SPECS
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.tries import tries

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.records import Record

FOUND = sorted((Path(__file__).parent / "found").glob("*.hex"))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_malformed_does_harm(name: str) -> None:
    whole = sum(target.share for target in TARGETS.values())
    count = max(30, tries(4_000, 300_000) * TARGETS[name].share // whole)
    done = run(Work(name, 0, 0, count))
    assert [(failure.name, failure.error) for failure in done.failures] == []
    assert done.inputs == count


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_earlier_failures_do_not_recur(path: Path) -> None:
    assert repeat(path) is None


def test_inputs_are_reproducible() -> None:
    for target in TARGETS.values():
        assert [target.make(source_of(3, number)) for number in range(20)] == [
            target.make(source_of(3, number)) for number in range(20)
        ]


def test_all_inputs_are_planned_once() -> None:
    work = planned(10_000, 7, [], 100)
    for name in TARGETS:
        numbers = [n for one in work if one.target == name for n in range(one.first, one.first + one.count)]
        assert numbers == list(range(len(numbers)))
    assert 10_000 <= sum(one.count for one in work) <= 10_000 + len(TARGETS)
    assert {one.target for one in planned(50, 7, ["codec"], 100)} == {"codec"}


def test_a_progress_file_that_ends_an_agent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate_method(monkeypatch, progress.ProgressFile, "_newest_first", "if document is not None:", "if True:")
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


def _start_twice(state: State, event: object, record: Record) -> Effect:
    """A fold that counts a start each time it is reported."""
    reported = containers._container_of(state, event, record)
    if reported is None:
        return IGNORED
    _, generation, container = reported
    container.state = "running"
    generation.running += 1
    return APP


def _make(source: Source) -> bytes:
    return source.bytes(20) + source.pick((b"fine", b"!", b"?")) + source.bytes(20)


def _check(data: bytes) -> None:
    if b"!" in data:
        raise KeyError("!")
    if b"?" in data:
        raise ValueError("?")


def test_failures_are_named_and_shrunk_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "planted", Target("planted", 1, _make, _check))
    failures = run(Work("planted", 5, 10, 20)).failures
    smallest = {where: next(one for one in failures if one.where == where) for where in {one.where for one in failures}}
    assert {one.data for one in smallest.values()} == {bytes(20) + piece + bytes(20) for piece in (b"!", b"?")}
    first = next(one for one in failures if "KeyError" in one.where)
    assert first.where.startswith("KeyError at fuzz/test_fuzz.py:")
    seed, number = first.name.split("/")
    as_found = fails(TARGETS["planted"], _make(source_of(seed, int(number))), first.name)
    assert as_found is not None
    assert as_found.where == first.where
    again = repeat(save(tmp_path, first))
    assert again is not None
    assert again.where == first.where


def test_slow_inputs_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SLOW_S", 0.0)
    failure = fails(Target("slow", 1, _make, lambda data: None), b"x", "0/0")
    assert failure is not None
    assert "Slow" in failure.where


def test_an_endless_input_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def for_ever(data: bytes) -> None:
        tried.append(data)
        while True:
            pass

    monkeypatch.setattr(running, "HANG_S", 0.2)
    monkeypatch.setitem(TARGETS, "hanging", Target("hanging", 1, _make, for_ever))
    failures = run(Work("hanging", 0, 0, 1)).failures
    assert "Hang" in failures[0].where
    assert len(tried) == 1, "what hangs is not tried again and again to make it smaller"


def test_trees_are_encoded_as_by_other_libraries() -> None:
    for spec in SPECS:
        assert msgpack.unpackb(msgpack_of(spec)) == spec
        assert json.loads(json_of(spec)) == spec


def test_a_change_does_not_modify_its_source() -> None:
    before = json_of(SPECS[1])
    made = {json_of(changed(source_of(0, number), SPECS[1])) for number in range(500)}
    assert json_of(SPECS[1]) == before
    assert len(made) > 400
