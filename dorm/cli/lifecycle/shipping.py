"""`workdir: .` of an edited spec: the folder is shipped before the edit is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.cli.errors import Fail

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import App


async def with_folder(
    connected: Client, document: dict[str, Any], app: App, base: Path, *, send: bool, show_ignored: bool
) -> dict[str, Any]:
    """Return the document with the hash of its folder in place of a path, relative to `base`; any other document as it is.

    The folder is shipped with `send`, else only looked at.  What is left out is said, each entry with `show_ignored`.  If nothing in it has changed, the app keeps what it has, so that
    a new commit of the same files restarts nothing.  Raises Fail for someone else's app, SpecError, Unshippable, and the log's
    errors."""
    if not isinstance(document.get("workdir"), str):
        return document
    from dorm.cli.project.shipping import show_left_out, with_workdir
    from dorm.workdir import folder_as_shipped, tenant_of
    from events.spec import Workdir, check_spec

    spec, before = check_spec({**document, "user": app.user}), app.owners_spec.workdir
    if await tenant_of(connected, app.user) != app.tenant:
        text = (
            f"workdir: {app.name} belongs to {app.tenant}, and a folder is shipped for its owner alone; name the hash of one "
            "that the owner has shipped (`dorm describe`), or let the owner edit it"
        )
        raise Fail(text, code="edit.workdir_of_another")
    if send:
        found = (await with_workdir(connected, spec, base, show_ignored=show_ignored)).workdir
    else:
        if show_ignored:
            show_left_out(spec, base)
        found = await folder_as_shipped(connected.log.files, base / str(spec.workdir))
    if isinstance(before, Workdir) and isinstance(found, Workdir) and before.hash == found.hash:
        found = before
    return {**document, "workdir": msgspec.to_builtins(found)}
