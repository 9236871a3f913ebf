"""From exceptions to one line and an exit code: people never see a traceback for errors that they can fix.

0    done
1    failed, refused by the cluster, or differs
2    wrong usage: of the command line, or of a file that it names
124  the time to wait was over, as with timeout(1)
130  interrupted
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from dorm.cli.program_logs import json_line, wants_document, wants_json
from dorm.cli.terminal import one_line, print_line
from events.errors import DormError, code_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

DONE, FAILED, USAGE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 124, 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_OURS = ("dorm", "dorm_lab", "events", "agents", "replay", "compose")


class Fail(DormError):
    """Ends a command with one line, an error code and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED, *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.exit_code = exit_code

    @classmethod
    def of(cls, error: Exception, exit_code: int = FAILED) -> Fail:
        """Return the end of the command for an error that another package raised."""
        return cls(str(error), exit_code, code=code_of(error))


class WrongUsage(typer.BadParameter):
    """An option or argument has a value that can't be used."""

    def __init__(self, message: str, *, code: str = "usage.bad_parameter") -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, error: Exception) -> WrongUsage:
        return cls(str(error), code=code_of(error))


_reported_errors: ContextVar[list[str] | None] = ContextVar("complaints", default=None)


def report_error(message: str, code: str) -> None:
    """Report an error that does not stop the command: print a line at once, and exit with 1 at the end."""
    with contextlib.suppress(BrokenPipeError):
        print_line(_report(message, code, FAILED), error=True, flush=True)
    made = _reported_errors.get()
    if made is not None:
        made.append(message)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run one command's coroutine."""
    try:
        return asyncio.run(_then_end_plugins(work))
    except BrokenPipeError:
        # `dorm events | head`: the reader has closed the pipe, which is not an error.
        _discard_output()
        raise typer.Exit(DONE) from None


async def _then_end_plugins(work: Coroutine[Any, Any, Any]) -> Any:
    """A thread that waits for a plug-in policy would keep an interrupted command until the policy's time is over."""
    try:
        return await work
    finally:
        plugins = sys.modules.get("dorm.plugins")
        if plugins is not None:
            plugins.close()


def expected(error: BaseException) -> BaseException | None:
    """Return errors that people can fix: this project's own exceptions (each carries one line for people) and the operating
    system's, also inside a TaskGroup's.  None for a bug, which deserves its traceback.

    Recognized by the defining module, so no command has to import all packages to report an error.
    """
    if isinstance(error, BaseExceptionGroup):
        known = [expected(exception) for exception in error.exceptions]
        return next((each for each in known if each is not None), None)
    ours = type(error).__module__.split(".")[0] in _OURS
    return error if ours or isinstance(error, OSError) else None


def line(error: BaseException) -> str:
    """Format an exception in one line, without anything that moves a terminal's cursor."""
    text = " ".join(_words(error).split()) or type(error).__name__
    return one_line(text)


def _words(error: BaseException) -> str:
    """Return the operating system's errors without their numbers.  A full-disk error without a file name is about standard
    output: all other writers name their file."""
    if not isinstance(error, OSError) or not error.strerror or type(error).__str__ is not OSError.__str__:
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"the output can't be written: {error.strerror}" if error.errno in _FULL else error.strerror


def _exit_code(error: BaseException) -> int:
    from events.spec import SpecError

    if isinstance(error, Fail):
        return error.exit_code
    return USAGE if isinstance(error, SpecError) else FAILED


def _report(message: str, code: str, exit_code: int, others: Sequence[tuple[str, str]] = ()) -> str:
    """Return an error as one line: text with the code after it, or JSON if the command's documents or logs are JSON.  `others` are
    texts and codes of what else is wrong with the same file: each has its own line, or is in a list of all of them."""
    if wants_json():
        return "\n".join([json_line(message, code=code), *(json_line(text, code=other) for text, other in others)])
    if wants_document():
        document: dict[str, Any] = {"code": code, "message": message, "exit_code": exit_code}
        if others:
            document["errors"] = [{"code": other, "message": text} for text, other in ((message, code), *others)]
        return json.dumps({"error": document})
    return "\n".join(f"error: {text}" + (f" [{other}]" if other else "") for text, other in ((message, code), *others))


def _end(message: str, code: str, exit_code: int, others: Sequence[tuple[str, str]] = ()) -> NoReturn:
    with contextlib.suppress(BrokenPipeError):
        print_line(_report(message, code, exit_code, others), error=True)
    sys.exit(exit_code)


def run_and_exit(app: typer.Typer) -> NoReturn:
    """Run the whole program, with its exit code."""
    try:
        _run_and_exit(app)
    finally:
        printing = sys.modules.get("dorm.health.printing")
        if printing is not None:
            printing.drain()


def _run_and_exit(app: typer.Typer) -> NoReturn:
    complaints: list[str] = []
    _reported_errors.set(complaints)
    try:
        # The library's own report of wrong usage takes six lines and a frame.
        code = app(prog_name="dorm", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        sys.exit(DONE)
    except BaseException as error:
        if hasattr(error, "format_message"):
            _end_wrong_usage(error)
        known = expected(error)
        if known is None:
            if not wants_json():
                raise
            print_line(json_line(line(error), error), error=True)
            sys.exit(FAILED)
        others = [(line(other), code_of(other)) for other in getattr(known, "others", ())]
        _end(line(known), code_of(known), _exit_code(known), others)
    sys.exit(code if isinstance(code, int) and code else FAILED if complaints else DONE)


def _end_wrong_usage(error: Any) -> NoReturn:
    """Report wrong usage.  The library's exceptions share no public class, only this method; its messages about choices
    include the kind of exception that its validator caught."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(USAGE)
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    message = line(error if not hasattr(error, "format_message") else Exception(error.format_message()))
    _end(message.replace(": Value error, ", ": ", 1).removesuffix(".") + hint, _usage_code(error), USAGE)


def _usage_code(error: BaseException) -> str:
    """Return the code of wrong usage; the library's exceptions have none, so theirs follows from the class:
    `usage.no_such_option`.  An unknown command has the class of any other wrong usage."""
    if type(error).__name__ == "UsageError":
        return "usage.invalid"
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return code_of(error) or f"usage.{kind}"


def _discard_output() -> None:
    """Discard the buffer's content, so that the interpreter reports no error at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
