"""Helpers of the tests of progress files: writing lines, and reading the facts that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.kinds import AppProgressed, AppResizeRequested, ProgressLinesSkipped

if TYPE_CHECKING:
    from pathlib import Path

    from agents.progress import ProgressFile


def said(file: ProgressFile, now: float, *, final: bool = False) -> list[tuple[str, int]]:
    return [
        (type(fact).__name__.removeprefix("App"), fact.step)
        for fact in file.read(now, final=final)
        if not isinstance(fact, AppResizeRequested | ProgressLinesSkipped)
    ]


def progressed(file: ProgressFile) -> list[AppProgressed]:
    return [fact for fact in file.read(0) if isinstance(fact, AppProgressed)]


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
