"""The engine `plain`: the command as it is.  The contract's own variables contain everything that a worker needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.engines.interface import Launch

if TYPE_CHECKING:
    from agents.engines.interface import Place


def prepare(place: Place) -> Launch:
    return Launch(place.command)
