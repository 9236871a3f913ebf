"""Verbs for an existing app: hold it, restart it, edit its spec."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dorm.remote.answers import Edited, Restarted, Spec, Stored
from dorm.remote.asks import JSON, Ask, path_of, sending
from dorm.remote.steps import done

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.remote.steps import One

YAML = "application/yaml"


def retry(app: str) -> One[Stored]:
    """Retry an app now that pauses after a failure.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("apps", app, "retry"), {}, Stored.of, repeatable=False))


def restart(app: str, *, fresh: bool = False, fall_back: bool = False, reason: str = "") -> One[Restarted]:
    """Start an app again, from its last checkpoint or `fresh`; `fall_back` sets a doubtful checkpoint aside, now and later.
    Raises NotFound, Refused."""
    body = {"fresh": fresh, "fall_back": fall_back, "reason": reason}
    return done(sending("POST", path_of("apps", app, "restart"), body, Restarted.of, repeatable=False))


def hold(app: str, reason: str = "") -> One[Stored]:
    """Keep an app from running, with a checkpoint, until it is released.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("apps", app, "hold"), {"reason": reason}, Stored.of, repeatable=False))


def release(app: str, reason: str = "") -> One[Stored]:
    """Release a held app.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("apps", app, "release"), {"reason": reason}, Stored.of, repeatable=False))


def spec(app: str, *, at: str | None = None, min_seq: str | None = None) -> One[Spec]:
    """Return the spec of an app, with the tag that an edit of it names.  Raises NotFound."""
    return done(Ask("GET", path_of("apps", app, "spec", at=at, min_seq=min_seq), Spec.of))


def edit(
    app: str,
    spec: Mapping[str, Any] | str | None = None,
    *,
    patch: Mapping[str, Any] | None = None,
    tag: str | None = None,
) -> One[Edited]:
    """Give an app another spec, a document or YAML, or change single fields by a merge patch, in which None stands for a
    default.  With the `tag` of the spec that the edit was made from it is refused (`Changed`) if someone else was faster.
    Raises NotFound, Refused, Changed."""
    headers = {"If-Match": f'"{tag}"'} if tag is not None else {}
    body, kind = (spec.encode(), YAML) if isinstance(spec, str) else (json.dumps(_edit(spec, patch)).encode(), JSON)
    method = "PUT" if patch is None else "PATCH"
    headers["Content-Type"] = kind
    return done(Ask(method, path_of("apps", app, "spec"), Edited.of, body, headers, repeatable=False))


def try_edit(
    app: str, spec: Mapping[str, Any] | None = None, *, patch: Mapping[str, Any] | None = None
) -> One[dict[str, Any]]:
    """Return what an edit would do: which fields differ (`at_once`, `by_restart`), and whom the next decision would resize
    (`changes`).  Raises NotFound, Refused."""
    body = {"spec": _edit(spec, None)} if patch is None else {"patch": _edit(spec, patch)}
    return done(sending("POST", path_of("apps", app, "spec", "try"), body, dict))


def _edit(spec: Mapping[str, Any] | str | None, patch: Mapping[str, Any] | None) -> dict[str, Any]:
    given = [dict(change) for change in (spec, patch) if change is not None and not isinstance(change, str)]
    if len(given) != 1 or (isinstance(spec, str) and patch is not None):
        raise ValueError("give a spec or a patch, one of them")
    return given[0]
