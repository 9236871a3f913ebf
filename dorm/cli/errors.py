"""From exceptions to one line and an exit code: people never see a traceback for what they can mend themselves."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click
import typer

from agents.config import ConfigError
from agents.runtime import RuntimeFault
from dorm.client import ClientError
from dorm.embedded import EmbeddedError
from dorm.engines import EngineError
from dorm.master import MasterError
from events.log import LogError
from events.spec import SpecError

if TYPE_CHECKING:
    from collections.abc import Coroutine

DONE, FAILED, USAGE = 0, 1, 2
_EXPECTED = (
    ClientError, ConfigError, EmbeddedError, EngineError, LogError, MasterError, RuntimeFault, SpecError, OSError,
)  # fmt: skip


class Fail(Exception):
    """A command's own way to end with one line and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run one command's coroutine; what is expected to go wrong becomes Fail."""
    try:
        return asyncio.run(work)
    except _EXPECTED as error:
        raise Fail(_line(error)) from error
    except BaseExceptionGroup as group:
        expected = _first_expected(group)
        if expected is None:
            raise
        raise Fail(_line(expected)) from group


def _first_expected(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    for error in group.exceptions:
        found = _first_expected(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, (*_EXPECTED, Fail)):
            return found
    return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def run_and_exit(app: typer.Typer) -> NoReturn:
    """The whole program, with its exit code."""
    try:
        app()
    except Fail as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # `dorm events | head`: nobody reads on, which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    sys.exit(DONE)
