"""`dorm state` and `dorm diff`: output and exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from dorm.cli.main import main
from dorm.cli.output import console
from events.kinds import PolicyChanged
from replay.export.export import export
from tests.core.golden_log import recorded
from tests.core.records import record_of
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs a command on the golden log with a change of settings at its end; gives exit code, output, errors."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)
    records, _ = recorded()
    change = PolicyChanged(idle_s=7.0)
    records.append(record_of(len(records) + 1, change, time=records[-1].time + 1))
    path = tmp_path / "log.dorm"
    asyncio.run(export(log_of(records), path))

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", *map(str, words), "--file", str(path)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def test_state_equals_replay_state(dorm: Dorm) -> None:
    code, out, err = dorm("state", "--at", "100")
    assert (code, err) == (0, "")
    assert out.startswith("sequence 100, ")
    assert dorm("replay", "state", "--at", "100") == (code, out, err)
    assert dorm("state", "--at", "100.0") == (code, out, err), "as positions are printed"


def test_settings_are_shown_whole_but_for_optional_ones_that_nobody_set(dorm: Dorm) -> None:
    settings = json.loads(dorm("state", "--at", "4", "-o", "json")[1])["settings"]
    assert (settings["policy"], settings["params"]) == ("dorm", {})
    assert not {"weights", "tenant_apps", "tenant_retention_s"} & settings.keys()


def test_changes_in_words(dorm: Dorm) -> None:
    code, out, err = dorm("diff", "5", "116")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("sequence 5 (2023-11-14 22:13:20 UTC) -> sequence 116 (")
    assert [line for line in lines[1:] if line and not line.startswith(" ")] == ["apps", "nodes", "settings", "cluster"]
    assert any(line.startswith("  + ") and "came: failed, of someone" in line for line in lines)
    assert "  policy: dorm -> static" in lines


@pytest.mark.parametrize("span", ["-10s", "-1h", "-2m", "-3d"])
def test_a_duration_before_the_end_may_stand_alone(dorm: Dorm, span: str) -> None:
    code, out, err = dorm("diff", span)
    assert (code, err) == (0, "")
    assert "settings" in out
    assert dorm("diff", span, span)[1].endswith("nothing changed\n")


def test_for_programs(dorm: Dorm) -> None:
    code, out, _ = dorm("diff", "100", "-o", "json")
    document = json.loads(out)
    assert code == 0
    assert (document["before"]["seq"], document["after"]["seq"]) == (100, len(recorded()[0]) + 1)
    assert document["settings"] == [{"field": "idle_s", "before": 20.0, "after": 7.0}]
    changed = document["apps"][0]
    assert set(changed) == {"name", "id", "how", "changes"}
    code, out, _ = dorm("diff", "100", "--only", changed["name"], "-o", "json")
    only = json.loads(out)
    assert [app["name"] for app in only["apps"]] == [changed["name"]]
    assert only["settings"] == only["nodes"] == []


def test_exit_codes(dorm: Dorm) -> None:
    assert dorm("diff", "100", "--exit-code")[0] == 1
    assert dorm("diff", "100", "100", "--exit-code")[0] == 0
    code, _, err = dorm("diff", "100", "1000")
    assert (code, "1000" in err, "[moment." in err) == (1, True, True)
    code, _, err = dorm("diff", "yesterday")
    assert code == 2
    assert "[moment." in err
    code, _, err = dorm("diff", "100", "--only", "nobody")
    assert code == 1
    assert "[name.not_found]" in err
    assert dorm("diff")[0] == 2


def test_an_unknown_app_or_node(dorm: Dorm) -> None:
    code, _, err = dorm("state", "nobody")
    assert code == 1
    assert "[name.not_found]" in err
