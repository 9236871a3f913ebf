"""What people type in YAML, TOML and JSON, and what arrives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dorm.local.spec_files import SPEC
from events import documents
from events.documents import ANY, read, read_json, shape_of
from events.spec import SpecError
from events.spec.groups import as_text, number, setting
from tests.errors import raises

TYPED = (
    "008", "010", "1:10", "4:1", "True", "false", "no", "on", "Y", "1_000", ".5", "-.5", "+1", "0.10", "1.0e-5", "1e5", "1e-4",
    "null", "None", "~", "0x10", "0b11", "0o17", "2024-01-01", "2024-01-01T10:00:00Z", "12:30:00", "123456789012345678901",
    "1e400", ".inf", "nan", "-0", "3.10", "=", "<<", "v1..v3", "../a.csv",
)  # fmt: skip
"""Texts that readers of YAML take for something else, or might."""
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)


class Inner(msgspec.Struct):
    flag: bool = False
    size: int | str = 0


class Outer(msgspec.Struct):
    inner: Inner
    names: list[str] = []
    any: dict[str, Any] = {}


def arrived(text: str, *, toml: bool = False) -> Any:
    return read(text, SPEC, toml=toml).value


@pytest.mark.parametrize("word", TYPED)
def test_a_text_without_quotes_is_as_it_is_typed(word: str) -> None:
    flow, block = f"command: [run, {word}]\nenv: {{X: {word}}}", f"command:\n- run\n- {word}\nlabels:\n  X: {word}\n"
    assert arrived(flow) == {"command": ["run", word], "env": {"X": word}}
    assert arrived(block) == {"command": ["run", word], "labels": {"X": word}}
    swept = arrived(f"sweep: {{p: [{word}, 'a']}}")["sweep"]["p"]
    assert [as_text(one) for one in swept] == [word, "a"]
    assert as_text(arrived(f"sweep:\n- p: {word}\n")["sweep"][0]["p"]) == word


@pytest.mark.parametrize(
    "word",
    [
        "1_000",
        "+1",
        "0.10",
        "1.0e-5",
        "1e5",
        "0x10",
        "true",
        "inf",
        "2024-01-01",
        "12:30:00",
        "2024-01-01 10:00:00Z",
        "3.10",
    ],
)
def test_toml_keeps_the_text_too(word: str) -> None:
    text = f"command = ['run', {word}]\nsweep.p = [{word}, 'a']\n[env]\nX = {word} # and why\n"
    found = arrived(text, toml=True)
    assert (found["command"], found["env"]) == (["run", word], {"X": word})
    assert [as_text(one) for one in found["sweep"]["p"]] == [word, "a"]


@pytest.mark.parametrize("text", ["command = [16, 0x10]", "command = [1_0]\nn_max = 10", "sweep.p = [[64, 64], [128]]"])
def test_toml_refuses_what_its_reader_has_destroyed(text: str) -> None:
    with pytest.raises(SpecError, match="in quotes") as caught:
        arrived(text, toml=True)
    assert caught.value.code in ("file.value.ambiguous", "sweep.values.not_one_line")


def test_parameters_in_json_keep_the_text_of_numbers_and_texts_need_quotes() -> None:
    body = b'{"command": [50], "weight": 2.0, "sweep": {"p": [1.0, 0.10, 1e5, 12345678901234567890, true, "a"]}}'
    found = read_json(body, SPEC)
    assert [as_text(one) for one in found["sweep"]["p"]] == ["1.0", "0.10", "1e5", "12345678901234567890", "true", "a"]
    assert (found["command"], found["weight"]) == ([50], 2)
    with raises(SpecError, "sweep.values.not_one_line"):
        read_json(b'{"sweep": {"p": [[64, 64]]}}', SPEC)


def test_numbers_and_flags_are_read_where_they_belong() -> None:
    text = (
        "n_min: 1_0\nweight: 1e-4\nhold: yes\ndemand: {cpu: 2, memory: 4GiB}\ngrace: 1.5\nspeed: [[1, 2e0]]\nbatch: ~"
    )
    assert arrived(text) == {
        "n_min": 10, "weight": 1e-4, "hold": True, "demand": {"cpu": 2, "memory": "4GiB"}, "grace": 1.5, "speed": [[1, 2.0]],
        "batch": None,
    }  # fmt: skip
    assert read("{a: 1, b: x, c: off, d: 2024-01-01, e: }").value == {
        "a": 1,
        "b": "x",
        "c": False,
        "d": "2024-01-01",
        "e": None,
    }


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("name: x\nn_max: 010", "file.value.ambiguous", 2),
        ("n_max: 1:10", "file.value.ambiguous", 1),
        ("grace: 010", "file.value.ambiguous", 1),
        ("other: 017", "file.value.ambiguous", 1),
        ("name: x\n\nname: y", "file.key.repeated", 3),
        ("env: {A: 1, A: 2}", "file.key.repeated", 1),
        ("? [a, b]\n: c", "file.key.not_text", 1),
        ("<<: 3", "file.merge.not_a_map", 1),
        ('a: "\\ud800x"', "file.not_unicode", 1),
        ("hold: !!bool maybe", "file.not_yaml", 1),
        ("sweep:\n  p:\n  - [64,\n     64]", "sweep.values.not_one_line", 3),
        ("sweep:\n  p:\n  - - 64\n    - 64", "sweep.values.not_one_line", 3),
        ("sweep: {p: [[&a 64, *a]]}", "sweep.values.not_one_line", 1),
    ],
)
def test_what_is_not_certain_is_refused_with_its_line(text: str, code: str, line: int) -> None:
    with raises(SpecError, code, f"line {line}: "):
        arrived(text)


@pytest.mark.parametrize(
    ("text", "code"), [("&a [*a]", "file.cyclic"), ("[" * 2000, "file.too_deep"), ("a: 'b", "file.not_yaml")]
)
def test_what_cannot_be_read_is_refused(text: str, code: str) -> None:
    with raises(SpecError, code):
        read(text)


def test_aliases_cannot_expand_in_memory() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    with raises(SpecError, "file.too_many_values"):
        read(f"l0: &l0 [x]\n{levels}")
    merges = "\n".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}" for n in range(1, 60))
    assert len(read(f"m0: &m0 {{k0: 1}}\n{merges}").value["m59"]) == 60


def test_a_chain_of_merged_maps_cannot_expand_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_count", lambda *_: pytest.fail("it was expanded already"))
    chain = "".join(f"m{n}: &m{n} {{<<: *m{n - 1}, k{n}: 1}}\n" for n in range(1, 2000))
    with raises(SpecError, "file.too_many_values"):
        read(f"m0: &m0 {{k0: 1}}\n{chain}")


def test_keys_are_what_is_written() -> None:
    text = "notify: {url: u, on: [failed]}\nenv: {NO: a, 010: b, null: c, 1:10: d}\nlabels: {on: off}"
    found = arrived(text)
    assert found["notify"] == {"url": "u", "on": ["failed"]}
    assert (found["env"], found["labels"]) == ({"NO": "a", "010": "b", "null": "c", "1:10": "d"}, {"on": "off"})


def test_merged_maps_come_before_own_entries_and_the_first_of_several_wins() -> None:
    text = "one: &one {A: 1, B: 1}\ntwo: &two {B: 2, C: 2}\nenv: {<<: [*one, *two], C: 010}"
    assert arrived(text)["env"] == {"A": "1", "B": "1", "C": "010"}


def test_one_alias_is_read_by_each_of_its_places() -> None:
    assert arrived("n_max: &n 4\nenv: {N: *n}\ncommand: [run, *n]") == {
        "n_max": 4,
        "env": {"N": "4"},
        "command": ["run", "4"],
    }


def test_lists_and_maps_are_single_values_of_a_parameter() -> None:
    assert arrived('sweep: {p: [[64,  64], {"lr": 0.1}, "[1]", [010]]}')["sweep"]["p"] == [
        "[64,  64]",
        '{"lr": 0.1}',
        "[1]",
        "[010]",
    ]
    assert arrived("sweep: {p: {range: [0, 4, 2]}}")["sweep"]["p"] == {"range": [0, 4, 2]}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("name", 1),
        ("command[1]", 4),
        ("env.A.B", 6),
        ("env", 5),
        ("retries.limit", 7),
        ("none", None),
        ("env.none", 5),
        ("command[9]", 2),
    ],
)
def test_lines_of_fields(path: str, line: int | None) -> None:
    text = "name: x\ncommand:\n- a\n- b\nenv:\n  A.B: c\nretries: {limit: 3}"
    assert read(text, SPEC).line(path) == line


@given(TEXTS)
@example("a\u0085b\u2028c")
def test_any_text_in_quotes_arrives_unchanged(text: str) -> None:
    quoted = json.dumps(text)
    document = f"command: [run, {quoted}]\nenv: {{X: {quoted}}}\nsweep: {{p: [{quoted}]}}"
    assert arrived(document) == {"command": ["run", text], "env": {"X": text}, "sweep": {"p": [text]}}
    assert arrived(yaml.safe_dump({"command": ["run", text], "env": {"X": text}})) == {
        "command": ["run", text],
        "env": {"X": text},
    }


@given(
    st.text("0123456789.eE+-_xonfatrueyTls:~", min_size=1, max_size=8).filter(
        lambda one: not one.startswith(("- ", ":"))
    )
)
def test_whatever_can_be_written_without_quotes_arrives_as_written(text: str) -> None:
    try:
        composed = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return
    plain = composed.value if composed is not None else []
    if len(plain) != 1 or not isinstance(plain[0], yaml.ScalarNode) or plain[0].value != text:
        return
    assert arrived(f"command: [{text}]") == {"command": [text]}
    assert as_text(arrived(f"sweep: {{p: [{text}]}}")["sweep"]["p"][0]) == text


@given(st.one_of(TEXTS, st.floats().map(repr), st.integers().map(str), st.sampled_from(TYPED)))
def test_a_setting_gives_back_the_text_that_was_typed(text: str) -> None:
    assert as_text(setting(text)) == text


def test_numbers_are_understood_for_sorting() -> None:
    assert [number(setting(one)) for one in ("010", "0.10", "1e5", "-3", ".5", "true")] == [10, 0.1, 1e5, -3, 0.5, 1]
    assert [number(setting(one)) for one in ("1:10", "0x10", "a", "", "inf", "[1]", "9" * 500)] == [None] * 7


def test_a_shape_follows_from_a_type() -> None:
    shape = shape_of(Outer)
    text = "inner: {flag: on, size: 1:30}\nnames: [on, ~]\nany: {a: on, b: 1}"
    assert read(text, shape).value == {
        "inner": {"flag": True, "size": "1:30"}, "names": ["on", "~"], "any": {"a": True, "b": 1},
    }  # fmt: skip
    assert shape.of("other") is ANY
