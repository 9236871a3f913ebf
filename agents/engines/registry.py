"""The engines by the name that a spec gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agents.engines import elastic, mpi, plain, ps, tensorflow, torchrun

if TYPE_CHECKING:
    from agents.engines.interface import Engine, Launch, Place
    from events.spec import EngineName

_ENGINES: Final[dict[EngineName, Engine]] = {
    "plain": plain.prepare,
    "torchrun": torchrun.prepare,
    "mpi": mpi.prepare,
    "tensorflow": tensorflow.prepare,
    "ps": ps.prepare,
    "elastic": elastic.prepare,
}


def prepare(place: Place) -> Launch:
    """Return the additions of the spec's engine to a container."""
    return _ENGINES[place.spec.engine](place)
