"""Starting from another app's checkpoint: which app, which step, and whether it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.identities import tenant_in
from events.spec import SpecError
from events.spec.gates import origin_of

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.spec import AppSpec


def with_origin(state: State, spec: AppSpec, submission: str) -> AppSpec:
    """Return the spec with the app's id and the step to which `from` refers. Raises SpecError if this tenant has no
    such app, or the app has no such checkpoint."""
    origin = origin_of(spec.origin)
    if origin is None:
        return spec
    tenant = tenant_in(submission)
    app = state.find_app(origin.app, tenant)
    if app is None or tenant_in(app.submission) != tenant:
        raise SpecError(
            f"from: there is no app {origin.app}, or no longer; `dorm ps --all` lists those that are kept",
            code="spec.from.not_found",
        )
    if app.checkpoint is None:
        raise SpecError(
            f"from: {app.name} has reported no checkpoint; `dorm checkpoints {app.name}` shows what is there",
            code="spec.from.no_checkpoint",
        )
    if origin.step is not None and origin.step > app.checkpoint:
        raise SpecError(
            f"from: the last checkpoint that {app.name} reported is of step {app.checkpoint}, not {origin.step}",
            code="spec.from.no_step",
        )
    step = app.checkpoint if origin.step is None else origin.step
    later = origin.later or step == app.checkpoint
    return msgspec.structs.replace(spec, origin=origin._replace(app=app.id, step=step, later=later).text)


def begin(state: State, app: App) -> None:
    """Give a new app the checkpoint that it starts from."""
    origin = origin_of(app.spec.origin)
    if origin is not None:
        before = state.apps.get(origin.app)
        app.checkpoint = origin.step
        app.checkpoint_in = before.checkpoint_in if before is not None else ""
