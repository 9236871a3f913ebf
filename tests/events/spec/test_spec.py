"""Specs: what is taken, and what is refused with which words."""

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
    "engine": "torchrun",
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
    with pytest.raises(SpecError) as error:
        check_spec(document)
    message = str(error.value)
    assert "\n" not in message
    assert message
    assert len(message) <= 600
    return message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nmax": 3}, "nmax: unknown field; did you mean n_max?"),
        ({"x y": 3}, "'x y': unknown field; the fields are name, command, demand, n_min,"),
        ({7: 3}, "7: unknown field"),
        ({10**5000: 3}, "a huge number: unknown field"),
        ({"retries": {"limits": 3}}, "retries.limits: unknown field; did you mean limit?"),
        ({"name": ""}, "name: expected lower-case letters, digits and dashes, at most 48, got ''"),
        ({"name": "Digits"}, "name: expected lower-case letters, digits and dashes, at most 48, got 'Digits'"),
        ({"name": "a" * 49}, "name: expected lower-case letters"),
        ({"name": "a" * 10**6}, "name: expected lower-case letters"),
        ({"name": "digits\n"}, r"name: 'digits\n' can't hold a line end"),
        ({"name": 7}, "name: expected text, got 7"),
        ({"name": None}, "name: expected text, got nothing"),
        ({"command": "python train.py"}, "command: expected a list, got 'python train.py'"),
        ({"command": []}, "command: expected a list of at least 1 entry, got an empty list"),
        ({"command": [""]}, "command: the program's name is empty"),
        ({"command": ["a", 7]}, "command[1]: expected text, got 7"),
        ({"command": ["a", "b\0"]}, "command[1]: can't hold a NUL character"),
        ({"command": ["a", "\ud800"]}, "command[1]: is not valid Unicode text"),
        ({"command": ["a"] * 1001}, "command: expected a list of at most 1000 entries, got a list"),
        ({"command": ["a", "x" * (LARGEST_ARGUMENT + 1)]}, "command[1]: 131,072 bytes are more than a process can be"),
        ({"resume": [" "]}, "resume: the program's name is empty"),
        ({"checkpoint": ["a\0"]}, "checkpoint[0]: can't hold a NUL character"),
        ({"demand": {}}, "demand: expected a map of at least 1 entry, got an empty map"),
        ({"demand": {"cpu": 0}}, "demand: at least one resource must be more than 0"),
        ({"demand": {"cpu": -1}}, "demand.cpu: expected a quantity of at least 0, got -1"),
        ({"demand": {"cpu": "-1"}}, "demand.cpu: '-1' is not a quantity; write 2, 0.5 or 500m"),
        ({"demand": {"cpu": nan}}, "demand.cpu: expected a quantity of at least 0, got nan"),
        ({"demand": {"cpu": inf}}, "demand.cpu: inf is more than any cluster has"),
        ({"demand": {"cpu": 10**400}}, "demand.cpu: a huge number is more than any cluster has"),
        ({"demand": {"cpu": 1e300}}, "demand.cpu: 1e+300 is more than any cluster has"),
        ({"demand": {"cpu": "2 cores"}}, "demand.cpu: '2 cores' is not a quantity; write 2, 0.5 or 500m"),
        ({"demand": {"cpu": "2GiB"}}, "demand.cpu: '2GiB' is not a number of cores; write 2, 0.5 or 500m"),
        ({"demand": {"cpu": "٣"}}, "demand.cpu: '٣' is not a quantity"),
        ({"demand": {"memory": "1XB"}}, "demand.memory: '1XB' has an unknown unit; write 512MiB or 2GiB"),
        ({"demand": {"memory": "9" * 10**6}}, "demand.memory: '9999"),
        (
            {"demand": {"cpu": 1, "gpu": True}},
            "demand.gpu: expected a quantity (a number, or text like 500m or 2GiB), got",
        ),
        ({"demand": {"cpu": 1, "gpu": None}}, "demand.gpu: expected a quantity"),
        ({"demand": {"": 1}}, "demand: '' is not a resource name (letters, digits"),
        ({"demand": {"c\0": 1}}, r"demand: 'c\x00' is not a resource name"),
        ({"demand": {"cpu\n": 1}}, r"demand: 'cpu\n' can't hold a line end"),
        (
            {"demand": {f"r{number}": 1 for number in range(33)}},
            "demand: expected a map of at most 32 entries, got a map",
        ),
        ({"demand": [1]}, "demand: expected a map, got a list"),
        ({"n_min": 0}, "n_min: expected an integer of at least 1, got 0"),
        ({"n_min": -3}, "n_min: expected an integer of at least 1, got -3"),
        ({"n_min": 100_001}, "n_min: expected an integer of at most 100000, got 100001"),
        ({"n_min": 2**80}, "n_min: expected an integer of at most 100000, got"),
        ({"n_min": 1.5}, "n_min: expected an integer, got 1.5"),
        ({"n_min": "2"}, "n_min: expected an integer, got '2'"),
        ({"n_min": True}, "n_min: expected an integer, got True"),
        ({"n_min": 5, "n_max": 3}, "n_min: 5 is more than n_max, which is 3"),
        ({"weight": 0}, "weight: expected a number of at least 0.001, got 0"),
        ({"weight": -1}, "weight: expected a number of at least 0.001, got -1"),
        ({"weight": nan}, "weight: expected a number of at least 0.001, got nan"),
        ({"weight": inf}, "weight: expected a number of at most 1000"),
        ({"weight": "heavy"}, "weight: expected a number, got 'heavy'"),
        ({"require": 7}, "require: expected text, got 7"),
        ({"require": "a" * 1025}, "require: expected text of at most 1024 characters, got 'aaa"),
        (
            {"require": "gpu_type = 'h100'"},
            'require: expected "==", "!=", "in" or "not in" at character 10, got \'=\'; write ==',
        ),
        ({"require": "a == 'b\0'"}, r"require: the text at character 6 can't hold '\x00'"),
        ({"require": "a == '\ud800'"}, r"require: the text at character 6 can't hold '\ud800'"),
        ({"placement": "near"}, "placement: expected spread or pack, got 'near'"),
        ({"placement": None}, "placement: expected text, got nothing"),
        ({"steps": -1}, "steps: expected an integer of at least 0, got -1"),
        ({"steps": 2**70}, "steps: expected an integer of at most 1000000000000000, got"),
        ({"speed": [2, 1.5]}, "speed[0]: expected a list, got 2"),
        ({"speed": [[2]]}, "speed[0]: expected a list of 2 entries, got a list"),
        ({"speed": [[0, 1.5]]}, "speed[0][0]: expected an integer of at least 1, got 0"),
        ({"speed": [[1, 0]]}, "speed[0][1]: expected a number of at least 1e-09, got 0"),
        ({"speed": [[1, nan]]}, "speed[0][1]: expected a number of at least 1e-09, got nan"),
        ({"speed": [[1, inf]]}, "speed[0][1]: expected a number of at most 1000000000000.0, got inf"),
        ({"speed": [[1, 2], [4, 3], [4, 5]]}, "speed[2]: 4 containers come after 4; list each count once, ascending"),
        ({"gang": 0}, "gang: expected an integer of at least 1, got 0"),
        ({"gang": 1025}, "gang: expected an integer of at most 1024, got 1025"),
        ({"gang": "4"}, "gang: expected an integer, got '4'"),
        ({"gang": 4, "n_min": 6}, "n_min: 6 is not a multiple of gang, which is 4; write 4 or 8"),
        ({"gang": 4, "n_min": 3, "n_max": 8}, "n_min: 3 is not a multiple of gang, which is 4; write 4"),
        ({"gang": 4, "n_min": 4, "n_max": 9}, "n_max: 9 is not a multiple of gang, which is 4; write 8 or 12"),
        ({"gang": 4, "n_max": 2}, "n_max: 2 is not a multiple of gang, which is 4; write 4"),
        ({"gang": 4, "n_min": 8, "n_max": 4}, "n_min: 8 is more than n_max, which is 4"),
        ({"engine": "spark"}, "engine: expected plain or torchrun, got 'spark'"),
        ({"image": "a\0"}, "image: can't hold a NUL character"),
        ({"image": "a" * 513}, "image: expected text of at most 512 characters, got 'aaa"),
        ({"env": {"PORT": 8080}}, "env.PORT: expected text, got 8080"),
        ({"env": {"": "x"}}, "env: '' can't be the name of a variable"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' can't be the name of a variable"),
        ({"env": {"DORM_RANK": "0"}}, "env.DORM_RANK: names that begin with DORM_ are Dorm's own"),
        ({"env": {"A\0": "x"}}, "env: can't hold a NUL character"),
        ({"env": {"A": "x\0"}}, "env.A: can't hold a NUL character"),
        ({"env": {"A": "x" * LARGEST_ARGUMENT}}, "env.A: 131,073 bytes are more than a process can be given"),
        ({"env": {f"A{number}": "x" * 100_000 for number in range(3)}}, "the spec has 300,"),
        ({"env": ["A=B"]}, "env: expected a map, got a list"),
        ({"grace": "soon"}, "grace: 'soon' is not a duration; write 10s, 500ms, 2m or 1h"),
        ({"grace": -1}, "grace: -1 is not a duration between 0 and a year"),
        ({"grace": nan}, "grace: nan is not a duration between 0 and a year"),
        ({"grace": "9999d"}, "grace: '9999d' is not a duration between 0 and a year"),
        ({"grace": 10**400}, "grace: a huge number is not a duration between 0 and a year"),
        ({"retries": {"limit": -1}}, "retries.limit: expected an integer of at least 0, got -1"),
        ({"retries": {"backoff": "x"}}, "retries.backoff: 'x' is not a duration"),
        ({"retries": 3}, "retries: expected a map, got 3"),
        ({"retries": {"out_of_memory": -1}}, "retries.out_of_memory: expected an integer of at least 0, got -1"),
        ({"retries": {"reset": "never"}}, "retries.reset: 'never' is not a duration"),
        (
            {"retries": {"fatal_exit_codes": [0]}},
            "retries.fatal_exit_codes[0]: expected an integer of at least 1, got 0",
        ),
        ({"deadlines": {"start": "soon"}}, "deadlines.start: 'soon' is not a duration"),
        ({"deadlines": {"stop": "1m"}}, "deadlines.stop: unknown field; the fields are start, progress"),
        ({"user": "a b"}, "user: expected letters, digits and _ @ + -, at most 64, got 'a b'"),
        ({"user": "a\n"}, r"user: 'a\n' can't hold a line end"),
        ({"labels": {"": "x"}}, "labels: a label's name is empty"),
        ({"labels": {"a": "\0"}}, "labels.a: can't hold a NUL character"),
        ({"labels": {"a": 1}}, "labels.a: expected text, got 1"),
        ({"labels": {1: "a"}}, "labels: 1 is not a name"),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, str) else "",
)
def test_bad_specs(change: dict[Any, Any], message: str) -> None:
    assert refused({**GOOD, **change}).startswith(message)


