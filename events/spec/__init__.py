"""An app's spec, which any client may send.

    spec          the fields, and the one gate: `check_spec` makes a `CheckedSpec`
    engines       the engines, and their options
    value         what its completion is worth, and how much work it has
    requirements  which nodes an app may use: an expression over node labels
    faults        what is wrong with a document, in one line for its author

Start with `spec`.  Imports `events.quantities` and `events.errors`.
"""

from __future__ import annotations

from events.spec.engines import ENGINES, EngineName, EngineOptions, server_count
from events.spec.faults import SpecError
from events.spec.spec import (
    LARGEST_ARGUMENT,
    LARGEST_SPEC,
    OWN_LIMITS,
    AppSpec,
    BatchRange,
    BatchSize,
    CheckedSpec,
    Deadlines,
    Retries,
    check_gang,
    check_roles,
    check_spec,
    document_of,
    spec_schema,
)
from events.spec.value import Utility, Work

__all__ = [
    "ENGINES",
    "LARGEST_ARGUMENT",
    "LARGEST_SPEC",
    "OWN_LIMITS",
    "AppSpec",
    "BatchRange",
    "BatchSize",
    "CheckedSpec",
    "Deadlines",
    "EngineName",
    "EngineOptions",
    "Retries",
    "SpecError",
    "Utility",
    "Work",
    "check_gang",
    "check_roles",
    "check_spec",
    "document_of",
    "server_count",
    "spec_schema",
]
