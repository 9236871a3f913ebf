"""What a failed command may have lacked, if its last output shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from dorm.core.state import App

__all__ = ["hint_for"]

_ALONE = "torch.distributed using env:// rendezvous: environment variable"
"""PyTorch's messages if a worker does not know its rank and the addresses of the others."""
_NO_MODULE = "ModuleNotFoundError: No module named"
_OUT_OF_MEMORY = "ran out of memory"


def hint_for(app: App) -> str:
    """Return what to try instead, "" if the failure gives no hint."""
    if app.spec.engine == "plain" and _ALONE in app.end_reason:
        return "it is a training for torchrun: run it with --engine torchrun, or `engine: torchrun` in its spec"
    if _NO_MODULE in app.end_reason and not app.spec.requirements:
        return "packages come with --requirements FILE, or `requirements` in its spec, and modules of your own with its folder"
    if _OUT_OF_MEMORY in app.end_reason and (limit := app.demand.get(MEMORY)):
        more = f"--memory gives it more, as does `dorm edit {app.name} --set demand.memory=…`"
        return f"a container may use {humanize(MEMORY, limit)} of memory: {more}"
    return ""
