"""Ways to break code on purpose, for `variants`."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.history import History


class Variant(msgspec.Struct, frozen=True):
    """`apply` breaks code by a patch, and may return a function that breaks parts of a history."""

    apply: Any

    @contextlib.contextmanager
    def broken(self) -> Iterator[Callable[[History], None]]:
        """A context in which the code is broken; yields what to do to each history."""
        with pytest.MonkeyPatch.context() as patch:
            yield self.apply(patch) or leave


def leave(history: History) -> None:
    del history


def code(function: Any, *changes: tuple[str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace pieces of the function's source, wherever it is imported.  Missing pieces are an error at once, because an
    outdated variant must not count as caught."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert old in source, f"{function.__qualname__} has no {old!r}"
        source = source.replace(old, new)

    def apply(patch: pytest.MonkeyPatch) -> None:
        changed = dict(function.__globals__)
        exec(
            compile("from __future__ import annotations\n" + source, f"<variant of {function.__name__}>", "exec"),
            changed,
        )
        patch.setattr(function, "__code__", changed[function.__name__].__code__)

    return apply


def server(**settings: Any) -> Callable[[pytest.MonkeyPatch], Callable[[History], None]]:
    def alter(history: History) -> None:
        for name, value in settings.items():
            setattr(history.world.server, name, value)

    return lambda _: alter


def together(*parts: Callable[[pytest.MonkeyPatch], Any]) -> Callable[[pytest.MonkeyPatch], Callable[[History], None]]:
    def apply(patch: pytest.MonkeyPatch) -> Callable[[History], None]:
        alters = [part(patch) or leave for part in parts]

        def alter(history: History) -> None:
            for one in alters:
                one(history)

        return alter

    return apply
