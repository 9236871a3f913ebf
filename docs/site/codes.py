"""The reference of error codes: every code in the source, with its meaning and the exit code of a command that reports it.

The source is read, not run: a code is declared by a class, passed by a `raise`, or listed in a table of rules.  A part that is
filled in at run time, such as the name of a field, is written as `*`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from docs.site.markdown import code, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("agents", "compose", "dorm", "events", "replay", "lab/dorm_lab")
_INTRODUCTION = """\
# Error codes

Every error has one line of text for people and a code for programs. The command line prints `error: TEXT [CODE]`; with
`-o json` or `-o yaml` it prints `{"error": {"code": "…", "message": "…", "exit_code": 1}}` on standard error instead.
If several things are wrong with one file, each has its line, and `errors` in the document lists all of them.
The HTTP API answers with problem documents that have it as `code`. In Python the exceptions of Dorm derive from `DormError`
and have the attribute `code`.

Codes keep their meaning from release to release; texts may be reworded. `*` stands for a part that depends on the error, such
as the name of a field. Exit code 2 means wrong usage, of the command line or of a file that it names. Commands that report
any other code end with 1.
"""
_BUILT: Final = {
    "system.*": "The operating system refused something; the last word is its error in lower case: `system.enoent`.",
    "usage.*": "The command line is wrong; the last word says how: `usage.no_such_option`, `usage.missing_parameter`.",
}
"""Codes that are assembled from another library's names."""
_PROBLEMS: Final = {
    "malformed": "The field's text is not of the form that it needs.",
    "missing": "The field is required.",
    "not_a_choice": "The field takes one of a few words.",
    "out_of_range": "The field's number or length is out of its range.",
    "unknown_field": "There is no such field.",
    "wrong_type": "The field's value is of another type.",
}
_USAGE: Final = {"WrongUsage", "SpecError"}
_FINDINGS: Final = {"_note": None, "_unknown": None, "_wrong": 1}
"""Functions of `dorm.doctor.apps` that make findings, and the exit code of `dorm check` with one."""
_MENTIONS: Final = re.compile(
    rf"^ *class \w+\(|\b(?:code|report_error|Rule|NotAllowed|Fault|_problem|{'|'.join(_FINDINGS)})\b", re.MULTILINE
)
"""What a module that declares or gives a code has somewhere."""
_ROOTS: Final = {"DormError", "Exception", "BadParameter"}


class Found(NamedTuple):
    """One place that gives a code."""

    code: str
    meaning: str
    exit_code: int | None
    """None if the place does not determine it."""
    general: bool = False
    """Whether the meaning is that of a whole class of errors."""


class _Class(NamedTuple):
    meaning: str
    bases: set[str]


def page() -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION]
    sections: dict[str, list[str]] = defaultdict(list)
    found = all_codes()
    for one in sorted(found):
        sections[one.partition(".")[0]].append(one)
    for name, codes in sections.items():
        rows = []
        for one in codes:
            exits = sorted({place.exit_code for place in found[one] if place.exit_code is not None})
            meaning = min(found[one], key=lambda place: (not place.meaning, place.general)).meaning
            rows.append((code(one), prose(meaning), " or ".join(map(str, exits))))
        parts += [f"## {name}", table(("code", "text or meaning", "exit code"), rows)]
    return "\n\n".join(parts) + "\n"


@functools.cache
def all_codes() -> dict[str, list[Found]]:
    """Return every code of the project, or pattern of codes, with the places that give it."""
    with _without_garbage_collection():
        return _read_all()


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Syntax trees are millions of objects and no garbage; looking for some takes three quarters of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_all() -> dict[str, list[Found]]:
    texts = (file.read_text() for name in PACKAGES for file in sorted((REPOSITORY / name).rglob("*.py")))
    modules = [list(ast.walk(ast.parse(text))) for text in texts if _MENTIONS.search(text)]
    classes = _errors(modules)
    found: dict[str, list[Found]] = defaultdict(list)
    for nodes in modules:
        for place in _in_module(nodes, classes):
            found[place.code].append(place)
    for one, meaning in _BUILT.items():
        found[one].append(Found(one, meaning, 2 if one.startswith("usage") else 1))
    return dict(found)


def _errors(modules: list[list[ast.AST]]) -> dict[str, _Class]:
    """Return the exception classes by name, wherever they are.  Classes that share a name count as one."""
    classes: dict[str, _Class] = {}
    for nodes in modules:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                meaning = _first_sentence(ast.get_docstring(node) or "")
                known_bases = classes[node.name].bases if node.name in classes else set()
                classes[node.name] = _Class(meaning, bases | known_bases)
    known = set(_ROOTS)
    while more := {name for name, one in classes.items() if name not in known and one.bases & known}:
        known |= more
    return {name: one for name, one in classes.items() if name in known}


