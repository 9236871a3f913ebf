"""Two facts compared: where they differ, how it is shown, and how much of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from replay.audit.differences import MOST, Difference, differences


class Inner(msgspec.Struct):
    size: int


class Outer(msgspec.Struct):
    name: str
    inner: Inner
    by_node: dict[str, int] = {}


@pytest.mark.parametrize(
    ("recorded", "again", "found"),
    [
        (1, 1, []),
        (1, 2, [("", "1", "2")]),
        (1, 1.0, [("", "1", "1.0")]),
        (1, True, [("", "1", "True")]),
        ("a", "b", [("", "'a'", "'b'")]),
        ([1, 2], [1, 3], [("[1]", "2", "3")]),
        ([1], [1, 2], [("[1]", "nothing", "2")]),
        ((1, 2), (1,), [("[1]", "2", "nothing")]),
        ([1], (1,), [("", "[1]", "(1,)")]),
        ({"a": 1}, {"a": 1}, []),
        ({"b": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}, [("['a']", "nothing", "1"), ("['b']", "1", "2")]),
        ({"a": None}, {}, [("['a']", "None", "nothing")]),
        (Outer("x", Inner(1)), Outer("x", Inner(1)), []),
        (
            Outer("x", Inner(1), {"n1": 1}),
            Outer("y", Inner(2), {"n1": 2}),
            [("name", "'x'", "'y'"), ("inner.size", "1", "2"), ("by_node['n1']", "1", "2")],
        ),
    ],
)
def test_each_place_in_the_order_of_the_fields(recorded: Any, again: Any, found: list[tuple[str, str, str]]) -> None:
    assert differences(recorded, again) == [Difference(*one) for one in found]


def test_a_path_continues_from_its_start() -> None:
    assert [one.path for one in differences(Inner(1), Inner(2), "events[3]")] == ["events[3].size"]
    assert [one.path for one in differences({"a": [1]}, {"a": [2]}, "at")] == ["at['a'][0]"]


def test_the_number_of_differences_is_limited() -> None:
    found = differences(list(range(100)), list(range(1, 101)))
    assert [one.path for one in found] == [f"[{index}]" for index in range(MOST)]


def test_a_long_value_is_cut() -> None:
    (found,) = differences("x" * 198, "x" * 199)
    assert found.recorded == "'" + "x" * 198 + "'"
    assert found.again == "'" + "x" * 198 + "…"
