"""One document as the specs of many apps."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.spec import SpecError
from events.spec.sweeps import expanded, is_sweep
from tests.core.records import document
from tests.errors import raises


def rows(**fields: Any) -> list[dict[str, Any]]:
    return [spec.group.parameters for spec in expanded(document("lr", **fields)).specs if spec.group is not None]


def test_an_array_has_indexes() -> None:
    sweep = expanded(document("lr", array=3, parallel=2, env={"OF": "{index}"}))
    assert [spec.name for spec in sweep.specs] == ["lr-0000", "lr-0001", "lr-0002"]
    assert [spec.env["DORM_ARRAY_INDEX"] for spec in sweep.specs] == ["0", "1", "2"]
    assert [spec.env["OF"] for spec in sweep.specs] == ["0", "1", "2"]
    assert {(spec.group.count, spec.group.parallel, spec.group.run) for spec in sweep.specs if spec.group} == {
        (3, 2, sweep.digest)
    }


def test_a_grid_combines_all_values_and_a_list_pairs_them() -> None:
    assert rows(sweep={"lr": [0.1, 0.01], "seed": {"range": 2}}) == [
        {"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}, {"lr": 0.01, "seed": 0}, {"lr": 0.01, "seed": 1},
    ]  # fmt: skip
    assert rows(sweep={"lr": [0.1, 0.01], "seed": {"range": [4, 0, -2]}}, mode="list") == [
        {"lr": 0.1, "seed": 4}, {"lr": 0.01, "seed": 2},
    ]  # fmt: skip
    assert rows(sweep=[{"lr": 1}, {"lr": 2, "wd": True}]) == [{"lr": 1}, {"lr": 2, "wd": True}]
    assert rows(sweep={"data": "small"}) == [{"data": "small"}]


def test_parameters_are_placed_in_commands_and_variables() -> None:
    sweep = expanded(
        document(
            "lr",
            command=["sh", "-c", "echo ${HOME} {{lr}} {lr}/{index} {} {a: b}"],
            resume=["again", "{lr}"],
            env={"OUT": "/out/{lr}"},
            labels={"fast": "{fast}"},
            sweep={"lr": [0.001], "fast": [False]},
        )
    )
    (spec,) = sweep.specs
    assert spec.command[2] == "echo ${HOME} {lr} 0.001/0 {} {a: b}"
    assert (spec.resume, spec.env["OUT"], spec.labels) == (["again", "0.001"], "/out/0.001", {"fast": "false"})


def test_the_same_document_is_the_same_sweep() -> None:
    one = expanded(document("lr", array=3))
    assert expanded({**document("lr"), "array": 3}) == one
    others = [document("lr", array=4), document("lr", array=3, weight=2), document("rl", array=3)]
    assert len({one.digest, *(expanded(other).digest for other in others)}) == 4
    documents: list[object] = [document(), document(array=1), document(parallel=2), []]
    assert [is_sweep(each) for each in documents] == [False, True, True, False]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"array": 1001}, "sweep.too_many"),
        ({"array": 10**30}, "sweep.too_many"),
        ({"array": 1000, "command": ["x", "{index}" + "a" * 100_000]}, "sweep.too_large"),
        ({"sweep": {name: {"range": 10} for name in "abcdef"}}, "sweep.too_many"),
        ({"sweep": {f"p{number}": {"range": 2**50} for number in range(60)}}, "sweep.too_many"),
        ({"sweep": {"a": {"range": 2**52}}, "mode": "list"}, "sweep.too_many"),
        ({"array": 0}, "sweep.array.out_of_range"),
        ({"array": True}, "sweep.array.out_of_range"),
        ({"array": 2, "sweep": {"a": [1]}}, "sweep.array.and_sweep"),
        ({"sweep": {}}, "sweep.parameters.missing"),
        ({"sweep": []}, "sweep.parameters.missing"),
        ({"sweep": 5}, "sweep.parameters.missing"),
        ({"sweep": {"a": []}}, "sweep.values.missing"),
        ({"sweep": {"a": {"range": 0}}}, "sweep.values.missing"),
        ({"sweep": {"a": {"range": "5"}}}, "sweep.range.malformed"),
        ({"sweep": {"a": {"range": [0, 5, 0]}}}, "sweep.range.malformed"),
        ({"sweep": {"a": {"from": 5}}}, "sweep.range.malformed"),
        ({"sweep": {"a": [[1]]}}, "sweep.values.malformed"),
        ({"sweep": [1]}, "sweep.values.malformed"),
        ({"sweep": {"a b": [1]}}, "sweep.parameter.malformed"),
        ({"sweep": {"a": [1, 2], "b": [1]}, "mode": "list"}, "sweep.list.lengths_differ"),
        ({"sweep": {"a": [1]}, "mode": "random"}, "sweep.mode.not_a_choice"),
        ({"array": 2, "parallel": -1}, "sweep.parallel.out_of_range"),
        ({"array": 2, "parallel": "2"}, "sweep.parallel.out_of_range"),
        ({"array": 2, "group": {"name": "x"}}, "sweep.group"),
        ({"array": 2, "command": ["train", "{lr}"]}, "sweep.placeholder.unknown"),
        ({"array": 2, "env": {1: 2, "b": 3}}, "sweep.malformed"),
        ({"array": 2, "name": "x" * 43}, "sweep.name.malformed"),
        ({"array": 2, "name": None}, "sweep.name.malformed"),
        ({"array": 2, "n_min": 0}, "spec.n_min.out_of_range"),
        ({"sweep": {"a": [1], "A": [2]}}, "spec.group.parameters.ambiguous"),
    ],
)
def test_nonsense_is_refused_at_once(fields: dict[str, Any], code: str) -> None:
    began = time.process_time()
    with raises(SpecError, code):
        expanded({**document("lr"), **fields})
    assert time.process_time() - began < 1.0, "before anything is made"


def test_a_raised_limit_allows_more_apps() -> None:
    assert len(expanded(document("lr", array=1200), most=1200).specs) == 1200


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1
    )
)
def test_a_grid_has_one_app_for_each_combination(values: dict[str, list[int]]) -> None:
    found = rows(sweep=values)
    expected = 1
    for one in values.values():
        expected *= len(one)
    assert len(found) == expected
    assert all(row[name] in values[name] for row in found for name in values)
    assert {tuple(row.values()) for row in found} == {tuple(row.values()) for row in rows(sweep=values)}


def test_a_value_that_is_listed_twice_is_refused_unless_lists_are_paired() -> None:
    for values in ([1, 1], ["0.1", 0.1], ["a", "b", "a"]):
        with raises(SpecError, "sweep.values.repeated"):
            rows(sweep={"p": values})
    assert rows(sweep={"p": [1, 1], "q": [1, 2]}, mode="list") == [{"p": 1, "q": 1}, {"p": 1, "q": 2}]
    assert rows(sweep={"p": [0.1, "0.10"]}) == [{"p": 0.1}, {"p": "0.10"}]


def test_what_is_wrong_with_the_apps_is_said_with_what_is_wrong_with_the_sweep() -> None:
    for fields, code in (
        ({"sweep": {"weight-decay": [1]}}, "sweep.parameter.malformed"),
        ({"sweep": {"p": {"range": [0, 1, 0.5]}}}, "sweep.range.malformed"),
        ({"sweep": {"p": [1]}, "command": ["run", "{q}"]}, "sweep.placeholder.unknown"),
    ):
        with raises(SpecError, code) as caught:
            expanded({**document("lr"), **fields, "colour": 1, "n_max": "x"})
        assert [one.code for one in caught.value.others] == ["spec.unknown_field", "spec.n_max.wrong_type"]
