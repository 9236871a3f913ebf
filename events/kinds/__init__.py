"""Every kind of event: facts, in the past tense, frozen, with exactly one writer each.

    clients    AppSubmitted AppUpdated AppCancelRequested AppRetryRequested AppHoldRequested AppReleaseRequested
               AppEditRequested AppRestartRequested
    operators  NodeDrainRequested NodeForgetRequested SchedulingPaused SchedulingResumed PolicyChanged SealRequested
               RotationRequested WebhookSet WebhookRemoved WebhookTestRequested
    deliverers AppWaitsLong WebhookTested WebhookDisabled
    admins     TrustEnabled UserAdded UserRemoved NodeEnrolled NodeExpelled TokenAdded TokenRemoved
    agents     NodeJoined NodeReported NodeLeft ContainersPrepared ContainerStarted ContainerExited AppCheckpointed
               AppProgressed ProgressLinesSkipped AppResizeRequested MembershipChanged EpochCompleted
               SessionStarted SessionEnded
    master     Round, and in it AppAccepted AppRejected AppCompleted AppFailed AppCancelled AppKilled GenerationReleased
               GenerationFailed MembersReleased MembersLost MembershipCommitted LiveResizeFailed IdleTicked PolicyFailed
               Resized AppPlanned RecordsRefused AppRevised AppRestarted NodeLost NodeRecovered NodeLeaseEnded
               MasterElected LogSealed;
               beside its rounds LogRotated RotationFailed

Bodies are MessagePack maps whose `kind` names the class.  Adding a field with a default keeps the version; anything else
raises `VERSIONS[kind]` and adds an upcaster to `events.codec`.  Quantities are integers in base units (milli-cores, bytes,
devices, counts), times UTC nanoseconds.

The modules follow the writers: `clients` and `operators`, `agents`, `master` (the facts of a round).  `webhooks` has
the configuration of webhooks and the events of the process that delivers them; `revisions` edits and restarts;
`identities` users, nodes and tokens; `rotation` the moves of the log's past into archives; `sessions` sessions in
containers; `base` the fields of every event and the shared types; `messages` the round and what one message on the
log may hold; `offers` what nodes offer; `gates` holds. Import the names from here.
"""

from __future__ import annotations

from events.kinds.agents import (
    CUT_OFF,
    LONGEST_DOUBTED,
    LONGEST_EXAMPLE,
    MOST_DOUBTED,
    MOST_RUNS,
    AppCheckpointed,
    AppProgressed,
    AppResizeRequested,
    ContainerExited,
    ContainersPrepared,
    ContainerStarted,
    ContainerUse,
    ContainerUsed,
    Doubt,
    EpochCompleted,
    EpochRun,
    ExitReason,
    LossIs,
    MembershipChanged,
    NodeJoined,
    NodeLeft,
    NodeReported,
    ProgressLinesSkipped,
)
from events.kinds.base import NO_FOLDER, Address, Amount, Event, ExitCode, FolderId, Identity, Port, PortOrNone, Step
from events.kinds.clients import (
    AppCancelRequested,
    AppSubmitted,
    AppUpdated,
    NodeDrainRequested,
    PolicyChanged,
    SealRequested,
)
from events.kinds.gates import AppHoldRequested, AppReleaseRequested, OfGates
from events.kinds.identities import (
    MOST_MASTER_KEYS,
    NodeEnrolled,
    NodeExpelled,
    OfIdentities,
    Role,
    TokenAdded,
    TokenRemoved,
    TrustEnabled,
    UserAdded,
    UserRemoved,
)
from events.kinds.master import (
    Adjustment,
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    AppKilled,
    AppPlanned,
    AppRejected,
    Failure,
    GenerationFailed,
    GenerationReleased,
    IdleTicked,
    LiveReason,
    LiveResizeFailed,
    LogSealed,
    MasterElected,
    MasterFact,
    MembershipCommitted,
    MembersLost,
    MembersReleased,
    NodeLeaseEnded,
    NodeLost,
    NodeRecovered,
    Placed,
    PlannedSlot,
    PolicyFailed,
    PolicyPlugin,
    RecordsRefused,
    RefusedRecord,
    Resize,
    Resized,
    Trigger,
    Waiting,
)
from events.kinds.messages import Published, Round, Unknown, Unreadable
from events.kinds.offers import LONGEST_UNFIT, MOST_OFFERED, MOST_SECRETS, MOST_UNFIT, NodeOffers, Unfit, VolumeOffer
from events.kinds.operators import AppRetryRequested, NodeForgetRequested, SchedulingPaused, SchedulingResumed
from events.kinds.revisions import AppEditRequested, AppRestarted, AppRestartRequested, AppRevised
from events.kinds.rotation import LogRotated, OfRotation, RotationFailed, RotationRequested
from events.kinds.sessions import OfSessions, SessionEnded, SessionIs, SessionStarted
from events.kinds.webhooks import (
    AppWaitsLong,
    OfWebhooks,
    WebhookDisabled,
    WebhookRemoved,
    WebhookSet,
    WebhookTested,
    WebhookTestRequested,
)

