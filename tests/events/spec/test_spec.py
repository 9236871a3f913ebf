"""Specs: what is accepted, and the messages for what is refused."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from events.quantities import LARGEST, duration, humanize, resource, resources
from events.spec import LARGEST_ARGUMENT, AppSpec, CheckedSpec, SpecError, check_spec, document_of, spec_schema
from tests.events.any_event import PLAIN, specs
from tests.tries import tries

SAMPLES = sorted((Path(__file__).parents[3] / "compose").glob("**/apps/*.yaml"))
GOOD: dict[str, Any] = {
    "name": "digits",
    "command": ["python", "train.py"],
    "demand": {"cpu": "500m", "memory": "1GiB"},
}
FULL: dict[str, Any] = {
    **GOOD,
    "n_min": 2,
    "n_max": 8,
    "weight": 1.5,
    "require": 'gpu_type == "h100" and not has spot',
    "placement": "pack",
    "gang": 2,
    "steps": 20_000,
    "speed": [[2, 1.5], [8, 4]],
    "speed_on": {"a100": [[2, 3], [8, 9.5]]},
    "batch": {"initial": 64, "least": 32, "most": 512, "per_container": 16},
    "engine": "torchrun",
    "engine_options": {"processes": 2, "rendezvous": "c10d", "restarts": 3},
    "image": "python:3.11",
    "resume": ["python", "train.py", "--resume"],
    "checkpoint": ["kill", "-USR1", "1"],
    "env": {"LR": "0.1"},
    "grace": "30s",
    "retries": {"limit": 5, "backoff": 2, "longest": "1h", "out_of_memory": 1, "fatal_exit_codes": [2, 78]},
    "deadlines": {"start": "", "progress": "90s"},
    "user": "alice@lab",
    "labels": {"team": "vision"},
}
nan, inf = math.nan, math.inf


def refused(document: object) -> str:
    """Return the code of the refusal, whose text has to be one line of moderate length."""
    with pytest.raises(SpecError) as error:
        check_spec(document)
    message = str(error.value)
    assert "\n" not in message
    assert message
    assert len(message) <= 600
    return error.value.code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nmax": 3}, "spec.unknown_field"),
        ({"x y": 3}, "spec.unknown_field"),
        ({7: 3}, "spec.unknown_field"),
        ({10**5000: 3}, "spec.unknown_field"),
        ({"retries": {"limits": 3}}, "spec.retries.unknown_field"),
        ({"name": ""}, "spec.name.malformed"),
        ({"name": "Digits"}, "spec.name.malformed"),
        ({"name": "a" * 49}, "spec.name.malformed"),
        ({"name": "a" * 10**6}, "spec.name.malformed"),
        ({"name": "digits\n"}, "spec.name.malformed"),
        ({"name": 7}, "spec.name.wrong_type"),
        ({"name": None}, "spec.name.wrong_type"),
        ({"command": "python train.py"}, "spec.command.wrong_type"),
        ({"command": []}, "spec.command.out_of_range"),
        ({"command": [""]}, "spec.command.no_program"),
        ({"command": ["a", 7]}, "spec.command.wrong_type"),
        ({"command": ["a", "b\0"]}, "spec.command.malformed"),
        ({"command": ["a", "\ud800"]}, "spec.command.not_unicode"),
        ({"command": ["a"] * 1001}, "spec.command.out_of_range"),
        ({"command": ["a", "x" * (LARGEST_ARGUMENT + 1)]}, "spec.command.too_large"),
        ({"resume": [" "]}, "spec.resume.no_program"),
        ({"checkpoint": ["a\0"]}, "spec.checkpoint.malformed"),
        ({"demand": {}}, "spec.demand.out_of_range"),
        ({"demand": {"cpu": 0}}, "spec.demand.all_zero"),
        ({"demand": {"cpu": -1}}, "spec.demand.negative"),
        ({"demand": {"cpu": "-1"}}, "spec.demand.malformed"),
        ({"demand": {"cpu": nan}}, "spec.demand.negative"),
        ({"demand": {"cpu": inf}}, "spec.demand.too_large"),
        ({"demand": {"cpu": 10**400}}, "spec.demand.too_large"),
        ({"demand": {"cpu": 1e300}}, "spec.demand.too_large"),
        ({"demand": {"cpu": "2 cores"}}, "spec.demand.malformed"),
        ({"demand": {"cpu": "2GiB"}}, "spec.demand.unknown_unit"),
        ({"demand": {"cpu": "٣"}}, "spec.demand.malformed"),
        ({"demand": {"memory": "1XB"}}, "spec.demand.unknown_unit"),
        ({"demand": {"memory": "9" * 10**6}}, "spec.demand.malformed"),
        (
            {"demand": {"cpu": 1, "gpu": True}},
            "spec.demand.wrong_type",
        ),
        ({"demand": {"cpu": 1, "gpu": None}}, "spec.demand.wrong_type"),
        ({"demand": {"": 1}}, "spec.demand.malformed"),
        ({"demand": {"c\0": 1}}, "spec.demand.malformed"),
        ({"demand": {"cpu\n": 1}}, "spec.demand.malformed"),
        (
            {"demand": {f"r{number}": 1 for number in range(33)}},
            "spec.demand.out_of_range",
        ),
        ({"demand": [1]}, "spec.demand.wrong_type"),
        ({"n_min": 0}, "spec.n_min.out_of_range"),
        ({"n_min": -3}, "spec.n_min.out_of_range"),
        ({"n_min": 100_001}, "spec.n_min.out_of_range"),
        ({"n_min": 2**80}, "spec.n_min.out_of_range"),
        ({"n_min": 1.5}, "spec.n_min.wrong_type"),
        ({"n_min": "2"}, "spec.n_min.wrong_type"),
        ({"n_min": True}, "spec.n_min.wrong_type"),
        ({"n_min": 5, "n_max": 3}, "spec.n_min.above_n_max"),
        ({"weight": 0}, "spec.weight.out_of_range"),
        ({"weight": -1}, "spec.weight.out_of_range"),
        ({"weight": nan}, "spec.weight.out_of_range"),
        ({"weight": inf}, "spec.weight.out_of_range"),
        ({"weight": "heavy"}, "spec.weight.wrong_type"),
        ({"require": 7}, "spec.require.wrong_type"),
        ({"require": "a" * 1025}, "spec.require.out_of_range"),
        (
            {"require": "gpu_type = 'h100'"},
            "spec.require.malformed",
        ),
        ({"require": "a == 'b\0'"}, "spec.require.malformed"),
        ({"require": "a == '\ud800'"}, "spec.require.malformed"),
        ({"placement": "near"}, "spec.placement.not_a_choice"),
        ({"placement": None}, "spec.placement.wrong_type"),
        ({"steps": -1}, "spec.steps.out_of_range"),
        ({"steps": 2**70}, "spec.steps.out_of_range"),
        ({"speed": [2, 1.5]}, "spec.speed.wrong_type"),
        ({"batch": {"initial": 8, "least": 16, "most": 64, "per_container": 4}}, "spec.batch.initial_outside"),
        ({"batch": {"initial": 128, "least": 16, "most": 64, "per_container": 4}}, "spec.batch.initial_outside"),
        ({"batch": {"initial": 0, "least": 0, "most": 64, "per_container": 4}}, "spec.batch.initial.out_of_range"),
        ({"speed": [[2]]}, "spec.speed.out_of_range"),
        ({"speed": [[0, 1.5]]}, "spec.speed.out_of_range"),
        ({"speed": [[1, 0]]}, "spec.speed.out_of_range"),
        ({"speed": [[1, nan]]}, "spec.speed.out_of_range"),
        ({"speed": [[1, inf]]}, "spec.speed.out_of_range"),
        ({"speed": [[1, 2], [4, 3], [4, 5]]}, "spec.speed.not_ascending"),
        ({"speed_on": {"a100": [[1, 2], [1, 3]]}}, "spec.speed.not_ascending"),
        ({"speed_on": {"a100": [[1, 0]]}}, "spec.speed_on.out_of_range"),
        ({"speed_on": {"a100": []}}, "spec.speed_on.out_of_range"),
        ({"speed_on": [[1, 2]]}, "spec.speed_on.wrong_type"),
        ({"gang": 0}, "spec.gang.out_of_range"),
        ({"gang": 1025}, "spec.gang.out_of_range"),
        ({"gang": "4"}, "spec.gang.wrong_type"),
        ({"gang": 4, "n_min": 6}, "spec.n_min.splits_gang"),
        ({"gang": 4, "n_min": 3, "n_max": 8}, "spec.n_min.splits_gang"),
        ({"gang": 4, "n_min": 4, "n_max": 9}, "spec.n_max.splits_gang"),
        ({"gang": 4, "n_max": 2}, "spec.n_max.splits_gang"),
        ({"gang": 4, "n_min": 8, "n_max": 4}, "spec.n_min.above_n_max"),
        ({"engine": "spark"}, "spec.engine.not_a_choice"),
        ({"engine_options": {"server": 1}}, "spec.engine_options.unknown_field"),
        ({"engine_options": {"processes": 0}}, "spec.engine_options.processes.out_of_range"),
        ({"engine_options": {"rendezvous": "etcd"}}, "spec.engine_options.rendezvous.not_a_choice"),
        ({"engine_options": {"processes": 2}}, "spec.engine_options.of_another_engine"),
        ({"engine": "torchrun", "command": ["torchrun", "train.py"]}, "spec.command.launches_twice"),
        ({"engine": "torchrun", "command": ["nice", "/usr/bin/torchrun", "train.py"]}, "spec.command.launches_twice"),
        (
            {"engine": "torchrun", "resume": ["python3", "-m", "torch.distributed.run", "x.py"]},
            "spec.command.launches_twice",
        ),
        (
            {"engine": "torchrun", "command": ["bash", "-lc", "exec torchrun --nnodes 2 x.py"]},
            "spec.command.launches_twice",
        ),
        ({"engine": "mpi", "engine_options": {"servers": 1}}, "spec.engine_options.of_another_engine"),
        ({"engine": "tensorflow", "engine_options": {"scheduler": True}}, "spec.engine_options.of_another_engine"),
        ({"engine": "torchrun", "engine_options": {"restarts": 1}}, "spec.engine_options.restarts.without_c10d"),
        (
            {"engine": "ps", "n_min": 4, "engine_options": {"servers": 1, "workers_per_server": 2}},
            "spec.engine_options.servers.given_twice",
        ),
        ({"engine": "ps"}, "spec.n_min.below_roles"),
        ({"engine": "ps", "n_min": 3, "engine_options": {"servers": 3}}, "spec.n_min.below_roles"),
        ({"engine": "tensorflow", "n_min": 2, "engine_options": {"workers_per_server": 4}}, "spec.n_min.below_roles"),
        ({"image": "a\0"}, "spec.image.malformed"),
        ({"image": "a" * 513}, "spec.image.out_of_range"),
        ({"env": {"PORT": 8080}}, "spec.env.wrong_type"),
        ({"env": {"": "x"}}, "spec.env.malformed"),
        ({"env": {"A=B": "x"}}, "spec.env.malformed"),
        ({"env": {"DORM_RANK": "0"}}, "spec.env.reserved"),
        ({"env": {"A\0": "x"}}, "spec.env.malformed"),
        ({"env": {"A": "x\0"}}, "spec.env.malformed"),
        ({"env": {"A": "x" * LARGEST_ARGUMENT}}, "spec.env.too_large"),
        ({"env": {f"A{number}": "x" * 100_000 for number in range(3)}}, "spec.too_large"),
        ({"env": ["A=B"]}, "spec.env.wrong_type"),
        ({"grace": "soon"}, "spec.grace.malformed"),
        ({"grace": -1}, "spec.grace.out_of_range"),
        ({"grace": nan}, "spec.grace.out_of_range"),
        ({"grace": "9999d"}, "spec.grace.out_of_range"),
        ({"grace": 10**400}, "spec.grace.out_of_range"),
        ({"retries": {"limit": -1}}, "spec.retries.limit.out_of_range"),
        ({"retries": {"backoff": "x"}}, "spec.retries.backoff.malformed"),
        ({"retries": 3}, "spec.retries.wrong_type"),
        ({"retries": {"out_of_memory": -1}}, "spec.retries.out_of_memory.out_of_range"),
        ({"retries": {"reset": "never"}}, "spec.retries.reset.malformed"),
        (
            {"retries": {"fatal_exit_codes": [0]}},
            "spec.retries.fatal_exit_codes.out_of_range",
        ),
        ({"deadlines": {"start": "soon"}}, "spec.deadlines.start.malformed"),
        ({"deadlines": {"stop": "1m"}}, "spec.deadlines.unknown_field"),
        ({"deadlines": {"live": "0s"}}, "spec.deadlines.live.zero"),
        ({"deadlines": {"live": ""}}, "spec.deadlines.live.malformed"),
        ({"elastic": "often"}, "spec.elastic.not_a_choice"),
        ({"user": "a b"}, "spec.user.malformed"),
        ({"user": "a\n"}, "spec.user.malformed"),
        ({"labels": {"": "x"}}, "spec.labels.malformed"),
        ({"labels": {"a": "\0"}}, "spec.labels.malformed"),
        ({"labels": {"a": 1}}, "spec.labels.wrong_type"),
        ({"labels": {1: "a"}}, "spec.labels.malformed"),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, str) else "",
)
def test_bad_specs(change: dict[Any, Any], code: str) -> None:
    assert refused({**GOOD, **change}) == code


@pytest.mark.parametrize("field", ["name", "command", "demand"])
def test_required_fields(field: str) -> None:
    assert refused({key: value for key, value in GOOD.items() if key != field}) == f"spec.{field}.missing"


@pytest.mark.parametrize("document", [None, "x", [], 7, nan, b"x"])
def test_documents_that_are_not_specs_are_refused(document: object) -> None:
    assert refused(document) == "spec.not_a_map"


def test_n_max_follows_n_min() -> None:
    assert (check_spec(GOOD).n_min, check_spec(GOOD).n_max) == (1, 1)
    for document in ({**GOOD, "n_min": 4}, msgspec.to_builtins(check_spec({**GOOD, "n_min": 4}))):
        spec = check_spec(document)
        assert (spec.n_min, spec.n_max) == (4, 4)
    assert refused({**GOOD, "n_min": 4, "n_max": 1}) == "spec.n_min.above_n_max"


def test_n_min_follows_gang() -> None:
    for document in ({**GOOD, "gang": 8}, msgspec.to_builtins(check_spec({**GOOD, "gang": 8}))):
        assert (check_spec(document).n_min, check_spec(document).n_max) == (8, 8)
    spec = check_spec({**GOOD, "gang": 8, "n_max": 24})
    assert (spec.n_min, spec.n_max) == (8, 24)


def test_a_full_spec() -> None:
    spec = check_spec(FULL)
    assert spec.resources() == {"cpu": 500, "memory": 2**30}
    assert spec.grace_s == 30.0
    assert spec.retries.longest == "1h"
    assert (spec.require, spec.placement, spec.gang) == (FULL["require"], "pack", 2)
    assert (spec.steps, spec.speed) == (20_000, [(2, 1.5), (8, 4.0)])
    assert spec.speed_on == {"a100": [(2, 3.0), (8, 9.5)]}
    assert check_spec({**FULL, "placement": "", "require": ""}).placement == ""


def test_omitted_fields_are_not_encoded() -> None:
    """Specs of before a field came are the same bytes as ever."""
    assert set(msgspec.to_builtins(check_spec(GOOD))) == set(GOOD)


def test_a_script_may_be_called_and_given_anything() -> None:
    for command in (["python3", "torchrun.py"], ["python3", "train.py", "torchrun"], ["./train", "-m", "bert"]):
        assert check_spec({**GOOD, "engine": "torchrun", "command": command}).command == command
    assert check_spec({**GOOD, "command": ["torchrun", "train.py"]}).engine == "plain"


@settings(max_examples=tries(13, 2000), deadline=None)
@given(PLAIN)
def test_any_document_is_taken_or_refused_in_one_line(document: Any) -> None:
    for value in (document, {**GOOD, "labels": document}, {**GOOD, "demand": document}, {**GOOD, "retries": document}):
        try:
            check_spec(value)
        except SpecError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


@settings(max_examples=tries(6, 1000), deadline=None)
@given(specs())
def test_a_checked_spec_is_taken_again(spec: AppSpec) -> None:
    """What the master accepted passes the same gate on its way back, in both encodings."""
    try:
        checked = check_spec(msgspec.to_builtins(spec))
    except SpecError:
        return
    assert check_spec(msgspec.msgpack.decode(msgspec.msgpack.encode(checked))) == checked
    assert check_spec(msgspec.json.decode(msgspec.json.encode(checked))) == checked


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(spec_schema())


def complaints(document: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(spec_schema()).iter_errors(document)]


def test_the_sample_specs_are_valid() -> None:
    assert len(SAMPLES) >= 3
    for path in SAMPLES:
        sample = yaml.safe_load(path.read_text())
        assert complaints(sample) == []
        check_spec(sample)
    assert complaints(GOOD) == complaints(FULL) == []


@settings(max_examples=tries(19, 3000), deadline=None)
@given(st.data())
def test_documents_that_the_schema_refuses_are_refused(data: st.DataObject) -> None:
    document = copy.deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*FULL, "other"]))
        value = document.get(key)
        if isinstance(value, dict) and value and data.draw(st.booleans()):
            value[data.draw(st.sampled_from([*value, "other", ""]))] = data.draw(PLAIN)
        elif data.draw(st.booleans()):
            document[key] = data.draw(PLAIN)
        else:
            document.pop(key, None)
    if complaints(document):
        refused(document)


@settings(max_examples=tries(13, 2000), deadline=None)
@given(st.integers(0, LARGEST // 1000))
def test_whole_quantities_are_exact(amount: int) -> None:
    assert resource("memory", amount) == resource("memory", str(amount)) == amount
    assert resource("cpu", amount) == amount * 1000
    assert resource("cpu", f"{amount}m") == amount


@pytest.mark.parametrize(
    ("name", "quantity", "amount"),
    [
        ("cpu", 0.1, 100),
        ("cpu", "0.1", 100),
        ("cpu", "1.5", 1500),
        ("cpu", 0.0001, 1),
        ("cpu", 1e-12, 0),
        ("cpu", "0.5m", 1),
        ("memory", "1.5GiB", 3 * 2**29),
        ("memory", "1Gi", 2**30),
        ("memory", "1G", 10**9),
        ("memory", " 512 MiB ", 2**29),
        ("memory", "1.1GiB", 1181116007),
        ("gpu", 0.5, 1),
        ("gpu", "2", 2),
        ("licences", 3, 3),
        ("memory", LARGEST, LARGEST),
    ],
)
def test_quantities(name: str, quantity: float | str, amount: int) -> None:
    assert resource(name, quantity) == amount


def test_resources_are_sorted_and_without_zeros() -> None:
    assert list(resources({"memory": "1GiB", "cpu": 1, "gpu": 0}).items()) == [("cpu", 1000), ("memory", 2**30)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), (7, 7), ("7", 7)]
)
def test_durations(text: float | str, seconds: float) -> None:
    assert duration(text) == seconds


def test_amounts_for_people() -> None:
    assert [humanize("cpu", 1000), humanize("cpu", 1500), humanize("memory", 2**31), humanize("gpu", 3)] == [
        "1 core",
        "1.5 cores",
        "2 GiB",
        "3 gpu",
    ]


@pytest.mark.parametrize("document", [GOOD, FULL, {**GOOD, "retries": {"limit": 1}, "grace": "3s"}])
def test_a_document_of_a_spec_is_the_same_in_every_process(document: dict[str, Any]) -> None:
    spec = check_spec(document)
    sent = pickle.loads(pickle.dumps(spec))
    assert document_of(sent) == document_of(spec)
    assert msgspec.json.encode(document_of(spec), order="sorted") == msgspec.json.encode(spec, order="sorted")
    assert check_spec(document_of(sent)) == spec


def test_the_log_holds_the_checked_spec() -> None:
    """It only has another class, so code that uses it knows that it was checked; the log does not show it."""
    checked = check_spec(FULL)
    stored = msgspec.convert(FULL, AppSpec)
    assert isinstance(checked, CheckedSpec)
    assert not isinstance(stored, CheckedSpec)
    assert msgspec.msgpack.encode(checked) == msgspec.msgpack.encode(stored)
    assert document_of(checked) == document_of(stored)
    assert checked.stored() == stored
