"""The reference of policies: what each does and which parameters it has, as its class declares them."""

from __future__ import annotations

from docs.site.markdown import code, prose, table
from dorm.policies import registry
from dorm.policies.parameters import Parameter

_INTRODUCTION = """\
# Policies and their parameters

[Policies](../policies.md) explains how they share a cluster. `dorm policy set policy=NAME` selects one, and `dorm policy set
KEY=VALUE` changes a parameter of the one in force.
"""


def page() -> str:
    """The page, in Markdown: the policies that are installed."""
    parts = [_INTRODUCTION]
    for name in registry.names():
        rows = [
            (
                code(key),
                code(f"{parameter.default:g}" if isinstance(parameter, Parameter) else _value(parameter.default)),
                f"{parameter.least:g} to {parameter.most:g}" if isinstance(parameter, Parameter) else "",
                prose(parameter.meaning),
            )
            for key, parameter in registry.parameters_of(name).items()
        ]
        laboratory = " It comes with the laboratory." if name in registry.LABORATORY else ""
        parts.append(f"## {name}")
        parts.append(f"{prose(registry.summary_of(name))}.{laboratory}")
        parts.append(table(("parameter", "default", "range", "meaning"), rows) if rows else "It has no parameters.")
    return "\n\n".join(parts) + "\n"


def _value(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)
