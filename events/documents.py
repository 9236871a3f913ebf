"""Documents that people write, in YAML and TOML, read so that what is typed is what arrives.

A YAML reader takes `010` for 8, `1:10` for 70 and `no` for false, whatever they are for.  This one asks the place: where a
text belongs (`command`, `env`), a scalar without quotes is the text as it was typed; where a number belongs, it is a number,
and what readers of YAML disagree about is refused.  Keys are always texts.  Dates are texts everywhere.

read       a text into maps, lists and scalars, with the lines of its fields.  Start here
read_json  the same for JSON, which has types of its own
Shape      what belongs at each place: made from a type by `shape_of`
"""

from __future__ import annotations

import re
import tomllib
from datetime import date, time
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import yaml

from events.quantities import short
from events.spec.faults import SpecError
from events.spec.groups import setting

MOST_VALUES = 100_000
"""Values in a document with its aliases expanded: a few lines of YAML can expand to more than any memory holds."""
_TOO_MANY = f"more than {MOST_VALUES:,} values, with its aliases written out"
_STR = "tag:yaml.org,2002:str"
_QUOTES = "write it in quotes"
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_FLAGS = {
    word: value
    for value, names in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")))
    for name in names
    for word in (name, name.capitalize(), name.upper())
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)"
)
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOML_TOKEN = re.compile(r"(?<![^\s=,\[])[-+0-9][0-9A-Za-z_:.+-]*(?: [0-9]{2}:[0-9][0-9:.Z+-]*)?(?=[\s,\]}#]|$)")


class Shape(msgspec.Struct, frozen=True, eq=False):
    """What belongs at a place of a document."""

    texts: bool = False
    numbers: bool = False
    flags: bool = False
    nulls: bool = True
    """Whether `null` and `~` stand for nothing, not for themselves."""
    fields: dict[str, Shape] = {}
    """Shapes of the values of a map with known keys, by key."""
    values: Shape | None = None
    """Shape of the values of a map with any keys."""
    items: Shape | None = None
    """Shape of the items of a list."""
    settings: bool = False
    """A value that keeps its text, as the parameters of sweeps do: also a list or a map is one, if it stands on one line and
    the shape has no `items` or `fields` for it."""

    @property
    def plain(self) -> bool:
        """Whether a scalar here is the text that was typed."""
        return self.texts and not self.numbers and not self.flags

    @property
    def whole(self) -> bool:
        """Whether also a list or a map is one value here."""
        return self.settings and not self.items and not self.fields

    def of(self, key: str) -> Shape:
        """Return the shape of a map's value."""
        return self.fields.get(key) or self.values or ANY


ANY = Shape()
"""Nothing is known about this place."""
SETTING = Shape(settings=True)
"""One value of a parameter."""


@lru_cache(maxsize=64)
def shape_of(kind: Any) -> Shape:
    """Return the shape of a type that msgspec knows."""
    return _shape(msgspec.inspect.type_info(kind))


def _shape(info: Any, *, inside: bool = False) -> Shape:
    """`inside`: whether it is an entry of a map or a list, where a text such as `null` is a text."""
    kinds = msgspec.inspect
    texts = numbers = flags = False
    fields: dict[str, Shape] = {}
    values = items = None
    for form in _forms(info):
        if isinstance(form, kinds.StrType) or (
            isinstance(form, kinds.LiteralType) and all(isinstance(value, str) for value in form.values)
        ):
            texts = True
        elif isinstance(form, kinds.IntType | kinds.FloatType):
            numbers = True
        elif isinstance(form, kinds.BoolType):
            flags = True
        elif isinstance(form, kinds.StructType):
            fields |= {field.encode_name: _shape(field.type) for field in form.fields}
        elif isinstance(form, kinds.DictType):
            values = _shape(form.value_type, inside=True)
        elif isinstance(form, kinds.ListType | kinds.VarTupleType):
            items = _shape(form.item_type, inside=True)
        elif isinstance(form, kinds.TupleType):
            items = _shape(kinds.UnionType(types=form.item_types), inside=True)
    only = texts and not numbers and not flags
    return Shape(texts, numbers, flags, not (only and inside), fields, values, items)