@pytest.mark.parametrize("field", ["name", "command", "demand"])
def test_what_every_spec_needs(field: str) -> None:
    assert refused({key: value for key, value in GOOD.items() if key != field}) == f"{field}: missing"


@pytest.mark.parametrize(
    ("document", "what"),
    [(None, "nothing"), ("x", "text"), ([], "a list"), (7, "a number"), (nan, "a number"), (b"x", "bytes")],
)
def test_what_is_no_spec_at_all(document: object, what: str) -> None:
    assert refused(document) == f"a spec is a map with name, command and demand, not {what}"


def test_n_max_follows_n_min() -> None:
    assert (check_spec(GOOD).n_min, check_spec(GOOD).n_max) == (1, 1)
    for document in ({**GOOD, "n_min": 4}, msgspec.to_builtins(check_spec({**GOOD, "n_min": 4}))):
        spec = check_spec(document)
        assert (spec.n_min, spec.n_max) == (4, 4)
    assert refused({**GOOD, "n_min": 4, "n_max": 1}) == "n_min: 4 is more than n_max, which is 1"


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
    assert check_spec({**FULL, "placement": "", "require": ""}).placement == ""


def test_what_is_left_out_is_not_encoded() -> None:
    """Specs of before a field came are the same bytes as ever."""
    assert set(msgspec.to_builtins(check_spec(GOOD))) == set(GOOD)


@settings(max_examples=tries(100, 2000), deadline=None)
@given(PLAIN)
def test_any_document_is_taken_or_refused_in_one_line(document: Any) -> None:
    for value in (document, {**GOOD, "labels": document}, {**GOOD, "demand": document}, {**GOOD, "retries": document}):
        try:
            check_spec(value)
        except SpecError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


@settings(max_examples=tries(50, 1000), deadline=None)
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


@settings(max_examples=tries(150, 3000), deadline=None)
@given(st.data())
def test_what_the_schema_refuses_is_refused(data: st.DataObject) -> None:
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


@settings(max_examples=tries(100, 2000), deadline=None)
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


def test_a_checked_spec_is_what_the_log_holds() -> None:
    """Only its class is another, so what was checked is known where it is used, and nothing of it reaches the log."""
    checked = check_spec(FULL)
    stored = msgspec.convert(FULL, AppSpec)
    assert isinstance(checked, CheckedSpec)
    assert not isinstance(stored, CheckedSpec)
    assert msgspec.msgpack.encode(checked) == msgspec.msgpack.encode(stored)
    assert document_of(checked) == document_of(stored)
    assert checked.stored() == stored
