"""`dorm replay`: output and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from dorm.cli.main import main
from dorm.cli.output import console
from events.archive import segments
from events.kinds import Resized
from replay.export.export import export
from tests.e2e import forked
from tests.replay.codes import code_in
from tests.replay.made_log import changed_fact, log_of, rounds_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from events.log.records import Record

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs the program in this process; gives exit code, standard output and standard error."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", "replay", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def save(records: list[Record], path: Path) -> None:
    asyncio.run(export(log_of(records), path))


@pytest.fixture
def log_file(written: list[Record], tmp_path: Path) -> Path:
    path = tmp_path / "log.dorm"
    save(written, path)
    return path


def test_state(dorm: Dorm, log_file: Path, written: list[Record], tmp_path: Path) -> None:
    code, out, err = dorm("state", "--file", log_file)
    assert (code, err) == (0, "")
    assert f"sequence {len(written)}" in out
    assert "one" in out
    assert "n1" in out
    code, out, _ = dorm("state", "--at", "0", "--file", log_file)
    assert code == 0
    assert "before the first record" in out


def test_state_for_programs(dorm: Dorm, log_file: Path, written: list[Record], tmp_path: Path) -> None:
    code, out, _ = dorm("state", "--at", "-1s", "--file", log_file, "-o", "json")
    document = json.loads(out)
    assert code == 0
    assert document["seq"] == len(written) - 10
    assert {app["name"] for app in document["apps"]} == {"one", "two", "three"}
    code, out, _ = dorm("state", "--file", log_file, "-o", "yaml", "n1")
    assert code == 0
    assert yaml.safe_load(out)["name"] == "n1"


def test_state_of_one_app_or_node(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    code, out, _ = dorm("state", "--at", "20", "one", "--file", log_file)
    assert code == 0
    assert "SLOT" in out
    assert "two" not in out
    code, _, err = dorm("state", "nothing", "--file", log_file)
    assert code == 1
    assert err.startswith("error: ")
    assert code_in(err) == "name.not_found"
    assert "'nothing'" in err


def test_verify_reports_its_checks(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    code, out, err = dorm("verify", "--file", log_file)
    assert (code, err) == (0, "")
    assert "the log was replayed and gave the same state and the same decisions" in out
    code, out, _ = dorm("verify", "--file", log_file, "-o", "json")
    assert code == 0
    assert json.loads(out)["divergence"] is None


def test_verify_shows_the_first_divergence(dorm: Dorm, written: list[Record], tmp_path: Path) -> None:
    seq = rounds_with(written, Resized)[-1]
    path = tmp_path / "changed.dorm"
    lie = changed_fact(written, seq, Resized, lambda resized: msgspec.structs.replace(resized, utilization=0.5))
    save(lie, path)
    code, out, err = dorm("verify", "--file", path)
    assert code == 1
    assert "Resized[0].utilization" in out
    assert "recorded  0.5" in out
    assert err.startswith(f"error: sequence {seq}: ")
    assert len(err.splitlines()) == 1
    code, out, _ = dorm("verify", "--file", path, "-o", "json")
    assert code == 1
    assert json.loads(out)["divergence"]["seq"] == seq


def test_verify_does_not_pass_unchecked_records(dorm: Dorm, written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "other.dorm"
    other = written
    for seq in rounds_with(written, Resized):
        other = changed_fact(other, seq, Resized, lambda resized: msgspec.structs.replace(resized, solver="other 1"))
    save(other, path)
    code, out, _ = dorm("verify", "--file", path)
    assert code == 0
    assert "could not" in out
    assert "not checked: another solver" in out


def test_export(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.dorm"
    code, out, err = dorm("export", copy, "--file", log_file)
    assert (code, err) == (0, "")
    assert copy.read_bytes() == log_file.read_bytes()
    assert str(copy) in out
    code, _, err = dorm("export", copy, "--file", log_file)
    assert (code, code_in(err)) == (1, "file.exists")
    code, _, _ = dorm("export", copy, "--file", log_file, "--force")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["state", "--at", "yesterday", "--file", "LOG"], 2, "moment.malformed"),
        (["state", "--at", "99999", "--file", "LOG"], 1, "moment.after_end"),
        (["verify", "--file", "LOG", "-o", "xml"], 2, "usage.bad_parameter"),
        (["export", "log.csv", "--file", "LOG"], 2, "export.format.unknown"),
        (["export", "--since", "yesterday", "--file", "LOG"], 2, "moment.malformed"),
        (["export", "/nowhere/log.dorm", "--file", "LOG"], 1, "export.not_written"),
        (["verify", "--url", "nats://127.0.0.1:1"], 1, "log.no_server"),
    ],
)
def test_mistakes_get_one_line(
    dorm: Dorm, words: list[str], status: int, code: str, log_file: Path, tmp_path: Path
) -> None:
    filled = [str(log_file) if word == "LOG" else word for word in words]
    ended, _, err = dorm(*filled)
    assert (ended, code_in(err)) == (status, code)
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("path", ["nowhere.dorm", "/", "/etc/hostname"])
def test_a_file_that_is_not_an_archive_is_named(dorm: Dorm, path: str) -> None:
    code, _, err = dorm("verify", "--file", path)
    assert (code, len(err.splitlines())) == (1, 1)
    assert err.startswith(f"error: {path}")
    assert code_in(err)


@pytest.mark.slow
async def test_the_installed_program_ends_with_these_codes(log_file: Path) -> None:
    for words, code in ((("--at", "3"), 0), (("--at", "9999"), 1), (("--at", "?"), 2)):
        state = ("replay", "state", "--file", str(log_file), *words)
        assert (await forked.command(state, os.environ, b"", 60.0))[0] == code


def test_a_file_that_breaks_off(dorm: Dorm, log_file: Path, written: list[Record], tmp_path: Path) -> None:
    log_file.write_bytes(log_file.read_bytes()[: log_file.stat().st_size // 2])
    code, out, err = dorm("verify", "--file", log_file)
    assert code == 1
    assert "0 of 0 records folded" in out
    assert err.startswith("error: sequence 1: ")
    assert str(log_file) in err
    code, out, err = dorm("state", "--file", log_file)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "before the first record" in out
    assert err.startswith(f"error: {log_file}: ")
    code, _, err = dorm("export", "--file", log_file, tmp_path / "rest.dorm")
    assert (code, len(err.splitlines())) == (1, 2)
    assert not (tmp_path / "rest.dorm").exists(), "an archive of nothing would look like a copy"


def test_damage_is_named_and_intact_records_can_be_salvaged(
    dorm: Dorm, written: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "BLOCK_RECORDS", 10)
    path, out_file = tmp_path / "log.dorm", tmp_path / "log.ndjson"
    save(written, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, out, err = dorm("state", "--file", path, "-o", "json")
    seq = json.loads(out)["seq"]
    assert code == 1
    assert f"{seq + 1} to {seq + 10}" in err
    assert dorm("export", out_file, "--file", path)[0] == 1
    assert {json.loads(line)["seq"] for line in out_file.open()} == set(range(1, seq + 1))
    assert dorm("export", out_file, "--file", path, "--salvage", "--force")[0] == 1
    assert {json.loads(line)["seq"] for line in out_file.open()} == {*range(1, len(written) + 1)} - {
        *range(seq + 1, seq + 11)
    }
    code, _, err = dorm("export", tmp_path / "rest.dorm", "--file", path, "--salvage")
    assert code == 1
    code, _, err = dorm("state", "--file", tmp_path / "rest.dorm")
    assert (code, code_in(err)) == (1, "archive.sparse")


@pytest.mark.parametrize("how", [[], ["--salvage"]])
@pytest.mark.parametrize("name", ["saved.dorm", "saved.ndjson"])
def test_an_unreadable_log_leaves_no_file(dorm: Dorm, log_file: Path, name: str, how: list[str]) -> None:
    data = bytearray(log_file.read_bytes())
    data[60:] = bytes(len(data) - 60)
    broken, target = log_file.with_name("broken.dorm"), log_file.with_name(name)
    broken.write_bytes(data)
    code, out, err = dorm("export", target, "--file", broken, *how)
    assert (code, out) == (1, "")
    assert code_in(err) == "log.damaged"
    assert not target.exists()


@pytest.mark.parametrize("name", ["none.dorm", "none.ndjson", "-"])
def test_an_empty_export_is_written_and_reported(dorm: Dorm, log_file: Path, tmp_path: Path, name: str) -> None:
    path = name if name == "-" else tmp_path / name
    form = ["--format", "ndjson"] if name == "-" else []
    code, _, err = dorm("export", path, *form, "--file", log_file, "--app", "typo", "--user", "zoe")
    assert (code, len(err.splitlines())) == (0, 1)
    assert "matches --app typo --user zoe" in err
    assert name == "-" or (tmp_path / name).exists()


@pytest.mark.parametrize("since", ["99999", "2100-01-01T00:00:00Z"])
def test_an_export_from_beyond_the_end_is_refused(dorm: Dorm, log_file: Path, tmp_path: Path, since: str) -> None:
    code, out, err = dorm("export", tmp_path / "part.dorm", "--file", log_file, "--since", since)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert code_in(err) == "moment.after_end"
    assert not (tmp_path / "part.dorm").exists()


def test_a_selection_is_read_and_not_folded(dorm: Dorm, log_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.dorm"
    code, out, err = dorm("export", path, "--file", log_file, "--app", "one")
    assert (code, err) == (0, "")
    assert " records (of 1 to " in out
    assert dorm("export", tmp_path / "one.ndjson", "--file", path)[0] == 0
    for words in (["state"], ["verify"]):
        code, _, err = dorm(*words, "--file", path)
        assert (code, code_in(err)) == (1, "archive.sparse")


_DORM = [sys.executable, "-c", "from dorm.cli.main import main; main()", "replay"]


async def _piped(*words: str, given: bytes = b"") -> bytes:
    """What a command prints that succeeds and has nothing to complain about."""
    code, out, err = await forked.command(("replay", *words), os.environ, given, 60.0)
    assert (code, err) == (0, b""), err
    return out


@pytest.mark.slow
async def test_an_archive_goes_through_pipes(log_file: Path, written: list[Record]) -> None:
    copy = await _piped("export", "-", "--file", str(log_file))
    assert copy == log_file.read_bytes()
    state = await _piped("state", "--file", "-", "-o", "json", given=copy)
    assert json.loads(state)["seq"] == len(written)
    rows = await _piped("export", "-", "--format", "ndjson", "--file", "-", given=copy)
    assert json.loads(rows.splitlines()[-1])["seq"] == len(written)


async def test_parquet_goes_through_a_pipe(log_file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    written = await _piped("export", "-", "--format", "parquet", "--file", str(log_file))
    (tmp_path / "log.parquet").write_bytes(written)
    assert parquet.read_table(tmp_path / "log.parquet").num_rows > 50


def test_ctrl_c_leaves_no_file(tmp_path: Path) -> None:
    """While it waits for the rest of a pipe."""
    words = ["export", str(tmp_path / "log.dorm"), "--file", "-"]
    with subprocess.Popen([*_DORM, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        # More than a pipe holds, so once all is written the program reads.
        running.stdin.write(b"DORMLOG2" + bytes(1 << 20))
        running.stdin.flush()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
        assert running.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []
