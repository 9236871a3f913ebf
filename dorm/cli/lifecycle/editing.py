"""What people give as an edit, made into the document of a spec: a file, or an editor's text."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorm.cli.errors import Fail
from dorm.cli.output import as_yaml
from dorm.local.spec_files import load_document, parse_spec
from events.spec import SpecError, document_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.spec import AppSpec

_EDITORS = ("VISUAL", "EDITOR")


def from_file(path: Path, spec: AppSpec) -> dict[str, Any]:
    """Return the document of a spec file.  A spec without a user keeps the app's, one without a group keeps that of the
    app's sweep, and one without a Python keeps the path of the app's, which may be that of a shell.  Raises SpecError."""
    document = load_document(path)
    if not isinstance(document, dict):
        raise SpecError(f"{path}: a spec is a map with name, command and demand", code="spec.not_a_map")
    group = {"group": document_of(spec)["group"]} if spec.group is not None else {}
    python = {"python": spec.python} if spec.python.startswith("/") else {}
    return {"user": spec.user, **group, **python, **document}


async def from_editor(spec: AppSpec, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
    """Have the user edit the spec in `$VISUAL` or `$EDITOR`, again with the reason as long as `check` refuses it; return None
    if it was left as it was.  Raises Fail if no editor can be started, or it fails."""
    before = as_yaml(document_of(spec))
    command = shlex.split(next((found for name in _EDITORS if (found := os.environ.get(name))), "vi"))
    text, why = before, ""
    while True:
        edited = await _edited(command, spec.name, _head(spec.name, why) + text)
        text = "".join(line for line in edited.splitlines(keepends=True) if not line.startswith("#"))
        if text.strip() in ("", before.strip()):
            return None
        try:
            document = parse_spec(text)
            if not isinstance(document, dict):
                raise SpecError("a spec is a map with name, command and demand", code="spec.not_a_map")
            check(document)
            return document
        except SpecError as error:
            if str(error) == why:
                raise
            why = str(error)


def _head(name: str, why: str) -> str:
    lines = [
        f"The spec of {name}.  Lines that begin with # are ignored; leave it as it is, or empty, to change nothing."
    ]
    lines += [f"refused: {' '.join(why.split())}"] if why else []
    return "".join(f"# {line}\n" for line in lines)


async def _edited(command: list[str], name: str, text: str) -> str:
    """Return the text as the editor leaves it."""
    number, path = await asyncio.to_thread(tempfile.mkstemp, ".yaml", f"dorm-{name}-")
    file = Path(path)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as written:
            written.write(text)
        try:
            editor = await asyncio.create_subprocess_exec(*command, path)
        except OSError as error:
            hint = "set EDITOR, or give the change by -f or --set"
            raise Fail(
                f"the editor {command[0]!r} can't be started ({error.strerror}); {hint}", code="editor.failed"
            ) from None
        if code := await editor.wait():
            raise Fail(f"the editor ended with exit code {code}, so nothing is changed", code="editor.failed")
        return await asyncio.to_thread(file.read_text, "utf-8", "replace")
    finally:
        await asyncio.to_thread(file.unlink, missing_ok=True)
