"""Which submissions may run at all: the gate between what anybody may send and what the cluster takes on."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from events.kinds import AppAccepted, AppRejected
from events.quantities import humanize
from events.spec import LARGEST_SPEC, SpecError, check_spec

if TYPE_CHECKING:
    from dorm.core.state import State, Submission
    from events.spec import AppSpec


def app_id(name: str, submission: str) -> str:
    """The id of an app: its name and a digest of its submission's id, so a repeated submission is the same app, while
    a later app of the same name is another one."""
    digest = hashlib.blake2b(submission.encode(), digest_size=5).digest()
    return f"{name}-{base64.b32encode(digest).decode().lower()[:6]}"


def answer(state: State, submission: Submission, taken: dict[str, str]) -> AppAccepted | AppRejected:
    """What to say to one submission.

    `taken` maps names that were given away earlier in the same round to their apps.
    """
    if submission.app:
        return AppRejected(
            app=submission.app,
            submission=submission.id,
            reason=submission.refused,
            refused="update",
            cause=submission.id,
        )
    try:
        spec = _checked(submission)
        _check_name(state, spec, taken)
        check_room(state, spec.resources(), spec.n_min)
    except SpecError as error:
        name = name_of(submission.spec)
        return AppRejected(
            app=app_id(name, submission.id) if name else "",
            submission=submission.id,
            reason=str(error),
            cause=str(submission.seq),
        )
    return AppAccepted(
        app=app_id(spec.name, submission.id), spec=spec, submission=submission.id, cause=str(submission.seq)
    )


def _checked(submission: Submission) -> AppSpec:
    if submission.refused:
        raise SpecError(submission.refused)
    if submission.size > LARGEST_SPEC:
        raise SpecError(f"the submission has {submission.size:,} bytes; at most {LARGEST_SPEC:,} are taken")
    return check_spec(submission.spec)


def name_of(document: Any) -> str:
    """The name that a submission gives, checked or not, '' where it has none that can be shown."""
    name = document.get("name") if isinstance(document, dict) else None
    return name[:48] if isinstance(name, str) and name.isascii() and name.isprintable() else ""


def _check_name(state: State, spec: AppSpec, taken: dict[str, str]) -> None:
    holder = taken.get(spec.name) or state.names.get(spec.name)
    if holder:
        raise SpecError(f"an app named {spec.name!r} is there already ({holder}); cancel it or choose another name")


def check_room(state: State, demand: dict[str, int], n_min: int) -> None:
    """An app that the known nodes could not run even if they were empty never runs; before any node joined it waits.

    Raises SpecError."""
    if not state.nodes:
        return
    nodes = [state.nodes[node] for node in sorted(state.nodes)]
    for name, amount in demand.items():
        most = max(node.capacity.get(name, 0) for node in nodes)
        if amount > most:
            raise SpecError(
                f"demand.{name}: one container needs {humanize(name, amount)}, "
                f"and no node has more than {humanize(name, most)}"
            )
    fitting = sum(min(node.capacity.get(name, 0) // amount for name, amount in demand.items()) for node in nodes)
    if fitting < n_min:
        raise SpecError(
            f"n_min: {n_min} containers of this demand can't run at once; all {len(nodes)} nodes together, "
            f"empty, take {fitting}"
        )
