"""`from` in a spec: the app from whose checkpoint it starts.

    APP         its last checkpoint
    APP@STEP    the one of this step, which has to be in the folder under a name with that number
    APP@STEP+   the one of this step or of a later one

Specs on the log have an app's id and a step: the master finds the app, and writes what it found (`AppAccepted`).
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

PATTERN = r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?(@[0-9]{1,15}\+?)?$"
OriginText = Annotated[
    str,
    msgspec.Meta(
        pattern=PATTERN,
        description="starts from a copy of this app's checkpoint, with `resume`: APP for the last one, or APP@STEP",
        examples=["digits-mlp", "digits-mlp@120"],
    ),
]
_PATTERN = re.compile(PATTERN)


class Origin(NamedTuple):
    """A checkpoint of an app."""

    app: str
    """Name or id."""
    step: int | None
    """None for its last one."""
    later: bool
    """Whether a later checkpoint is acceptable too."""

    @property
    def text(self) -> str:
        return self.app if self.step is None else f"{self.app}@{self.step}{'+' if self.later else ''}"


def origin_of(text: str) -> Origin | None:
    """Return the checkpoint that the text names; None for an empty text."""
    if not text or _PATTERN.fullmatch(text) is None:
        return None
    app, _, step = text.partition("@")
    return Origin(app, int(step.rstrip("+")) if step else None, not step or step.endswith("+"))
