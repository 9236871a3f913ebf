"""nats-py imports aiohttp, which it uses for WebSockets alone, and that takes a third of the time in which a command starts.
So something stands for aiohttp until it is used: by a connection to `wss://`, or by whatever else imports it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module; the first use of its content imports it, and is passed on to it, like all later uses."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def load_when_used(name: str) -> None:
    """Load a module at the first use of its content.  Changes nothing if it is loaded, or not installed."""
    if name not in sys.modules and (spec := find_spec(name)) is not None:
        later = sys.modules[name] = _Later(name)
        later.__spec__ = spec  # For programs that ask whether it is installed.
