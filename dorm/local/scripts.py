"""The script in a typed command, such as `python -u train.py`: a typo is noticed before the command is sent."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dorm.local.commands import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?|bash|sh|dash|zsh|torchrun")
_ENDINGS = (".py", ".sh")
_WITHOUT_VALUE = {"-u", "-B", "-O", "-OO", "-s", "-E", "-I", "-e", "-x", "-eu", "-ex"}
"""Options of interpreters without a value; after any other option, no word counts as the script."""


def script_of(words: Sequence[str]) -> str:
    """Return the script that a command names by a relative path, "" if there is none."""
    found = next((word for word in words if word not in _WITHOUT_VALUE and not _is_interpreter(word)), "")
    first = words[0] if words else ""
    named = found if _is_interpreter(first) else first if first.startswith(("./", "../")) else ""
    return named if named.endswith(_ENDINGS) and not named.startswith(("/", "-")) else ""


def _is_interpreter(word: str) -> bool:
    return _INTERPRETER.fullmatch(word.rpartition("/")[2]) is not None


def check_script(words: Sequence[str], folder: Path) -> None:
    """Refuse a command whose script is not in the folder in which it will run.  Raises CommandRefused."""
    script = script_of(words)
    if not script or (folder / script).exists():
        return
    beside = (folder / script).parent
    names = [path.name for path in beside.iterdir() if path.name.endswith(_ENDINGS)] if beside.is_dir() else []
    close = difflib.get_close_matches(Path(script).name, sorted(names), n=1)
    meant = f"; did you mean {Path(script).with_name(close[0])}?" if close else ""
    where = f"there is no {script} in {folder.resolve()}"
    raise CommandRefused(f"{where}{meant or ', in which it would run'}", code="run.script.not_found")


def unshipped(words: Sequence[str], folder: Path) -> str:
    """Return the script of a spec that is next to its file but is not sent to the nodes; "" if there is none."""
    script = script_of(words)
    return script if script and (folder / script).is_file() else ""
