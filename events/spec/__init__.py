"""An app's spec, which any client may send.

    spec          the fields
    declared      what each field says about itself
    checking      the one gate: `check_spec` makes a `CheckedSpec`; durations, resources, texts, secrets
    engines       the engines, and their options
    editing       what of an edited spec holds at once, and what needs a restart
    value         what its completion is worth, and how much work it has
    provided      what its containers find: the project folder, volumes, packages
    abilities     what its nodes' agents have to be able to do
    groups        the sweep or array that an app belongs to
    sweeps        one document as the specs of many apps
    gates         when it may run: which apps it waits for, and from whose checkpoint it starts
    notify        URLs that are called about it
    requirements  which nodes an app may use: an expression over node labels
    variables     the variables of its containers
    faults        what is wrong with a document, in one line for its author

Start with `spec`, then `checking`.  Imports `events.quantities` and `events.errors`.
"""

from __future__ import annotations

from events.spec.checking import (
    LARGEST_ARGUMENT,
    LARGEST_SPEC,
    LONGEST_GRACE_S,
    can_be_read,
    check_gang,
    check_roles,
    check_spec,
)
from events.spec.engines import ENGINES, EngineName, EngineOptions, server_count
from events.spec.faults import SpecError
from events.spec.groups import Group
from events.spec.provided import Volume, Workdir, as_shipped, check_shipped, shipped, volumes_of
from events.spec.spec import (
    OWN_LIMITS,
    AppSpec,
    BatchRange,
    BatchSize,
    CheckedSpec,
    Deadlines,
    Retries,
    StopSignal,
    document_of,
    spec_schema,
)
from events.spec.value import Utility, Work

__all__ = [
    "ENGINES",
    "LARGEST_ARGUMENT",
    "LARGEST_SPEC",
    "LONGEST_GRACE_S",
    "OWN_LIMITS",
    "AppSpec",
    "BatchRange",
    "BatchSize",
    "CheckedSpec",
    "Deadlines",
    "EngineName",
    "EngineOptions",
    "Group",
    "Retries",
    "SpecError",
    "StopSignal",
    "Utility",
    "Volume",
    "Work",
    "Workdir",
    "as_shipped",
    "can_be_read",
    "check_gang",
    "check_roles",
    "check_shipped",
    "check_spec",
    "document_of",
    "server_count",
    "shipped",
    "spec_schema",
    "volumes_of",
]