def _in_module(nodes: list[ast.AST], classes: dict[str, _Class]) -> Iterator[Found]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            yield from _of_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            texts = {
                target.id: assign.value
                for assign in inside
                if isinstance(assign, ast.Assign)
                for target in assign.targets
                if isinstance(target, ast.Name)
            }
            for inner in inside:
                if isinstance(inner, ast.Call):
                    yield from _of_call(inner, texts, classes)
                elif isinstance(inner, ast.Return) and inner.value is not None and node.name == "_problem":
                    yield from _of_problem(inner.value)


def _of_class(node: ast.ClassDef) -> Iterator[Found]:
    exit_code = 2 if node.name in _USAGE else None
    meaning = _first_sentence(ast.get_docstring(node) or "")
    for line in node.body:
        match line:
            case (
                ast.Assign(targets=[ast.Name(id="code")], value=value)
                | ast.AnnAssign(target=ast.Name(id="code"), value=ast.expr() as value)
            ):
                for one in _codes_in(value):
                    yield Found(one, meaning, exit_code, general=True)
            case ast.FunctionDef(name="__init__", args=arguments):
                for given, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                    if given.arg == "code" and default is not None:
                        for one in _codes_in(default):
                            yield Found(one, meaning, exit_code, general=True)
                for call in ast.walk(line):
                    match call:
                        case ast.Call(func=ast.Attribute(attr="__init__")):
                            for value in (word.value for word in call.keywords if word.arg == "code"):
                                for one in _codes_in(value):
                                    yield Found(one, meaning, exit_code, general=True)


def _of_call(call: ast.Call, texts: dict[str, ast.expr], classes: dict[str, _Class]) -> Iterator[Found]:
    owner, name = _ends(call.func)
    if name == "report_error" and len(call.args) == 2:
        for one in _codes_in(call.args[1]):
            yield Found(one, _text(call.args[0], texts), 1)
    elif name == "Rule" and len(call.args) == 4:
        for one in _codes_in(call.args[1]):
            yield Found(one, _text(call.args[2], texts), None)
    elif name == "NotAllowed" and len(call.args) == 2:
        for one in _codes_in(call.args[0]):
            yield Found(one, _text(call.args[1], texts), None)
    elif name in _FINDINGS:
        for value in (word.value for word in call.keywords if word.arg == "code"):
            for one in _codes_in(value):
                yield Found(one, _text(call.args[1], texts), _FINDINGS[name])
    elif name == "Fault" and len(call.args) == 2:
        yield from _of_fault(call)
    elif name in classes or (owner in classes and name in ("of", "at")):
        error = name if name in classes else owner
        for value in (word.value for word in call.keywords if word.arg == "code"):
            for one in _codes_in(value):
                sentences = (text for arg in call.args if " " in (text := _text(arg, texts)))
                meaning = next(sentences, classes[error].meaning)
                yield Found(one, meaning, _exit_code(error, call))


def _ends(function: ast.expr) -> tuple[str, str]:
    """Return the first and the last of the names in `a.b.c`, "" for what is not a name."""
    first = function
    while isinstance(first, ast.Attribute):
        first = first.value
    owner = first.id if isinstance(first, ast.Name) else ""
    return owner, function.attr if isinstance(function, ast.Attribute) else owner


def _of_fault(call: ast.Call) -> Iterator[Found]:
    last = call.args[1]
    yield from _of_problem(last.args[-1] if isinstance(last, ast.Call) else last)


def _of_problem(problem: ast.expr) -> Iterator[Found]:
    """A fault of a document: fields, then the problem.  Specs, cluster files and settings have the same ones."""
    for one in _codes_in(problem):
        problem_word = one.removeprefix("*")
        for document in ("spec", "cluster_file", "settings"):
            yield Found(f"{document}.*.{problem_word}", _PROBLEMS.get(problem_word, ""), 2)


def _exit_code(error: str, call: ast.Call) -> int | None:
    if error in _USAGE:
        return 2
    if error != "Fail":
        return None
    given = [ast.unparse(one) for one in (*call.args[1:], *(w.value for w in call.keywords if w.arg == "exit_code"))]
    return {"USAGE": 2, "INTERRUPTED": 130}.get(given[0] if given else "", 1)


def _codes_in(value: ast.expr) -> Iterator[str]:
    """Return the codes that an expression can have; none for one that passes on another error's code."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.JoinedStr():
            yield _template(value, "*")
        case ast.IfExp(body=body, orelse=other):
            yield from _codes_in(body)
            yield from _codes_in(other)
        case ast.BoolOp(values=values):
            for one in values:
                yield from _codes_in(one)


def _text(value: ast.expr, texts: dict[str, ast.expr]) -> str:
    """Return the text of an error with `…` for what is filled in, "" for one that repeats another error."""
    match value:
        case ast.Name(id=name) if name in texts and not isinstance(texts[name], ast.Name):
            return _text(texts[name], texts)
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            text = _template(value, "…")
            return text if any(letter.isalpha() for letter in text) else ""
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, texts) + (_text(right, texts) or "…")
        case _:
            return ""


def _template(value: ast.JoinedStr, gap: str) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else gap for part in value.values)


def _first_sentence(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


if __name__ == "__main__":
    print("\n".join(sorted(all_codes())))
