"""Which nodes an app may use: an expression over node labels, such as

    gpu_type == "h100" and zone in ["a", "b"] and not has spot

A node either satisfies it or does not; there is no third result, whatever its labels are.  A label that a node lacks equals
nothing, so there `gpu_type == "h100"` is false and `gpu_type != "h100"` true; `has gpu_type` tests whether the label exists.

    either   = both { "or" both }
    both     = one { "and" one }
    one      = "not" one | "(" either ")" | "has" LABEL | LABEL test
    test     = "==" VALUE | "!=" VALUE | [ "not" ] "in" "[" VALUE { "," VALUE } "]"
    LABEL    = letter { letter | digit | "_" | "." | "/" | "-" }, none of the words and, or, not, in, has
    VALUE    = text in double or single quotes (a backslash before a quote or a backslash), or a bare number

Labels and the values they are compared with are text: a bare `8` is the text "8", neither "8.0" nor "08".  Expressions are
never evaluated by Python; one has at most 1,024 characters and 32 levels of brackets and `not`.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from events.errors import DormError
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 1024
"""Characters of an expression."""

LONGEST_DERIVED = 16_384
"""Characters of an expression that the core makes of an app's own and of what else its spec needs of a node."""

DEEPEST = 32
"""Nesting levels of brackets and `not`."""


class RequirementError(DormError, ValueError):
    """An expression can't be read; the message is one line with what was expected, and at which character."""

    code = "requirement.malformed"


_WORDS = ("and", "or", "not", "in", "has")
_LABEL = r"[A-Za-z][A-Za-z0-9_./-]*"
_TOKEN = re.compile(
    rf"""(?P<label>{_LABEL})
    | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?![A-Za-z0-9_./-]))
    | (?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
    | (?P<sign>==|!=|[()\[\],])
    | (?P<other>-?[0-9][A-Za-z0-9_./-]*|&&|\|\||<=|>=|.)""",
    re.VERBOSE | re.DOTALL,
)
_SPACE = re.compile(r"[ \t\r\n]*")
# Control characters, line ends, and halves of surrogate pairs: they can't be shown or stored.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(.)")
_INSTEAD = {"=": "==", "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}
_END = "the end"
_VALUE = 'a value in quotes, such as "h100"'


class Comparison(msgspec.Struct, frozen=True):
    """One label compared with some values."""

    label: str
    values: tuple[str, ...]
    """It matches any of them; empty if only the label's presence is tested."""
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        there = labels.get(self.label) in self.values if self.values else self.label in labels
        return there is not self.negated

    def __str__(self) -> str:
        if not self.values:
            return f"{'not ' if self.negated else ''}has {self.label}"
        if len(self.values) == 1:
            return f"{self.label} {'!=' if self.negated else '=='} {_quoted(self.values[0])}"
        return f"{self.label} {'not in' if self.negated else 'in'} [{', '.join(map(_quoted, self.values))}]"


class Not(msgspec.Struct, frozen=True):
    """The opposite of its part."""

    part: Expression

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.part.matches(labels)

    def __str__(self) -> str:
        return f"not ({self.part})"


class Every(msgspec.Struct, frozen=True):
    """All of its parts; none of them is an `Every`."""

    parts: tuple[Expression, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(part.matches(labels) for part in self.parts)

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Either) else str(part) for part in self.parts)


