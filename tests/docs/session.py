"""A reader at two terminals: `dorm up` runs in one, all other commands in the other, in one folder."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from dorm.client.opening import open_client
from dorm.core.gates import reason_of
from dorm.local.home import Running
from events.nats.access import read_credentials
from tests.docs.shown import Command, File
from tests.e2e import forked
from tests.e2e.commands import DORM, environment, running, until_printed
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import App, State

_UP = "dorm up --agents 3 --capacity cpu=2,memory=2GiB"
_CHANGING = {"submit", "update", "scale", "cancel", "drain", "policy"}
"""Commands after which a reader waits until the cluster has done what was asked for."""
_SHELL = set("|&;<>()$`*?")
_LONGEST_S = 300.0
_PLANNED_S = 90.0


class Session:
    """Runs what pages show; a command that comes to another end than shown fails with what it printed."""

    def __init__(self, folder: Path) -> None:
        self._home = folder / "home"
        self._folder = folder / "folder"
        self._folder.mkdir()
        self._log = folder / "up.log"
        self._stack = AsyncExitStack()
        self._url = ""
        program = folder / "bin" / "dorm"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join(DORM)} "$@"\n')
        program.chmod(0o755)
        self._more = {
            "PATH": f"{program.parent}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "COLUMNS": "150",
            "LOGNAME": "you",
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def do(self, step: File | Command) -> None:
        """Write the file, or run the command as it is shown."""
        if isinstance(step, File):
            (self._folder / step.name).write_text(step.text)
            return
        words = shlex.split(step.text, comments=True)
        if words[:2] == ["dorm", "up"]:
            await self._up(words)
            return
        if not self._url and needs_cluster(words):
            await self._up(shlex.split(_UP))
        if words[:2] == ["dorm", "checkpoints"]:
            await self._until(lambda state: all(app.checkpoint for app in state.apps.values() if app.name == words[2]))
        if shown := step.steps:
            await self._until(lambda state: {app.name for app in state.apps.values() if app.step} >= shown)
        code, printed = await self._ended(step, words)
        if words[:2] == ["dorm", "plan"]:
            # What the next decision would be depends on what apps have reported by now; a reader comes here minutes later.
            ends = time.monotonic() + _PLANNED_S
            while not _as_shown(step, code, printed) and time.monotonic() < ends:
                code, printed = await self._ended(step, words)
        assert code == step.code, f"{step.where}: {step.text}: ended with {code}, not {step.code}\n{printed}"
        for heading in step.headings:
            assert heading in _rows(printed), f"{step.where}: {step.text}: no heading {heading}\n{printed}"
        if self._url and words[1] in _CHANGING:
            await self._until(_settled)

    async def _up(self, words: list[str]) -> None:
        """The cluster as shown, but of plain processes and on any free port: this machine may have no engine, and tests run in
        parallel."""
        chosen = [*words[1:], "--runtime", "process", "--port", "0", "--no-api"]
        process = await self._stack.enter_async_context(running(self._home, self._log, *chosen))
        said = await until_printed(self._log, "Ctrl-C stops", process)
        (self._url,) = (line.split()[1] for line in said.splitlines() if line.split()[:1] == ["log"])

    async def _ended(self, step: Command, words: list[str]) -> tuple[int, str]:
        env = environment(self._home, **self._more)
        if step.interrupted:
            return await self._interrupted(words, env)
        if words[0] == "dorm" and not _SHELL & set(step.text.replace("'", "")):
            code, out, err = await forked.command(tuple(words[1:]), env, b"", _LONGEST_S, self._folder)
            return code, (out + err).decode()
        process = await asyncio.create_subprocess_exec(
            "bash", "-o", "pipefail", "-ec", step.text, cwd=self._folder, env=env,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(_LONGEST_S):
            printed, _ = await process.communicate()
        return process.returncode or 0, printed.decode()

    async def _interrupted(self, words: list[str], env: dict[str, str]) -> tuple[int, str]:
        """Interrupt it once it has printed a line; being interrupted is not a failure."""
        assert words[0] == "dorm"
        process = await asyncio.create_subprocess_exec(
            *DORM, *words[1:], cwd=self._folder, env=env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(_LONGEST_S):
            printed = await process.stdout.readline()
            process.send_signal(signal.SIGINT)
            printed += await process.stdout.read()
            code = await process.wait()
        return 0 if code in (0, 130) and printed else code or 1, printed.decode()

    async def _until(self, holds: Callable[[State], bool]) -> None:
        found = msgspec.json.decode((self._home / "running.json").read_bytes(), type=Running)
        mine = read_credentials(Path(found.credentials)) if found.credentials else None
        async with await open_client(found.url, found.cluster, credentials=mine) as client:
            await until(client, holds, "the cluster has done what was asked for")


def _rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def _as_shown(step: Command, code: int, printed: str) -> bool:
    return code == step.code and all(heading in _rows(printed) for heading in step.headings)


def needs_cluster(words: list[str]) -> bool:
    """Whether a command asks a cluster: all do that are not pure computation and read no file."""
    alone = {"deploy", "simulate", "schema", "completion", "demo", "bench", "--help", "--version"}
    return words[0] == "dorm" and words[1] not in alone and not {"--file", "--help"} & set(words)


def _settled(state: State) -> bool:
    return not state.submissions and all(_has_what_it_gets(app) for app in state.apps.values())


def _has_what_it_gets(app: App) -> bool:
    if app.ended:
        return True
    return not app.cancel_requested and (
        app.settled or (app.phase == "waiting" and reason_of(app, time.time_ns()) is not None)
    )
