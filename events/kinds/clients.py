"""What clients and operators publish: requests, which the master answers in a `Round`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from events.fields import AppName, FreeText, NodeId, Params, PolicyName, SpecDocument, UserName
from events.kinds.base import Event, FolderId, Identity, Kind


class AppSubmitted(Event, frozen=True):
    """A client submits an app.  The spec is kept as it came, so that a bad one can be refused with a reason."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="submits", on="app", answered=True, shown=True, lists=("news", "apps")
    )

    spec: SpecDocument = None


class AppUpdated(Event, frozen=True):
    """New weight or bounds for an app; None keeps the current value."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, answered=True, shown=True, lists=("news", "apps")
    )

    app: AppName
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] | None = None
    n_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    n_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class AppCancelRequested(Event, frozen=True):
    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, shown=True, lists=("news", "apps")
    )

    app: AppName
    reason: FreeText = ""
    kill: bool = False
    """Kill the containers immediately, without a checkpoint and without the grace time; this includes containers of
    an ended app that are still stopping."""


# --- operators -------------------------------------------------------------------------------------------------------


class NodeDrainRequested(Event, frozen=True):
    """Empty this node by adjustments (or, with `drain=False`, use it again)."""

    KIND: ClassVar[Kind] = Kind(
        writers=("operator", "node"), rule="drains", on="node", shown=True, lists=("news", "nodes")
    )

    node: NodeId
    drain: bool = True
    until_rejoin: bool = False
    """Set by an agent that is about to stop: its next NodeJoined ends this drain. It never ends an operator's
    drain."""
    reason: FreeText = ""
    maintenance: bool = False
    """The node is in maintenance: it may be silent without causing an alarm."""
    identity: Identity = ""
    """Identity of the agent that stops, with `until_rejoin`.  Another machine of the same name is not drained."""


class PolicyChanged(Event, frozen=True):
    """New settings of the cluster; None keeps the current value.  They are on the log, so a replay has them."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", shown=True, lists=("news",))

    policy: PolicyName | None = None
    """A changed policy starts with its defaults, unless `params` or `set_params` override them."""
    params: Params | None = None
    """Replaces all parameters: those not named return to their defaults."""
    set_params: Params | None = None
    """Changes only these parameters; None returns one to its default.  The fold merges them, so two operators who change
    different parameters at once do not undo each other."""
    quiet_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """Time for which the log must be quiet before a new allocation is computed."""
    quiet_limit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """The longest that a busy log can delay an allocation."""
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] | None = None
    """Time for which nothing must have happened before the allocation is reconsidered (see `IdleTicked`), and the shortest
    interval between two such reconsiderations."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] | None = None
    """The longest interval between two heartbeats of a node."""
    node_grace_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    """A node that is silent for this long counts as lost: no new containers are placed there."""
    node_lease_s: Annotated[float, msgspec.Meta(ge=1, le=864_000)] | None = None
    """A node that is silent for this long has stopped its containers by itself. A change is refused as a whole if the
    combination of times would be harmful (`events.times`)."""
    checkpoints: FolderId | None = None
    """Id of the cluster's folder of checkpoints; "" leaves the choice to what the nodes announce."""
    retention_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None = None
    """Time for which an ended app, its containers, logs, checkpoints and outputs are kept."""
    tenant_retention_s: (
        Annotated[
            dict[UserName, Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None], msgspec.Meta(max_length=1000)
        ]
        | None
    ) = None
    """The same for apps of some tenants (on an open cluster, of some users). Changes only these; None resets one to
    `retention_s`."""
    weights: Literal["apps", "tenants"] | None = None
    """Apps against which an app's weight counts: all apps, or the others of its tenant, if all tenants weigh the same."""
    tenant_apps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """Largest number of apps of one tenant, running, waiting or held, at once.  Apps that have ended do not count.  An open
    cluster has no tenants."""
    suspect_after: Annotated[int, msgspec.Meta(ge=0, le=32)] | None = None
    """Number of different apps after whose failures a node is suspect; 0: never.  An app counts as broken when it has failed
    on more nodes than this."""
    suspect_within_s: Annotated[float, msgspec.Meta(ge=60, le=604_800)] | None = None
    """Within which time they have to fail; also how long an app is not placed again on a node where it failed."""


class SealRequested(Event, frozen=True):
    """Seal the log now (`LogSealed`), this record included; the master also seals now and then without a request."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", folded=False, shown=True)