__all__ = [
    "CUT_OFF",
    "LONGEST_DOUBTED",
    "LONGEST_EXAMPLE",
    "LONGEST_UNFIT",
    "MOST_DOUBTED",
    "MOST_MASTER_KEYS",
    "MOST_OFFERED",
    "MOST_RUNS",
    "MOST_SECRETS",
    "MOST_UNFIT",
    "NO_FOLDER",
    "Address",
    "Adjustment",
    "Amount",
    "AppAccepted",
    "AppCancelRequested",
    "AppCancelled",
    "AppCheckpointed",
    "AppCompleted",
    "AppEditRequested",
    "AppFailed",
    "AppHoldRequested",
    "AppKilled",
    "AppPlanned",
    "AppProgressed",
    "AppRejected",
    "AppReleaseRequested",
    "AppResizeRequested",
    "AppRestartRequested",
    "AppRestarted",
    "AppRetryRequested",
    "AppRevised",
    "AppSubmitted",
    "AppUpdated",
    "AppWaitsLong",
    "ContainerExited",
    "ContainerStarted",
    "ContainerUse",
    "ContainerUsed",
    "ContainersPrepared",
    "Doubt",
    "EpochCompleted",
    "EpochRun",
    "Event",
    "ExitCode",
    "ExitReason",
    "Failure",
    "FolderId",
    "GenerationFailed",
    "GenerationReleased",
    "Identity",
    "IdleTicked",
    "LiveReason",
    "LiveResizeFailed",
    "LogRotated",
    "LogSealed",
    "LossIs",
    "MasterElected",
    "MasterFact",
    "MembersLost",
    "MembersReleased",
    "MembershipChanged",
    "MembershipCommitted",
    "NodeDrainRequested",
    "NodeEnrolled",
    "NodeExpelled",
    "NodeForgetRequested",
    "NodeJoined",
    "NodeLeaseEnded",
    "NodeLeft",
    "NodeLost",
    "NodeOffers",
    "NodeRecovered",
    "NodeReported",
    "OfGates",
    "OfIdentities",
    "OfRotation",
    "OfSessions",
    "OfWebhooks",
    "Placed",
    "PlannedSlot",
    "PolicyChanged",
    "PolicyFailed",
    "PolicyPlugin",
    "Port",
    "PortOrNone",
    "ProgressLinesSkipped",
    "Published",
    "RecordsRefused",
    "RefusedRecord",
    "Resize",
    "Resized",
    "Role",
    "RotationFailed",
    "RotationRequested",
    "Round",
    "SchedulingPaused",
    "SchedulingResumed",
    "SealRequested",
    "SessionEnded",
    "SessionIs",
    "SessionStarted",
    "Step",
    "TokenAdded",
    "TokenRemoved",
    "Trigger",
    "TrustEnabled",
    "Unfit",
    "Unknown",
    "Unreadable",
    "UserAdded",
    "UserRemoved",
    "VolumeOffer",
    "Waiting",
    "WebhookDisabled",
    "WebhookRemoved",
    "WebhookSet",
    "WebhookTestRequested",
    "WebhookTested",
]
