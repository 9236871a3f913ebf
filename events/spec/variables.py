"""Variables in commands and in `env`: `$DORM_OUTPUTS` and `${LR}` become their values when a container starts.

    expanded     what the agent does with a container's commands and variables
    findings     what looks like a variable, and stays text
    check_names  refuses what can only be a mistake

The order is fixed, and nothing is expanded twice: values of `env` may name Dorm's own variables, and the words of `command`,
`resume` and `checkpoint` may name these, variables of `env`, and those of `secrets`.  The script of a shell (the word after
its `-c`) stays as it is: the shell knows the same variables, and within quotes its rules differ.  `$$NAME` stands for the text
`$NAME`.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from events.errors import DormError
from events.quantities import short
from events.spec.checking import LARGEST_ARGUMENT
from events.spec.faults import SpecError
from events.spec.provided import volumes_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from events.spec.spec import AppSpec

LARGEST_START = 2 * 1024 * 1024
"""Bytes of a command and its variables together, which is about what Linux passes to a program (execve(2))."""
_PREFIX = "DORM_"
_REFERENCE = re.compile(r"(\$?)\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ALWAYS = (
    "DORM_APP", "DORM_NODE", "DORM_GENERATION", "DORM_SLOT", "DORM_RANK", "DORM_WORLD_SIZE", "DORM_PEERS", "DORM_MASTER_ADDR",
    "DORM_MASTER_PORT", "DORM_CHECKPOINT_DIR", "DORM_OUTPUTS", "DORM_PROGRESS",
)  # fmt: skip
_OF_ENGINES = {
    "mpi": ("DORM_HOSTFILE",),
    "ps": ("DORM_ROLE", "DORM_ROLE_RANK", "DORM_SERVERS", "DORM_WORKERS"),
    "elastic": ("DORM_MEMBERS",),
}
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"})
_WITH_FILE = frozenset({"--rcfile", "--init-file"})


class TooLong(DormError, ValueError):
    """A command or a variable has become longer than a program can be given."""

    code = "container.command.too_large"


class Finding(NamedTuple):
    """Something that its author should look at."""

    code: str
    """Stable, such as `command.not_expanded`."""
    text: str
    """One line that says what to do."""


# --- expanding ----------------------------------------------------------------------------------------------------------


def through_a_script(command: Sequence[str]) -> bool:
    """Return whether a shell runs the command's program: `bash run.sh`, `sh -c …`, `./run.sh`, or `./run`, which is most
    likely one as well.  Such a command may end with 0 although its program has failed."""
    programs = [word.rpartition("/")[2] for word in command]
    own = command[0] if command else ""
    return any(program in _SHELLS or program.endswith((".sh", ".bash")) for program in programs) or (
        "/" in own and not own.startswith("/") and "." not in programs[0]
    )


def own_names(names: Collection[str]) -> frozenset[str]:
    """Return those that are Dorm's own."""
    return frozenset(name for name in names if name.startswith(_PREFIX))


def scripts_in(command: Sequence[str]) -> frozenset[int]:
    """Return which words of a command a shell reads as a script: the one after its `-c`, wherever the shell stands
    (`env bash -euo pipefail -c SCRIPT`)."""
    scripts = set()
    for index, word in enumerate(command):
        if word.rpartition("/")[2] in _SHELLS and (script := _script_after(command, index + 1)) is not None:
            scripts.add(script)
    return frozenset(scripts)


def _script_after(command: Sequence[str], index: int) -> int | None:
    script = False
    while index < len(command) and len(option := command[index]) > 1 and option[0] in "-+":
        index += 1
        if option == "--":
            break
        if option.startswith("--"):
            index += option in _WITH_FILE
            continue
        script = script or (option[0] == "-" and "c" in option)
        index += option.count("o") + option.count("O")  # Each takes a name, such as pipefail.
    return index if script and index < len(command) else None


def expanded(command: Sequence[str], values: Mapping[str, str], budget: int = LARGEST_START) -> tuple[str, ...]:
    """Return a command with the values of its variables; words with other names stay as they are.  Raises TooLong if all of it
    would have more than `budget` bytes."""
    scripts = scripts_in(command)
    made = []
    for index, word in enumerate(command):
        made.append(word if index in scripts else _filled(word, values))
        budget -= len(made[-1].encode())
        if budget < 0:
            raise TooLong("the command is longer than a program can be given once its variables have their values")
    return tuple(made)


