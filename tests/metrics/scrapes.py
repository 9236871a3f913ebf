"""A scrape, read back by Prometheus's own parser; and what an expression in PromQL refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator

Series = dict[str, list[dict[str, str]]]
"""By the name of a sample, the labels of each series."""


def values(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    families = list(text_string_to_metric_families(body.decode()))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def series(body: bytes) -> Series:
    found: Series = {}
    for name, labels in values(body):
        found.setdefault(name, []).append(dict(labels))
    return found


class Reference(NamedTuple):
    """One selector of an expression."""

    name: str
    equal: dict[str, str]
    """Labels that have to have a value."""
    labels: frozenset[str]
    """All labels that it names, in matchers and in the groupings around it."""


def references(expression: str) -> list[Reference]:
    """Everything that an expression selects.  Raises ValueError if it is not PromQL."""
    return list(_walk(promql_parser.parse(expression), frozenset()))


def _walk(node: Any, grouped: frozenset[str]) -> Iterator[Reference]:
    p = promql_parser
    match node:
        case p.VectorSelector():
            matchers = list(node.matchers.matchers)
            equal = {one.name: one.value for one in matchers if one.op == p.MatchOp.Equal}
            yield Reference(node.name or "", equal, grouped | {one.name for one in matchers})
        case p.MatrixSelector():
            yield from _walk(node.vector_selector, grouped)
        case p.SubqueryExpr() | p.ParenExpr() | p.UnaryExpr():
            yield from _walk(node.expr, grouped)
        case p.AggregateExpr():
            labels = node.modifier.labels if node.modifier is not None else []
            yield from _walk(node.expr, grouped | set(labels))
        case p.Call():
            for argument in node.args:
                yield from _walk(argument, grouped)
        case p.BinaryExpr():
            yield from _walk(node.lhs, grouped)
            yield from _walk(node.rhs, grouped)
        case p.NumberLiteral() | p.StringLiteral():
            pass
        case _:
            raise ValueError(f"unknown part of an expression: {type(node)}")
