"""Contexts: clusters by name, with address and credentials, in one file, like those of kubectl and nats.

    {"current": "lab", "contexts": {"lab": {"url": "tls://10.0.0.1:4222", "cluster": "lab", "credentials": "…/alice.json"}}}

Keys are not in it, only paths of credentials files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from dorm.security.files import SecurityError, private_folder, write_private

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cluster as one identity."""

    url: str
    cluster: str
    credentials: str = ""
    """Path of a credentials file; "" for an open cluster."""
    folder: str = ""
    """The cluster's folder with its keys, on the machine of its admin; "" elsewhere."""


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole file."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Raises SecurityError."""
        context = self.contexts.get(name)
        if context is None:
            there = ", ".join(sorted(self.contexts))
            raise SecurityError(
                f"there is no context {name[:80]!r}"
                + (f", only {there}" if there else "; `dorm context add` creates one"),
                code="context.not_found",
            )
        return context

    def using(self, name: str) -> Contexts:
        """Return the same contexts with another current one, "" for none.  Raises SecurityError."""
        if name:
            self.find(name)
        return msgspec.structs.replace(self, current=name)

    def having(self, name: str, context: Context) -> Contexts:
        """Return the same contexts with one added, or replaced under this name.  Raises SecurityError."""
        if not _NAME.fullmatch(name):
            raise SecurityError(
                "the name of a context has 1 to 64 letters, digits, '.', '-' and '_'", code="context.name.malformed"
            )
        return msgspec.structs.replace(self, contexts=dict(sorted({**self.contexts, name: context}.items())))

    def without(self, name: str) -> Contexts:
        """Raises SecurityError."""
        self.find(name)
        left = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts("" if self.current == name else self.current, left)


def read_contexts(file: Path) -> Contexts:
    """Read the file; an absent one holds none.  Raises SecurityError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise SecurityError(f"{file}: {error.strerror}", code="context.unreadable") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise SecurityError(f"{file} holds no contexts; repair or remove it", code="context.unreadable") from None


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Raises SecurityError."""
    private_folder(file.parent)
    write_private(file, msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
