"""Errors about folders."""

from __future__ import annotations

from events.errors import DormError


class Unshippable(DormError):
    """The folder can't be shipped as it is."""

    code = "workdir.unshippable"


class OverQuota(Unshippable):
    """The tenant's shipped folders would take more than they may."""

    code = "workdir.over_quota"


class Changing(Unshippable):
    """A file changed while it was packed."""

    code = "workdir.file.changing"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: it changes while the folder is packed; stop what writes it, or leave it out by a line in .dormignore"
        )
        self.path = path