class Either(msgspec.Struct, frozen=True):
    """At least one of its parts; none of them is an `Either`."""

    parts: tuple[Expression, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return any(part.matches(labels) for part in self.parts)

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


Expression = Comparison | Not | Every | Either


class Requirement(msgspec.Struct, frozen=True):
    """A checked expression; two are equal if they are written the same in canonical form.  `str()` is that form, '' for any
    node.  It is an equivalent expression, though it may exceed the length limit (`a==1` becomes `a == "1"`)."""

    expression: Expression | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels may be used."""
        return self.expression is None or self.expression.matches(labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels that it tests, sorted."""
        return tuple(sorted(set(_labels(self.expression)))) if self.expression is not None else ()

    def __str__(self) -> str:
        return "" if self.expression is None else str(self.expression)


@functools.lru_cache(maxsize=4096)
def requirement(text: str, longest: int = LONGEST) -> Requirement:
    """Parse a requirement of at most `longest` characters; every node satisfies an empty or blank one.

    Raises RequirementError with one line that says what was expected, and at which character (counted from 1)."""
    if len(text) > longest:
        raise RequirementError(
            f"{len(text):,} characters are too many; at most {longest:,} are taken", code="requirement.too_long"
        )
    tokens = _tokens(text)
    if len(tokens) == 1:
        return Requirement()
    # A derived expression has the app's own in brackets, which may be as deep as it gets.
    return Requirement(_Parser(tokens, DEEPEST + (longest > LONGEST)).whole())


def is_label(name: str) -> bool:
    """Return whether an expression can test a label of this name."""
    return re.fullmatch(_LABEL, name) is not None and name not in _WORDS


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _labels(expression: Expression) -> list[str]:
    match expression:
        case Comparison(label=label):
            return [label]
        case Not(part=part):
            return _labels(part)
        case Every(parts=parts) | Either(parts=parts):
            return [name for part in parts for name in _labels(part)]


class _Token(NamedTuple):
    kind: str
    """`label`, `word`, `number`, `text`, `sign`, `other` or `end`."""
    value: str
    at: int
    """The character at which it starts, counted from 1."""


def _tokens(text: str) -> list[_Token]:
    """Return words and signs, and an `end`.  Raises RequirementError only for malformed text in quotes."""
    tokens = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        token = _TOKEN.match(text, at)
        if token is None:
            tokens.append(_Token("end", "", len(text) + 1))
            return tokens
        kind, value = token.lastgroup or "other", token[0]
        if value in ('"', "'"):
            raise RequirementError(_why_no_text(text, at))
        if kind == "label" and value in _WORDS:
            kind = "word"
        if kind == "text":
            value = _ESCAPED.sub(r"\1", value[1:-1])
            if bad := _UNPRINTABLE.search(value):
                raise RequirementError(f"the text at character {at + 1} can't hold {short(bad[0])}")
        tokens.append(_Token(kind, value, at + 1))
        at = token.end()


def _why_no_text(text: str, at: int) -> str:
    """Explain why a quote starts no text: a backslash before another character, or no closing quote."""
    escape = re.compile(rf"[^{text[at]}\\]*(?:\\[\"'\\][^{text[at]}\\]*)*\\(.)", re.DOTALL).match(text, at + 1)
    if escape:
        return f"expected a quote or a backslash after the backslash at character {escape.end() - 1}, got {short(escape[1])}"
    return f"the text that begins at character {at + 1} has no closing quote"


class _Parser:
    """A recursive descent parser, with one method for each rule of the grammar."""

    def __init__(self, tokens: list[_Token], deepest: int) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._deepest = deepest

    def whole(self) -> Expression:
        expression = self._either()
        if self._token.kind != "end":
            raise self._expected('"and", "or" or the end')
        return expression

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, kind: str, value: str) -> bool:
        """Consume the next token if it is this one; return whether it was."""
        matches = self._token.kind == kind and self._token.value == value
        self._next += matches
        return matches

    def _need(self, sign: str, wanted: str) -> None:
        if not self._take("sign", sign):
            raise self._expected(wanted)

    def _expected(self, wanted: str, hint: str = "") -> RequirementError:
        token = self._token
        got = _END if token.kind == "end" else short(token.value)
        if token.kind == "other" and token.value in _INSTEAD:
            hint = f"; write {_INSTEAD[token.value]}"
        elif token.kind == "label" and token.value.lower() in _WORDS:
            hint = f"; write {token.value.lower()}"
        return RequirementError(f"expected {wanted} at character {token.at}, got {got}{hint}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > self._deepest:
            raise RequirementError(
                f"more than {self._deepest} levels of brackets and not, at character {self._token.at}",
                code="requirement.too_deep",
            )

    def _either(self) -> Expression:
        parts = [self._both()]
        while self._take("word", "or"):
            parts.append(self._both())
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Either) else (part,))]
        return Either(tuple(flat)) if len(flat) > 1 else flat[0]

    def _both(self) -> Expression:
        parts = [self._clause()]
        while self._take("word", "and"):
            parts.append(self._clause())
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Every) else (part,))]
        return Every(tuple(flat)) if len(flat) > 1 else flat[0]

    def _clause(self) -> Expression:
        if self._take("word", "not"):
            self._deeper()
            part = self._clause()
            self._depth -= 1
            return _opposite(part)
        if self._take("sign", "("):
            self._deeper()
            part = self._either()
            self._need(")", '"and", "or" or ")"')
            self._depth -= 1
            return part
        if self._take("word", "has"):
            return Comparison(self._label('the name of a label after "has"'), ())
        return self._test(self._label('the name of a label, "has", "not" or "("'))

    def _label(self, wanted: str) -> str:
        if self._token.kind != "label":
            raise self._expected(wanted)
        self._next += 1
        return self._tokens[self._next - 1].value

    def _test(self, label: str) -> Expression:
        for sign, negated in (("==", False), ("!=", True)):
            if self._take("sign", sign):
                return Comparison(label, (self._value(_VALUE),), negated)
        negated = self._take("word", "not")
        if not self._take("word", "in"):
            ends = self._token.kind == "end" or self._token.value in ("and", "or", ")")
            hint = f"; to ask whether a node has the label, write has {label[:60]}" if ends and not negated else ""
            raise self._expected('"in" after "not"' if negated else '"==", "!=", "in" or "not in"', hint)
        self._need("[", '"[" and a list of values')
        values = [self._value(_VALUE)]
        while not self._take("sign", "]"):
            self._need(",", '"," or "]"')
            values.append(self._value(_VALUE))
        return Comparison(label, tuple(values), negated)

    def _value(self, wanted: str) -> str:
        token = self._token
        if token.kind not in ("text", "number"):
            bare = token.kind == "label" or (token.kind == "other" and token.value[-1].isalnum())
            raise self._expected(wanted, f"; write {_quoted(token.value)}" if bare and len(token.value) < 60 else "")
        self._next += 1
        return token.value


def _opposite(expression: Expression) -> Expression:
    match expression:
        case Comparison(label=label, values=values, negated=negated):
            return Comparison(label, values, not negated)
        case Not(part=part):
            return part
        case _:
            return Not(expression)
