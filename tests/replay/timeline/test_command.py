"""`dorm replay timeline`: files, output and exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dorm.cli.main import main
from dorm.cli.output import console
from replay.export.export import export
from tests.replay.codes import code_in
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.records import Record
    from replay.timeline.lanes import Timeline

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs the command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", "replay", "timeline", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def log_file(written: list[Record], tmp_path: Path) -> Path:
    path = tmp_path / "incident.dorm"
    asyncio.run(export(log_of(written), path))
    return path


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", b"<!doctype html>"), ("a.PNG", b"\x89PNG\r\n"), ("a.json", b'{"displayTimeUnit"')]
)
def test_the_file_ending_determines_the_format(
    dorm: Dorm, log_file: Path, tmp_path: Path, name: str, begins: bytes
) -> None:
    code, out, err = dorm("-o", tmp_path / name, "--file", log_file)
    assert (code, err) == (0, "")
    written = (tmp_path / name).read_bytes()
    assert written.startswith(begins)
    assert re.search(r"^[23] apps, \d+ (nodes|moments) and \d decisions are in ", out)
    assert f"({len(written):,} bytes)" in out
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "home") == sorted([name, "incident.dorm"])


def test_an_existing_file_is_kept(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("precious")
    code, _, err = dorm("-o", path, "--file", log_file)
    assert (code, code_in(err)) == (1, "file.exists")
    assert str(path) in err
    assert path.read_text() == "precious"
    assert dorm("-o", path, "--file", log_file, "--force")[0] == 0
    assert json.loads(path.read_text())["traceEvents"]


def test_only_a_part(dorm: Dorm, log_file: Path, written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    words = ("-o", path, "--file", log_file, "--force")
    assert dorm(*words, "--app", "two", "--since", "20", "--until", "-100ms")[0] == 0
    document = json.loads(path.read_text())
    names = {one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"}
    assert {"cluster", "two"} <= names
    assert "one" not in names
    assert document["otherData"]["start"] == written[19].time
    for wrong, expected in (
        (("--app", "nobody"), "app.not_found"),
        (("--node", "n9"), "node.not_found"),
        (("--since", "99999"), "moment.after_end"),
        (("--since", "30", "--until", "20"), "moment.end_before_start"),
        (("--until", "0"), "timeline.empty"),
    ):
        code, _, err = dorm(*words, *wrong)
        assert (code, code_in(err)) == (1, expected)
        assert err.count("\n") == 1


def test_wrong_usage(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    for words, expected in (
        (("-o", tmp_path / "a.pdf"), "usage."),
        ((), "usage."),
        (("-o", tmp_path / "a.png", "--since", "yesterday"), "moment.malformed"),
        (("-o", tmp_path / "a.html", "--app", "two"), "usage.conflict"),
    ):
        code, _, err = dorm(*words, "--file", log_file)
        assert code == 2
        assert code_in(err).startswith(expected)
    code, _, err = dorm("-o", tmp_path / "nowhere" / "a.json", "--file", log_file)
    assert (code, code_in(err)) == (1, "export.not_written")
    assert str(tmp_path / "nowhere" / "a.json") in err


def test_missing_files_are_named_before_anything_is_folded(
    dorm: Dorm, log_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.timeline.lanes.find_spec", lambda name: None)
    monkeypatch.setattr("replay.timeline.fold.timeline", None)
    code, _, err = dorm("-o", tmp_path / "a.png", "--file", log_file)
    assert (code, code_in(err)) == (1, "package.missing")
    assert "matplotlib" in err
    assert not (tmp_path / "a.png").exists()


def test_a_drawing_that_fails_leaves_no_file(
    dorm: Dorm, log_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(picture: Timeline, title: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("replay.timeline.trace.trace", full)
    code, _, err = dorm("-o", tmp_path / "a.json", "--file", log_file)
    assert (code, code_in(err)) == (1, "system.enospc")
    assert [one.name for one in tmp_path.iterdir() if one.name != "home"] == ["incident.dorm"]


def test_a_trace_on_standard_output(log_file: Path) -> None:
    program = str(Path(sys.executable).with_name("dorm"))
    words = [program, "replay", "timeline", "-o", "-", "--file", str(log_file)]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["traceEvents"]
