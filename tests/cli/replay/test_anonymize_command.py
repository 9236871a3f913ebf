"""`dorm replay export --anonymize` as people use it."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from dorm.cli.main import main
from dorm.cli.output import console
from replay.export.export import export
from tests.replay.made_log import log_of, two_apps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs the program in this process; gives exit code, standard output and standard error."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int | None)
        return code or 0, out, err

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.dorm"
    asyncio.run(export(log_of(two_apps().records), path))
    return path


def test_an_incident_leaves_the_building(dorm: Dorm, source: Path, tmp_path: Path) -> None:
    code, out, _ = dorm("replay", "export", "--file", source, "--anonymize", "--pseudonyms", "key.json")
    assert code == 0
    assert f"{len(two_apps().records)} records are in anonymized.dorm" in out
    key = tmp_path / "key.json"
    assert json.loads(key.read_text())["apps"]["app-2"] == "one"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    code, out, _ = dorm("replay", "verify", "--file", "anonymized.dorm")
    assert code == 0
    assert "13 decided again with the same result" in out
    assert "its names were replaced" in out
    code, _, err = dorm("replay", "export", "--file", source, "again.dorm", "--anonymize", "--pseudonyms", "key.json")
    assert (code, "--force" in err) == (1, True)


def test_selections_use_the_original_names(dorm: Dorm, source: Path, tmp_path: Path) -> None:
    code, _, err = dorm("replay", "export", "--file", source, "one.dorm", "--anonymize", "--app", "one")
    assert code == 0, err
    code, out, _ = dorm("events", "--file", "one.dorm")
    assert code == 0
    assert "AppSubmitted name=app-2" in " ".join(out.split())
    assert "name=app-4" not in out
    # Nor does the header say what was asked for.
    assert b'"one"' not in (tmp_path / "one.dorm").read_bytes()
    code, _, err = dorm("replay", "export", "--file", "one.dorm", "two.dorm", "--anonymize")
    assert code == 1
    assert "[log.sparse]" in err


def test_a_part_of_the_log_is_audited_too(dorm: Dorm, source: Path) -> None:
    code, _, err = dorm(
        "replay",
        "export",
        "--file",
        source,
        "end.dorm",
        "--anonymize",
        "--since",
        "-2s",
        "--until",
        len(two_apps().records) - 3,
    )
    assert code == 0, err
    code, out, _ = dorm("replay", "verify", "--file", "end.dorm")
    assert code == 0, out
    assert "decided again with the same result" in out


@pytest.mark.parametrize(
    "words", [["--keep-nodes"], ["--pseudonyms", "key.json"], ["--anonymize", "--pseudonyms", "-"]]
)
def test_wrong_usage(dorm: Dorm, source: Path, words: list[str], tmp_path: Path) -> None:
    code, _, err = dorm("replay", "export", "--file", source, "out.dorm", *words)
    assert code == 2
    assert "--" in err
    assert not (tmp_path / "out.dorm").exists()


def test_rows_have_pseudonyms_too(dorm: Dorm, source: Path, tmp_path: Path) -> None:
    code, _, _ = dorm("replay", "export", "--file", source, "rows.ndjson", "--anonymize", "--keep-nodes")
    assert code == 0
    rows = (tmp_path / "rows.ndjson").read_text()
    assert '"n0"' in rows
    assert "one-" not in rows
    assert "work" not in rows