def expanded_env(env: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return a spec's variables with the values of Dorm's own in theirs; a sweep's parameters stay as they are.  Raises
    TooLong."""
    made, budget = {}, LARGEST_START
    for name, text in env.items():
        made[name] = text if name.startswith(_PREFIX) else _filled(text, values)
        budget -= len(made[name].encode())
        if budget < 0:
            raise TooLong("its variables are longer than a program can be given once they have their values")
    return made


def _filled(text: str, values: Mapping[str, str]) -> str:
    if "$" not in text:
        return text
    parts, end, size = [], 0, len(text)
    for match in _REFERENCE.finditer(text):
        name = match[2] or match[3]
        if name not in values:
            continue
        value = match[0][1:] if match[1] else values[name]
        size += len(value)
        if size > LARGEST_ARGUMENT + len(text):  # No text grows beyond that even while it is made.
            raise TooLong(f"{short(text)} is longer than a program can be given once its variables have their values")
        parts += [text[end : match.start()], value]
        end = match.end()
    made = "".join((*parts, text[end:]))
    if end and len(made.encode()) > LARGEST_ARGUMENT:
        raise TooLong(f"{short(text)} is longer than a program can be given once its variables have their values")
    return made


# --- at the submission --------------------------------------------------------------------------------------------------


def names_for(spec: AppSpec) -> frozenset[str]:
    """Return Dorm's own variables that containers of an app have."""
    own = [*_ALWAYS, *_OF_ENGINES.get(spec.engine, ())]
    own += ["DORM_MEMBERS"] if spec.elastic == "live" else []
    own += ["DORM_BATCH"] if spec.batch is not None else []
    own += ["DORM_ENVIRONMENT"] if spec.builds else []
    own += ["DORM_PYTHON"] if spec.python.startswith("/") else []
    own += [volume.variable for volume in volumes_of(spec.volumes)]
    return frozenset(own) | own_names(spec.env)


def check_names(spec: AppSpec) -> None:
    """Refuse names of Dorm's own variables that the app's containers do not have, such as `$DORM_OUTPUT`.  Raises
    SpecError."""
    known = names_for(spec)
    for field, path, text, _ in _texts(spec):
        if _is_code(text):
            continue
        for match in _REFERENCE.finditer(text):
            name = match[2] or match[3]
            if name.startswith(_PREFIX) and not match[1] and name not in known:
                meant = _meant(name, known)
                raise SpecError(
                    f"{path}: its containers have no variable {name}{meant}; $${name} stands for the text itself",
                    code=f"spec.{field}.unknown_variable",
                )


def _meant(name: str, known: Collection[str]) -> str:
    start = max((prefix for prefix in known if name.startswith(prefix)), key=len, default="")
    if start and name[len(start) :].isalnum():
        return f"; write ${{{start}}}{name[len(start) :]} if that was meant"
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


_FROM_A_SHELL = frozenset((
    "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", "HOSTNAME", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "CONDA_PREFIX", "SCRATCH", "WORK", "CUDA_VISIBLE_DEVICES", "HF_HOME", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "NODE_RANK",
))  # fmt: skip
_FROM_SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "SKYPILOT_", "OMPI_", "KUBERNETES_", "AWS_", "DSTACK_")
_WHOLE = re.compile(r"(?:--?[A-Za-z][\w.-]*=)?\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*|[0-9@*#])")
"""A word, or the value of an option, that is nothing but a variable."""
_LIKE_A_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]+")
_WITH_RULES = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-=?+]|[%#])")
_SUBSTITUTION = re.compile(r"[\w./:=-]*\$\([A-Za-z_][\w ./+%:-]*\)[\w./:=-]*", re.ASCII)
"""`$(date +%s)` of a shell, or `$(NAME)` of Kubernetes."""
_HOME = re.compile(r"(?:--?[A-Za-z][\w.-]*=)?~[A-Za-z0-9_-]*(?:/|$)")
_CODE = re.compile(r"[\s'\"();|&<>`\\^]|(?<!\$)\{|\$(?:$|[^A-Za-z_{$(0-9@*#])")
"""Pattern of text that programs, regular expressions and formats have in addition to a dollar."""


def _is_code(text: str) -> bool:
    """Return whether a text is likely to be for a program that reads dollars itself (awk, perl, a regular expression)."""
    return _CODE.search(text) is not None


def findings(spec: AppSpec) -> tuple[Finding, ...]:
    """Return what in the commands and variables of a checked spec looks as if a shell were to expand it, in the order of
    its fields.  No shell does, so programs get the text as it is."""
    findings_ = []
    for field, path, text, values in _texts(spec):
        what = _looks_expanded(text, values, list_command=field != "env")
        if what:
            findings_.append(Finding(f"{field}.not_expanded", f"{path}: {what}"))
    return tuple(findings_)


def _looks_expanded(text: str, values: Collection[str], *, list_command: bool) -> str:
    """Return what is wrong with a text, "" if nothing is."""
    code = _is_code(text)
    for match in _REFERENCE.finditer(text):
        name = match[2] or match[3]
        if match[1] or name in values:
            continue
        if name in _FROM_A_SHELL or name.startswith(_FROM_SCHEDULERS):
            return f"${name} {_STAYS}{_INSTEAD.get(name, _by_env(name, list_command=list_command))}"
        if not code and (_LIKE_A_VARIABLE.fullmatch(name) or _WHOLE.fullmatch(text)):
            return f"${name} {_STAYS}{_by_env(name, list_command=list_command)}"
    if not code and list_command and _WHOLE.fullmatch(text) and not _REFERENCE.search(text):
        return f"{text} {_STAYS}; write what it stands for, or put the command into a script"
    rules = _WITH_RULES.search(text)
    if rules and (not code or rules[1] in values or rules[1] in _FROM_A_SHELL):
        return f"{rules[0]}…}} {_STAYS}; only $NAME and ${{NAME}} are expanded, and `sh -c` knows the others"
    if _SUBSTITUTION.fullmatch(text):
        return f"{short(text)} {_STAYS}; only $NAME and ${{NAME}} are expanded, and `sh -c` knows the others"
    if not code and _HOME.match(text):
        return f"~ {_STAYS}, and a container's own home is private and deleted with it; use $DORM_OUTPUTS, or a volume"
    return ""


_STAYS = "stays as it is, because no shell reads it"
_INSTEAD = {
    "RANK": "; $DORM_RANK is the worker's rank",
    "WORLD_SIZE": "; $DORM_WORLD_SIZE is the number of workers",
    "MASTER_ADDR": "; $DORM_MASTER_ADDR is the address of rank 0",
    "MASTER_PORT": "; $DORM_MASTER_PORT is a free port at the address of rank 0",
    "NODE_RANK": "; $DORM_RANK is the container's rank",
    "SLURM_PROCID": "; $DORM_RANK is the worker's rank",
    "SLURM_NODEID": "; $DORM_RANK is the worker's rank",
    "SLURM_NTASKS": "; $DORM_WORLD_SIZE is the number of workers",
    "SLURM_NNODES": "; $DORM_WORLD_SIZE is the number of workers",
    "SLURM_JOB_ID": "; $DORM_APP is the app's id",
    "SLURM_JOBID": "; $DORM_APP is the app's id",
    "SLURM_ARRAY_TASK_ID": "; in a sweep, $DORM_ARRAY_INDEX is the app's number",
    "HOME": ", and a container's own home is private and deleted with it; use $DORM_OUTPUTS, or a volume",
    "TMPDIR": "; `sh -c` knows it, and $DORM_OUTPUTS is kept",
}


def _by_env(name: str, *, list_command: bool) -> str:
    return f"; write its value, or put {name} into env" if list_command else "; write its value"


def _texts(spec: AppSpec) -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """Yield each text that the agent expands: its field, its path, the text, and the names that it may use."""
    own = names_for(spec)
    all_names = own | frozenset(spec.env) | frozenset(spec.secrets)
    for field, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        scripts = scripts_in(command)
        for index, word in enumerate(command):
            if index not in scripts and ("$" in word or "~" in word):
                yield field, f"{field}[{index}]", word, all_names
    for name, value in spec.env.items():
        if name.startswith(_PREFIX):  # Of its sweep: parameters are as their author wrote them.
            continue
        if "$" in value or "~" in value:
            yield "env", f"env.{short(name)[1:-1]}", value, own
