"""From exceptions to one line and an exit code: people never see a traceback for what they can mend themselves."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import typer

DONE, FAILED, USAGE = 0, 1, 2
_OURS = ("dorm", "events", "agents", "replay", "compose")


class Fail(Exception):
    """A command's own way to end with one line and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run one command's coroutine."""
    return asyncio.run(work)


def expected(error: BaseException) -> BaseException | None:
    """What people can mend themselves: our packages' own exceptions (each carries one line for people) and the operating
    system's, also where a TaskGroup wrapped them.  None for a bug, which deserves its traceback.

    Told by the module that defines them, so that no command has to import all packages to report an error.
    """
    if isinstance(error, BaseExceptionGroup):
        found = [expected(one) for one in error.exceptions]
        return next((one for one in found if one is not None), None)
    ours = type(error).__module__.split(".")[0] in _OURS
    return error if ours or isinstance(error, OSError) else None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def run_and_exit(app: typer.Typer) -> NoReturn:
    """The whole program, with its exit code."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # `dorm events | head`: nobody reads on, which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except BaseException as error:
        known = expected(error)
        if known is None:
            raise
        print(f"error: {_line(known)}", file=sys.stderr)
        sys.exit(known.code if isinstance(known, Fail) else FAILED)
    sys.exit(DONE)
