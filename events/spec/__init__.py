"""An app's spec, which any client may send.

    spec          the fields, and the one gate: `check_spec` makes a `CheckedSpec`
    requirements  which nodes an app may use: an expression over node labels
    faults        what is wrong with a document, in one line for its author

Start with `spec`.  Imports `events.quantities` and `events.errors`.
"""

from __future__ import annotations

from events.spec.spec import (
    LARGEST_ARGUMENT,
    LARGEST_SPEC,
    OWN_LIMITS,
    AppSpec,
    CheckedSpec,
    Deadlines,
    Retries,
    SpecError,
    check_gang,
    check_spec,
    document_of,
    spec_schema,
)

__all__ = [
    "LARGEST_ARGUMENT",
    "LARGEST_SPEC",
    "OWN_LIMITS",
    "AppSpec",
    "CheckedSpec",
    "Deadlines",
    "Retries",
    "SpecError",
    "check_gang",
    "check_spec",
    "document_of",
    "spec_schema",
]
