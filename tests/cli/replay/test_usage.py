"""`dorm usage`: output, files and exit codes."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from dorm.cli.main import main
from dorm.cli.output import console
from replay.export.export import export
from tests.replay.busy import busy_log
from tests.replay.codes import code_in
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("usage") / "log.dorm"
    asyncio.run(export(log_of(busy_log(900, apps=6, nodes=2)), path))
    return path


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs the command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", "usage", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def test_a_table_with_totals(dorm: Dorm, log_file: Path) -> None:
    code, out, err = dorm("--file", log_file, "--by", "user,node")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split() == ["USER", "NODE", "RESOURCE", "GIVEN", "USED", "KNOWN", "WASTED", "LOST", "UNIT"]
    assert {line.split()[0] for line in lines[2:]} == {"ann", "bob", "total"}
    assert [line.split()[-1] for line in lines[-3:]] == ["core-hours", "gpu-hours", "GiB-hours"]
    code, out, _ = dorm("--file", log_file, "--by", "resource")
    assert out.splitlines()[1].split()[-2:] == ["OF", "UNIT"]
    assert len(out.splitlines()) == 5


def test_files_agree_with_json(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    table, columns, picture = tmp_path / "a.csv", tmp_path / "a.parquet", tmp_path / "a.png"
    words = ("--file", log_file, "--by", "user,app", "--every", "10m")
    code, out, err = dorm(*words, "-o", "json", "--save", table, "--save", columns, "--save", picture)
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert len({row["begin"] for row in rows}) > 1
    read = list(csv.DictReader(table.open()))
    assert [(row["user"], row["app"], float(row["given"]), row["used"]) for row in read] == [
        (row["user"], row["app"], row["given"], "") for row in rows
    ]
    assert pyarrow.parquet.read_table(columns)["given"].to_pylist() == [row["given"] for row in rows]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert dorm(*words, "--save", "-")[1].encode() == table.read_bytes()
    code, _, err = dorm(*words, "--save", table)
    assert (code, code_in(err)) == (1, "file.exists")
    assert dorm(*words, "--save", table, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--from", "-1m", "--to", "-5m"), 1, "moment.end_before_start"),
        (("--from", "-0s"), 1, "accounting.empty_span"),
        (("--from", "3000"), 1, "moment.after_end"),
        (("--to", "2001-01-01"), 1, "moment.before_start"),
        (("--from", "yesterday"), 2, "moment.malformed"),
        (("--user", "nobody"), 1, "name.not_found"),
        (("--by", "team"), 2, "usage.by.unknown"),
        (("--every", "10ms"), 2, "usage.every.too_short"),
        (("--every", "often"), 2, "quantity.malformed"),
        (("--save", "usage.doc"), 2, "usage.file_name"),
    ],
)
def test_bad_questions(dorm: Dorm, log_file: Path, words: tuple[str, ...], code: int, error: str) -> None:
    ended, out, err = dorm("--file", log_file, *words)
    assert (ended, out, code_in(err)) == (code, "", error)


def test_unreadable_files(dorm: Dorm, tmp_path: Path) -> None:
    assert dorm("--file", tmp_path / "none.dorm")[0] == 1
    broken = tmp_path / "broken.dorm"
    broken.write_bytes(b"no log")
    code, out, err = dorm("--file", broken)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