def _forms(info: Any) -> list[Any]:
    if isinstance(info, msgspec.inspect.Metadata):
        return _forms(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return [form for part in info.types for form in _forms(part)]
    return [info]


class Document(NamedTuple):
    """What a text says, and where."""

    value: Any
    root: yaml.Node | None = None
    """None for TOML, whose reader gives no places."""

    def line(self, path: str) -> int | None:
        """Return the line, from 1, of a field such as `retries.limit` or `command[1]`; None if it is not there."""
        node, key, rest = self.root, None, path
        while rest and node is not None:
            if isinstance(node, yaml.MappingNode):
                entry = _key_of(node, rest)
                if entry is None:
                    break
                (key, node), rest = entry
            elif isinstance(node, yaml.SequenceNode) and (index := re.match(r"\[(\d+)\]\.?", rest)):
                if int(index[1]) >= len(node.value):
                    break
                key = node = node.value[int(index[1])]
                rest = rest[index.end() :]
            else:
                break
        return key.start_mark.line + 1 if key is not None else None


def _key_of(node: yaml.MappingNode, rest: str) -> tuple[tuple[yaml.Node, yaml.Node], str] | None:
    """Return the entry whose key the path begins with, and what follows in the path."""
    best: tuple[tuple[yaml.Node, yaml.Node], str] | None = None
    for key, value in node.value:
        for name in {key.value, short(key.value), short(key.value)[1:-1]} if isinstance(key, yaml.ScalarNode) else ():
            after = rest[len(name) :]
            if (
                name
                and rest.startswith(name)
                and after[:1] in ("", ".", "[")
                and (best is None or len(after) < len(best[1]))
            ):
                best = (key, value), after.removeprefix(".")
    return best


def read(text: str, shape: Shape = ANY, *, toml: bool = False) -> Document:
    """Return what a text says.  Raises SpecError, with the line."""
    try:
        if toml:
            document = Document(_Typed(text).read(tomllib.loads(text, parse_float=_kept), shape))
        else:
            reading = _Reading(text)
            root = reading.composed()
            document = Document(None if root is None else reading.value(root, shape), root)
        _count(document.value, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"not YAML: {where}{error.problem or error.context}", code="file.not_yaml") from None
    except RecursionError:
        raise SpecError("nested too deeply", code="file.too_deep") from None
    except SpecError:
        raise
    # Errors of tomllib and the YAML reader, and values that only look like a number.
    except (yaml.YAMLError, ValueError) as error:
        kind = "TOML" if toml else "YAML"
        raise SpecError(f"not {kind}: {' '.join(str(error).split())}", code=f"file.not_{kind.lower()}") from None
    return document


def read_json(body: bytes, shape: Shape = ANY) -> Any:
    """Return what a JSON document says.  Texts need quotes; parameters of sweeps (`Shape.settings`) keep the text of numbers.

    Raises msgspec.DecodeError, RecursionError, SpecError."""
    return _Typed().read(_json.decode(body), shape)


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in a document, each counted per reference.  Raises SpecError for too many."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        total = 1 + sum(_count(part, known) for part in parts)
        if total > MOST_VALUES:
            raise SpecError(_TOO_MANY, code="file.too_many_values")
        known[id(value)] = total
    return known[id(value)]


# --- YAML ---------------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Gives every scalar as it is written; what it stands for depends on its place."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (as in its base class)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        tag = self.peek_event().tag  # type: ignore[no-untyped-call]
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if tag == _STR:
            node.style = "'"  # `!!str 50` is as good as quotes.
        if node.style == '"' and _SURROGATE.search(node.value):
            # JSON writes a character beyond 2^16 as two escapes, which a reader of YAML leaves apart.
            try:
                node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                raise SpecError(_on_line(node, "this text is not valid Unicode"), code="file.not_unicode") from None
        return node


class _Reading:
    """The values of one YAML text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._loader = _Loader(text)
        self._made: dict[tuple[int, int], Any] = {}
        self._open: set[int] = set()
        self._most = 10 * MOST_VALUES
        """Entries that merged maps may still have: in a chain of them, each has all of those before it."""
        self._merged: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = {}

    def composed(self) -> yaml.Node | None:
        try:
            return self._loader.get_single_node()
        finally:
            self._loader.dispose()

    def value(self, node: yaml.Node, shape: Shape) -> Any:
        """Return the value of a node; of one with several aliases once, so that a document can't expand in memory."""
        key = (id(node), id(shape))
        if key in self._made:
            return self._made[key]
        if id(node) in self._open:
            raise SpecError("an alias refers to what it is a part of", code="file.cyclic")
        self._open.add(id(node))
        try:
            made = self._made[key] = self._value(node, shape)
        finally:
            self._open.discard(id(node))
        return made

    def _value(self, node: yaml.Node, shape: Shape) -> Any:
        if shape.whole and isinstance(node, yaml.CollectionNode):
            return self._written(node)
        if isinstance(node, yaml.ScalarNode):
            if node.tag != _STR:
                return self._tagged(node)
            if node.style is not None:
                return node.value
            return _at_line(node, _scalar(node.value, shape))
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, shape.items or ANY) for item in node.value]
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return {name: self.value(value, shape.of(name)) for name, (_, value) in self._entries(node).items()}
        return self._tagged(node)

    def _tagged(self, node: yaml.Node) -> Any:
        """Return what an explicit tag makes of a node.  Raises yaml.YAMLError, SpecError."""
        try:
            value = self._loader.construct_object(node, deep=True)
        except (AttributeError, KeyError, TypeError, IndexError):  # `!!bool maybe`
            raise SpecError(
                _on_line(node, f"this is no value for the tag {short(node.tag)}"), code="file.not_yaml"
            ) from None
        return value.isoformat() if isinstance(value, date) else value

    def _entries(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return the entries by their keys as written, with those of merged maps (`<<`) before its own."""
        if id(node) in self._merged:
            return self._merged[id(node)]
        self._merged[id(node)] = {}  # A map that is merged into itself adds nothing.
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(_on_line(key, "a key has to be a text"), code="file.key.not_text")
            if key.style is None and key.value == "<<":
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        raise SpecError(
                            _on_line(source, "<< takes a map, or a list of maps"), code="file.merge.not_a_map"
                        )
                    merged = {**self._entries(source), **merged}
                    self._most -= len(merged)
                    if self._most < 0:
                        raise SpecError(_TOO_MANY, code="file.too_many_values")
                continue
            if key.value in own:
                first = own[key.value][0].start_mark.line + 1
                text = f"{short(key.value)} is there already, in line {first}; leave one of them out"
                raise SpecError(_on_line(key, text), code="file.key.repeated")
            own[key.value] = (key, value)
        self._merged[id(node)] = {**merged, **own}
        return self._merged[id(node)]

    def _written(self, node: yaml.CollectionNode) -> str:
        """Return a list or a map as it is typed.  Raises SpecError unless it stands on one line, without aliases."""
        text = self._text[node.start_mark.index : node.end_mark.index]
        tokens = (yaml.AnchorToken, yaml.AliasToken, yaml.TagToken)
        if not node.flow_style or "\n" in text or any(isinstance(token, tokens) for token in yaml.scan(text)):
            hint = (
                "a list or a map is one value if it is written on one line, such as [64, 64]; else write it in quotes"
            )
            raise SpecError(_on_line(node, hint), code="sweep.values.not_one_line")
        return text


def _on_line(node: yaml.Node, text: str) -> str:
    return f"line {node.start_mark.line + 1}: {text}"


def _at_line(node: yaml.Node, value: Any) -> Any:
    """Return a value, or raise it with the line of its node if it is an error."""
    if isinstance(value, SpecError):
        raise SpecError(_on_line(node, str(value)), code=value.code)
    return value


def _scalar(text: str, shape: Shape) -> Any:
    """Return what a scalar without quotes stands for at its place; a SpecError if that is not certain."""
    if shape.settings:
        return setting(text) if text else None
    if shape.plain:
        return text if text and not (shape.nulls and text in _NULLS) else None
    if text in _NULLS:
        return None
    if text in _FLAGS and not shape.texts:
        return _FLAGS[text]
    if _OCTAL.fullmatch(text):
        plain = text.replace("_", "").lstrip("+-").lstrip("0") or "0"
        return SpecError(
            f"{text} is {int(plain, 8)} for some readers of YAML and {plain} for others; write the number without zeros "
            "before it, or the text in quotes",
            code="file.value.ambiguous",
        )
    if _INT.fullmatch(text):
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    if not shape.texts and _SEXAGESIMAL.fullmatch(text):
        return SpecError(
            f"{text} is a number to base 60 for some readers of YAML; {_QUOTES} if it is a text",
            code="file.value.ambiguous",
        )
    return text


# --- TOML and JSON ------------------------------------------------------------------------------------------------------


class _Float(float):
    """A number with the text that it was read from."""

    text: str


def _kept(text: str) -> _Float:
    number = _Float(text.replace("_", ""))
    number.text = text
    return number


_json = msgspec.json.Decoder(float_hook=_kept)


class _Typed:
    """The values of a text in a format that has types of its own.

    Its reader gives the text of fractions alone.  The text of an integer or a date in TOML is certain if all in the document
    that has this value is spelled alike; else it is refused.  JSON spells an integer in one way."""

    def __init__(self, text: str = "") -> None:
        """`text`: of TOML, "" for JSON."""
        self._text = text
        self._spelled: dict[tuple[type, Any], set[str]] | None = None

    def read(self, value: Any, shape: Shape) -> Any:
        """Return a decoded document by its shape."""
        return self._value(value, shape, "")

    def _value(self, value: Any, shape: Shape, path: str) -> Any:
        if shape.whole and isinstance(value, dict | list):
            hint = "a list or a map as one value is a text here: write it in quotes, such as '[64, 64]'"
            raise SpecError(f"{path}: {hint}", code="sweep.values.not_one_line")
        if isinstance(value, dict):
            return {
                key: self._value(field, shape.of(key), f"{path}.{key}" if path else key) for key, field in value.items()
            }
        if isinstance(value, list):
            return [self._value(item, shape.items or ANY, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, str):
            return value
        if value is not None and (shape.settings or (shape.plain and self._text) or isinstance(value, date | time)):
            text = self._spelling(value, path)
            return setting(text) if shape.settings else text
        if isinstance(value, _Float):
            plain = float(value)
            # JSON has one kind of number: 2.0 is an integer.
            return int(plain) if not self._text and plain.is_integer() and abs(plain) < 2**53 else plain
        return value

    def _spelling(self, value: Any, path: str) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, _Float):
            return value.text
        if not self._text:
            return str(value)
        if self._spelled is None:
            self._spelled = _spellings(self._text)
        spellings = self._spelled.get((type(value), value), set())
        if len(spellings) != 1:
            raise SpecError(
                f"{path}: {value} is spelled in several ways in this file; {_QUOTES}", code="file.value.ambiguous"
            )
        return next(iter(spellings))


def _spellings(text: str) -> dict[tuple[type, Any], set[str]]:
    """Return how each integer and each time may be spelled in a TOML text: a superset, as parts of texts are found as well."""
    spellings: dict[tuple[type, Any], set[str]] = {}
    for token in {match[0] for match in _TOML_TOKEN.finditer(text)}:
        # A time of day may follow a date after a space; a number before one is a token of its own.
        for spelled in {token, token.partition(" ")[0]}:
            try:
                value = tomllib.loads(f"x={spelled}")["x"]
            except ValueError:
                continue
            spellings.setdefault((type(value), value), set()).add(spelled)
    return spellings
