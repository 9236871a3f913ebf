"""The group of an app in its spec."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.spec import AppSpec, SpecError, check_spec, document_of
from tests.core.records import document
from tests.errors import raises

GROUP = {
    "name": "lr",
    "run": "0a1b",
    "index": 3,
    "count": 8,
    "parallel": 2,
    "parameters": {"lr": 0.01, "fast": True, "Of": "x y"},
}


def test_its_variables_are_in_the_environment_that_the_log_has() -> None:
    spec = check_spec(document("lr-0003", group=GROUP, env={"HOME": "/root"}))
    assert spec.env == {
        "HOME": "/root", "DORM_SWEEP": "lr", "DORM_ARRAY_INDEX": "3", "DORM_ARRAY_COUNT": "8", "DORM_PARAM_LR": "0.01",
        "DORM_PARAM_FAST": "true", "DORM_PARAM_OF": "x y",
    }  # fmt: skip
    # A master checks again what a client has checked, and a log gives back what was accepted.
    assert check_spec(msgspec.to_builtins(spec)) == spec
    assert check_spec(document_of(spec)) == spec
    assert msgspec.convert(msgspec.to_builtins(spec.stored()), AppSpec) == spec.stored()


def test_a_spec_without_a_group_is_unchanged() -> None:
    assert b"group" not in msgspec.msgpack.encode(check_spec(document("app")))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": {}}, "spec.group.name.missing"),
        ({"group": {"name": "LR"}}, "spec.group.name.malformed"),
        ({"group": {"name": "x" * 43}}, "spec.group.name.malformed"),
        ({"group": {"name": "lr\n"}}, "spec.group.name.malformed"),
        ({"group": {"name": "lr", "index": 1}}, "spec.group.index_beyond"),
        ({"group": {"name": "lr", "parallel": -1}}, "spec.group.parallel.out_of_range"),
        ({"group": {"name": "lr", "of": 2}}, "spec.group.unknown_field"),
        ({"group": {"name": "lr", "parameters": {"a-b": 1}}}, "spec.group.parameters.malformed"),
        ({"group": {"name": "lr", "parameters": {"lr": 1, "LR": 2}}}, "spec.group.parameters.ambiguous"),
        ({"group": {"name": "lr", "parameters": {"lr": float("nan")}}}, "spec.group.parameters.malformed"),
        ({"group": {"name": "lr", "parameters": {"lr": "\x00"}}}, "spec.group.parameters.malformed"),
        ({"group": {"name": "lr", "parameters": {"lr": "\ud800"}}}, "spec.group.parameters.malformed"),
        ({"group": {"name": "lr", "parameters": {"lr": 2**70}}}, "spec.group.parameters.out_of_range"),
        ({"group": {"name": "lr", "parameters": {"lr": [1]}}}, "spec.group.parameters.wrong_type"),
        ({"group": {"name": "lr", "parameters": {"token": "abcdef0123456789"}}}, "spec.env.secret"),
        ({"group": {"name": "lr"}, "env": {"DORM_ARRAY_INDEX": "1"}}, "spec.env.reserved"),
        ({"env": {"DORM_ARRAY_INDEX": "0"}}, "spec.env.reserved"),
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any], code: str) -> None:
    with raises(SpecError, code):
        check_spec(document("app", **fields))
