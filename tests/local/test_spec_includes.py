"""Files that a spec names: what is sent, and what never is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.spec_files import file_schema, load_spec
from events.spec import SpecError
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

SPEC = "{name: app, command: [work], demand: {cpu: 1}, env: {OWN: spec}, "


def loaded(folder: Path, more: str, **files: str) -> tuple[dict[str, str], list[str]]:
    for name, text in files.items():
        (folder / f"{name}.env").write_text(text)
    (folder / "app.yaml").write_text(SPEC + more + "}")
    notes: list[str] = []
    return load_spec(folder / "app.yaml", note=notes.append).env, notes


def test_variables_of_files_are_sent_and_those_of_the_spec_come_first(tmp_path: Path) -> None:
    text = "# a comment\nexport A=1\nB='two words'\nC=\"x\\ty\" # why\nOWN=file\nEMPTY=\nD=${A}\n"
    env, notes = loaded(tmp_path, "env_file: [first.env, second.env]", first=text, second="A=2\n")
    assert env == {"A": "2", "B": "two words", "C": "x\ty", "OWN": "spec", "EMPTY": "", "D": "${A}"}
    assert notes == []


@pytest.mark.parametrize(
    "line", ["WANDB_API_KEY=0123456789abcdef", "X=ghp_0123456789abcdefghijklmnopqrstuvwxyz", "DB_PASSWORD=correct"]
)
def test_apparent_secrets_are_left_out_with_a_note_that_does_not_show_them(tmp_path: Path, line: str) -> None:
    env, (note,) = loaded(tmp_path, "env_file: my.env", my=f"{line}\nPAD_TOKEN=<pad>\n")
    assert env == {"OWN": "spec", "PAD_TOKEN": "<pad>"}
    name, value = line.split("=", 1)
    assert name in note
    assert "secrets" in note
    assert value not in note


@pytest.mark.parametrize(
    ("more", "files", "code"),
    [
        ("env_file: none.env", {}, "system.enoent"),
        ("env_file: {a: 3}", {}, "spec.env_file.wrong_type"),
        ("env_file: [[a.env]]", {}, "spec.env_file.wrong_type"),
        ("env_file: my.env", {"my": "A=1\n=2\n"}, "spec.env_file.malformed"),
        ("env_file: my.env", {"my": "A\n"}, "spec.env_file.no_value"),
        ("env_file: my.env", {"my": "DORM_RANK=1\n"}, "spec.env.reserved"),
        ("env_file: my.env", {"my": "A=" + "x" * 70_000}, "spec.env_file.too_large"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, more: str, files: dict[str, str], code: str) -> None:
    with raises(SpecError, code, "app.yaml"):
        loaded(tmp_path, more, **files)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_bytes(b"A=\xff\xfe")
    with raises(SpecError, "spec.env_file.not_text", "my.env"):
        loaded(tmp_path, "env_file: my.env")


def test_the_schema_of_files_knows_it() -> None:
    properties: dict[str, Any] = file_schema()["properties"]
    assert {"env", "env_file", "volumes"} <= properties.keys()
