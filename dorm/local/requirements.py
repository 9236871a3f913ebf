"""The packages of a requirements.txt or a uv.lock, as the lines of a spec's `requirements`.

A requirements.txt may include others (`-r`; `-c` is refused).  A uv.lock is exported by uv, with the hash of each file, so
nodes install exactly the locked files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dorm.local.files_beside import read_beside
from events.quantities import short
from events.spec import SpecError

LARGEST = 192 * 1024
"""Bytes of all files together: they become a part of the spec."""
_DEEPEST = 8
_UV_S = 60.0
_INCLUDED = re.compile(r"(?:-r|--requirement)(?:\s+|=)(\S+)$")
_COMMENT = re.compile(r"(^|\s)#.*$")


def requirements_of(path: Any, folder: Path) -> list[str]:
    """Return the requirements that a file holds, one in each line.  Raises SpecError."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise SpecError(
            f"requirements_file: expected a path such as requirements.txt or uv.lock, got {short(path)}",
            code="spec.requirements_file.wrong_type",
        )
    if Path(path).name == "uv.lock":
        return _lines(_exported(folder / path), folder / Path(path).parent, 0)
    return _lines(read_beside(folder, path, LARGEST, "requirements_file"), (folder / path).parent, 0)


def _lines(text: str, folder: Path, depth: int) -> list[str]:
    """Return the logical lines, without comments, and with those of files that are included."""
    found: list[str] = []
    for line in re.sub(r"\\\r?\n\s*", " ", text).splitlines():
        words = _COMMENT.sub("", line).strip()
        included = _INCLUDED.match(words)
        if included is not None:
            if depth >= _DEEPEST:
                raise SpecError(
                    f"requirements_file: {included[1]}: files include each other in more than {_DEEPEST} levels",
                    code="spec.requirements_file.too_deep",
                )
            inner = read_beside(folder, included[1], LARGEST, "requirements_file")
            found += _lines(inner, (folder / included[1]).parent, depth + 1)
        elif words:
            found.append(words)
    return found


def _exported(lock: Path) -> str:
    """Return what uv exports of a lock file.  Raises SpecError."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise SpecError(
            f"requirements_file: {lock}: uv is not installed here, which reads its lock files; install it, or write "
            "`uv export --no-emit-project -o requirements.txt` elsewhere",
            code="spec.requirements_file.no_uv",
        )
    words = [uv, "export", "--frozen", "--no-emit-project", "--no-dev", "--no-header", "--format", "requirements-txt"]
    try:
        done = subprocess.run(
            [*words, "--project", str(lock.absolute().parent)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UV_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"requirements_file: {lock}: {error}", code="spec.requirements_file.uv_failed") from None
    if done.returncode or not lock.is_file():
        said = " ".join(done.stderr.split())[-300:] or "there is no such file"
        raise SpecError(f"requirements_file: {lock}: {said}", code="spec.requirements_file.uv_failed")
    return done.stdout
