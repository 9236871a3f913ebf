"""Free texts of a spec: commands, variables, labels, the image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from events.quantities import short
from events.spec.faults import SpecError

if TYPE_CHECKING:
    from events.spec.spec import AppSpec

LARGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one part of a command, or of one `NAME=value`: Linux's limit (MAX_ARG_STRLEN)."""


def check_texts(spec: AppSpec) -> None:
    """Refuse texts that a process, container engine or log can't take: NUL, broken text, reserved names, too many bytes."""
    # Patterns that end in `$`, as JSON Schema wants them, accept a trailing line end.
    for path, name in (("name", spec.name), ("user", spec.user), *(("demand", name) for name in spec.demand)):
        if name.endswith("\n"):
            raise SpecError(f"{path}: {short(name)} can't hold a line end", code=f"spec.{path}.malformed")
    for name in spec.env:
        if not name or "=" in name:
            text = f"env: {short(name)} can't be the name of a variable (it is empty or holds '=')"
            raise SpecError(text, code="spec.env.malformed")
        if name.startswith("DORM_"):
            raise SpecError(f"env.{name[:60]}: names that begin with DORM_ are Dorm's own", code="spec.env.reserved")
    for name, secret in spec.secrets.items():
        if name.endswith("\n") or secret.endswith("\n"):
            raise SpecError(f"secrets: {short(name)} can't hold a line end", code="spec.secrets.malformed")
        if name.startswith("DORM_"):
            raise SpecError(f"secrets.{name}: names that begin with DORM_ are Dorm's own", code="spec.secrets.reserved")
        if name in spec.env:
            raise SpecError(
                f"secrets.{name}: env has a variable of this name too; leave one out", code="spec.secrets.in_env"
            )
    if "" in spec.labels:
        raise SpecError("labels: a label's name is empty", code="spec.labels.malformed")
    for path, text in free_texts(spec):
        if "\x00" in text:
            raise SpecError(f"{path}: can't hold a NUL character", code=f"spec.{field_of(path)}.malformed")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise SpecError(f"{path}: is not valid Unicode text", code=f"spec.{field_of(path)}.not_unicode") from None
        if size > LARGEST_ARGUMENT:
            text = f"{path}: {size:,} bytes are more than a process can be given ({LARGEST_ARGUMENT:,})"
            raise SpecError(text, code=f"spec.{field_of(path)}.too_large")
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        if command and not command[0].strip():
            raise SpecError(f"{path}: the program's name is empty", code=f"spec.{path}.no_program")


def field_of(path: str) -> str:
    """Return the field of a path such as `command[1]` or `env.HOME`."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def free_texts(spec: AppSpec) -> list[tuple[str, str]]:
    """Return every free text of a spec, with its path."""
    texts = [("image", spec.image)]
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        texts += [(f"{path}[{index}]", part) for index, part in enumerate(command)]
    for path, lines in (("requirements", spec.requirements), ("setup", spec.setup)):
        texts += [(f"{path}[{index}]", line) for index, line in enumerate(lines)]
    for path, entries in (("env", spec.env), ("labels", spec.labels)):
        texts += [(path, name) for name in entries]
        texts += [(f"{path}.{short(name)[1:-1]}", f"{name}={value}") for name, value in entries.items()]
    return texts
