"""Help texts, the version, and scripts for shells."""

from __future__ import annotations

import asyncio
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from docs.site.commands import commands
from dorm.cli.main import app
from tests.e2e.commands import done, dorm, environment

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [
    "up", "master", "masters", "doctor", "agent", "dashboard", "check", "submit", "update", "ps", "describe", "explain",
    "plan", "simulate", "whatif",
    "top", "webhooks add", "webhooks list", "webhooks remove", "webhooks rotate", "webhooks enable", "webhooks test",
    "webhooks secret", "webhooks run",
    "wait", "scale",
    "logs", "events", "cancel", "nodes", "nodes maintenance", "nodes up", "nodes forget", "nodes trust",
    "drain", "pause", "resume", "retry",
    "hold", "release",
    "policy show", "policy get", "policy set", "policy list", "schema",
    "demo", "completion", "log seal", "log verify", "log key", "log rotate", "log show",
    "state", "diff", "replay verify", "replay export", "replay import", "replay step",
    "bench codec", "bench submit", "bench exec", "bench trust", "bench resize", "bench pause", "bench calibration",
    "bench simulate", "bench elastic", "bench scale", "bench year", "init", "user add", "user remove", "user list", "user key",
    "node intro", "node join", "node remove",
    "deploy example", "deploy keys", "deploy install", "deploy found", "deploy restore", "backup",
    "context add", "context use", "context list", "context show", "context remove",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
async def test_help_has_an_example_and_fits(tmp_path: Path, command: str) -> None:
    out = await done(tmp_path, *command.split(), "--help", env={"COLUMNS": "80"})
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Example" in out
    assert f"dorm {command} " in out.replace("Usage: dorm", "")
    assert "…" not in out
    assert "<bool>" not in out
    assert not re.search(r"--verbose.*<", out)


def test_no_help_text_has_brackets_that_are_taken_for_markup() -> None:
    for name, command, _ in commands():
        texts = [command.help or "", *(getattr(param, "help", None) or "" for param in command.params)]
        for text in texts:
            tags = re.findall(r"(?<!\\)\[[a-z#/@][^\[]*?\]", text)
            assert set(tags) <= {"[bold]", "[/]"}, f"{name}: {tags}"


async def test_the_list_of_commands(tmp_path: Path) -> None:
    out = await done(tmp_path, "--help", env={"COLUMNS": "80"})
    assert {command.split()[0] for command in COMMANDS} <= {part for line in out.splitlines() for part in line.split()}
    assert max(map(len, out.splitlines())) <= 80
    assert "<bool>" not in out
    code, shown, _ = await dorm(tmp_path, env={"COLUMNS": "80"})
    assert code == 2
    assert "Usage: dorm" in shown


async def test_the_version(tmp_path: Path) -> None:
    assert await done(tmp_path, "--version") == f"dorm {version('dorm')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_a_script_for_each_shell(tmp_path: Path, shell: str) -> None:
    script = await done(tmp_path, "completion", shell)
    assert f"_DORM_COMPLETE=complete_{shell}" in script
    if shell == "bash":
        checker = await asyncio.create_subprocess_exec("bash", "-n", stdin=asyncio.subprocess.PIPE)
        await checker.communicate(script.encode())
        assert checker.returncode == 0


_LISTED = """
import sys
from typer.main import get_command
import dorm.cli.main
early = [name for name in sys.modules if name.startswith("dorm.cli.")]
group = get_command(dorm.cli.main.app)
assert all(group.get_command(None, name) is not None for name in group.list_commands(None))
print(*sorted({"nats", "aiohttp", "scipy", "numpy", "aiodocker", "structlog"} & set(sys.modules)))
print(*sorted(early))
"""


async def test_light_commands_load_nothing_heavy_and_only_their_own(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LISTED, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    heavy, early = (await process.communicate())[0].decode().splitlines()
    assert heavy == ""
    assert sorted(early.split()) == ["dorm.cli.errors", "dorm.cli.main", "dorm.cli.program_logs", "dorm.cli.terminal"]


_ASKED = """
import sys
from dorm.cli.main import main
sys.argv[0] = "dorm"
try:
    main()
except SystemExit:
    print(*sorted({"aiohttp", "nats", "scipy", "structlog"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        (("ps", "--url", "nats://127.0.0.1:1"), ["nats"]),
        (("ps", "--url", "ws://127.0.0.1:1"), ["aiohttp", "nats"]),
        (("run", "--url", "nats://127.0.0.1:1", "--", "true"), ["nats"]),
    ],
)
async def test_a_connection_loads_what_its_kind_needs(
    tmp_path: Path, words: tuple[str, ...], loaded: list[str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ASKED, *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment(tmp_path),
    )  # fmt: skip
    assert (await process.communicate())[0].decode().split() == loaded


def test_each_command_is_defined_in_its_listed_module() -> None:
    everything: Any = get_command(app)
    listed = everything.list_commands(None)
    assert sorted(everything.commands) == sorted(listed)
    for name in listed:
        alone: Any = get_command(app)
        assert alone.get_command(None, name) is not None
        assert len(alone.commands) < len(listed)
