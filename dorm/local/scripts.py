"""The program in a typed command, such as `python -u train.py`: what is wrong with it is noticed before it is sent.

check_script    whether the script is there
read_program    what it starts, imports and names, also through shell scripts, without running it
ask_python      which of these modules the Python that will run it has
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import json
import os
import re
import shlex
import subprocess
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dorm.local.commands import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?|bash|sh|dash|zsh|torchrun")
_ENDINGS = (".py", ".sh")
_WITHOUT_VALUE = {"-u", "-B", "-O", "-OO", "-s", "-E", "-I", "-e", "-x", "-eu", "-ex"}
"""Options of interpreters without a value; after any other option, no word counts as the script."""


def script_of(command: Sequence[str]) -> str:
    """Return the script that a command names by a relative path, "" if there is none."""
    first_argument = next((word for word in command if word not in _WITHOUT_VALUE and not _is_interpreter(word)), "")
    first = command[0] if command else ""
    named = first_argument if _is_interpreter(first) else first if first.startswith(("./", "../")) else ""
    return named if named.endswith(_ENDINGS) and not named.startswith(("/", "-")) else ""


def _is_interpreter(word: str) -> bool:
    return _INTERPRETER.fullmatch(word.rpartition("/")[2]) is not None


def check_script(command: Sequence[str], folder: Path) -> None:
    """Refuse a command whose script is not in the folder in which it will run.  Raises CommandRefused."""
    script = script_of(command)
    if not script or (folder / script).exists():
        return
    parent = (folder / script).parent
    names = [path.name for path in parent.iterdir() if path.name.endswith(_ENDINGS)] if parent.is_dir() else []
    close = difflib.get_close_matches(Path(script).name, sorted(names), n=1)
    meant = f"; did you mean {Path(script).with_name(close[0])}?" if close else ""
    if its := _beside(script, folder):
        meant = (
            f", in which it would run; start it in its folder: `env -C {shlex.quote(its)} {shlex.join(command)[:200]}`"
        )
    where = f"there is no {script} in {folder.resolve()}"
    raise CommandRefused(f"{where}{meant or ', in which it would run'}", code="run.script.not_found")


def _beside(script: str, folder: Path) -> str:
    """Return the current folder, as it is from the shipped one above, if the script is there."""
    here, root = Path.cwd(), folder.resolve()
    inside = here != root and here.is_relative_to(root) and (here / script).exists()
    return str(here.relative_to(root)) if inside else ""


def unshipped(command: Sequence[str], folder: Path) -> str:
    """Return the script of a spec that is next to its file but is not sent to the nodes; "" if there is none."""
    script = script_of(command)
    return script if script and (folder / script).is_file() else ""


# --- what a program needs, read without running it -----------------------------------------------------------------------

_LARGEST = 1024 * 1024
_MOST_FILES = 300
_DEEPEST = 4
"""Scripts that start each other."""
_MOST_PARTS = 16
"""Parts of a path that a source joins: each may be a variable that joins as many."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_SHELL = re.compile(r"bash|sh|dash|zsh")
_MAKES = ("make", "gmake")
_MAKE_SETS = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*[:?]?:?=(.*)")
_AUTOMATIC = re.compile(r"\$[<@^*+?%]|\$[({][^$(){}]*[)}]")
"""Variables of a makefile's recipes that only make knows."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
_DIRECTIVES = re.compile(r"^#SBATCH[ \t]+([^#\n]{1,300})", re.MULTILINE)
_TOOLS = ("srun", "sbatch", "scontrol", "conda", "mamba", "micromamba", "module")
_OF_OTHERS = re.compile(r"\$\{?((?:SLURM|PBS|SKYPILOT|DSTACK)_[A-Z0-9_]+)(?=(:?[-=])?)")
"""A variable of another system, and how a shell goes on that has a default for it."""
_OWN_FOLDER = re.compile(
    r"""\$\(\s*dirname\s+(?:--\s+)?"?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})"?\s*\)"""
    r"""|`dirname\s+"?\$0"?`|\$\{0%/\*\}|\$\{BASH_SOURCE(?:\[0\])?%/\*\}"""
)
"""Expression by which shell scripts name the folder that they are in."""
_USED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ASKED = re.compile(
    r"""\$\(\s*(?:cd\s+(?:--\s+)?"?([^"$`()]*)"?\s*(?:&?>\s*/dev/null\s*)?(?:2>&1\s*)?(?:&&|;)\s*pwd(?:\s+-P)?"""
    r"""|(?:realpath|readlink\s+-f)\s+(?:--\s+)?"?([^"$`()]*)"?)\s*\)"""
)
"""Expression by which they make its path absolute."""
_HERE = "/\x01/"
"""Stands for the folder that is shipped in the words of a shell script."""
_SET = re.compile(
    r"""(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)=("[^"$`]*"|'[^']*'|[^\s"'$`;&|()<>]*)\s*(?:#.*)?"""
)
_HERE_DOCUMENT = re.compile(r"""<<-?\s*(['"]?)(\w+)\1""")
_TESTS = ("[", "[[", "test")
_MAKES_FILES = ("mkdir", "touch", "rm", "rmdir")
"""Commands whose paths need not be there."""
_AROUND = ("mpirun", "nice", "numactl", "poetry", "srun", "stdbuf", "timeout", "uv")
"""Programs that start the command after their own options."""
_BEFORE = ("exec", "time", "nohup", "command")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_BETWEEN = frozenset((";", "&&", "||", "|", "&", "(", ")", "{", "}", "then", "do", "else"))
_OPENS, _CLOSES = ("if", "case"), ("fi", "esac")
_LONGEST_LINE = 16 * 1024
_PATH = re.compile(r"(\.{1,2}|(\.{1,2}/|/|[\w.-]+/)[\w./+ -]*|[\w-]+\.[A-Za-z0-9]{1,8})")
_MODULE = re.compile(r"\w+(\.\w+)*")
_WORD = re.compile(r"[A-Za-z][\w-]{0,63}")
_LONGEST_PATH = 500
_MOST_MATCHES = 20
_WRITES = frozenset(
    (
        "FileHandler", "SummaryWriter", "makedirs", "mkdir", "mktemp", "save", "save_file", "save_model", "save_pretrained",
        "savefig", "savetxt", "savez", "to_csv", "to_json", "to_parquet", "to_pickle", "write_bytes", "write_text",
    )
)  # fmt: skip
_READS = frozenset(
    (
        "fromfile",
        "genfromtxt",
        "imread",
        "load",
        "load_from_disk",
        "loadtxt",
        "memmap",
        "open",
        "read_csv",
        "read_json",
        "read_parquet",
        "read_table",
    )
)
_FOR_RESULTS = re.compile(r"out|save|log|ckpt|checkpoint|result|run|export|tmp|cache|dest", re.IGNORECASE)


class Named(NamedTuple):
    """A path that a command or a script names, which is there, or which nothing needs to be."""

    path: str
    """Path as it is written."""
    target: str
    """The same relative to the folder in which the command runs; an absolute path as it is."""
    there: bool
    where: str
    """`the command`, or the script and its line."""
    used: bool
    """Whether it is used for certain: a word of the command or of one that a script starts, a file that a shell script
    includes or sends output to, a file that a program opens, or the default of an option that the command does not give."""
    written: bool
    """Whether results seem to go there."""
    pattern: str = ""
    """Pattern of the paths that the program opens, with `*` for what it only computes when it runs: `data/*/*.bin`.  The path
    is one of those that match."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a command's program says of itself.  Places are in words, such as `train.py, line 3`."""

    scripts: tuple[str, ...] = ()
    """The files that were read, by their paths in the folder: first those that are started, then the modules they import."""
    started: tuple[str, ...] = ()
    """Those that are started."""
    absent: dict[str, str] = {}
    """Scripts that are started and are not there, with the places that start them."""
    faults: dict[str, str] = {}
    """Reasons why a file cannot be run, by its path."""
    unparsed: dict[str, str] = {}
    """Reasons why this program's own Python cannot parse a source; another version may."""
    pythons: dict[str, str] = {}
    """The words that start Python, as they are typed, with their places."""
    launchers: dict[str, str] = {}
    """Programs that start workers themselves, such as `torchrun`, with their places."""
    tools: dict[str, str] = {}
    """Programs of another system, such as `srun`, with their places."""
    lost: dict[str, str] = {}
    """Shell scripts that go to a folder which is known only when they run, with the places of the first command there."""
    unset: dict[str, str] = {}
    """Variables of another system that shell scripts read, such as `SLURM_PROCID`, with the first places."""
    directives: tuple[str, ...] = ()
    """Options that scripts give to Slurm in lines with `#SBATCH`."""
    imports: dict[str, str] = {}
    """Top-level modules that are imported unconditionally and are not in the folder, with the places of the first import."""
    local: dict[str, str] = {}
    """Files of the folder that are imported, with the places of the first import."""
    paths: tuple[Named, ...] = ()
    text: str = ""
    """Everything that was read."""

    def mentions(self, *names: str) -> bool:
        """Return whether one of these names occurs anywhere."""
        return any(re.search(rf"\b{re.escape(name)}\b", self.text) for name in names)


def read_program(command: Sequence[str], folder: Path) -> Reading:
    """Read the program of a command that is to run in this folder, with everything in the folder that it starts or imports.
    Runs nothing, and never reads outside of the folder.  Blocks."""
    reader = _Reader(folder.resolve())
    reader.command(list(command), "the command", folder.resolve(), typed=True)
    reader.modules()
    return reader.reading()


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, str] = {}
        self._started: dict[str, None] = {}
        self._absent: dict[str, str] = {}
        self._faults: dict[str, str] = {}
        self._unparsed: dict[str, str] = {}
        self._pythons: dict[str, str] = {}
        self._launchers: dict[str, str] = {}
        self._tools: dict[str, str] = {}
        self._unset: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._directives: list[str] = []
        self._imports: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._paths: dict[Named, None] = {}
        self._typed_parts: list[str] = []
        self._options: set[str] = set()
        """Options of the command: what a script says of their defaults does not hold."""
        self._depth = 0
        self._due: list[tuple[Path, Path, list[Path]]] = []
        """Modules that are still to be read."""

    def modules(self) -> None:
        """Read the modules of the folder that scripts import, and those that these import."""
        for path, at, roots in self._due:  # which grows meanwhile
            self._file(path, at, roots, started=False)

    def reading(self) -> Reading:
        return Reading(
            scripts=tuple(self._read),
            started=tuple(self._started),
            absent=self._absent,
            faults=self._faults,
            unparsed=self._unparsed,
            pythons=self._pythons,
            launchers=self._launchers,
            tools=self._tools,
            unset=self._unset,
            lost=self._lost,
            directives=tuple(self._directives),
            imports=self._imports,
            local=self._local,
            paths=tuple(self._paths),
            text="\n".join([*self._typed_parts, *self._read.values()]),
        )

    # --- commands -------------------------------------------------------------------------------------------------------

    def command(self, parts: list[str], where: str, at: Path, *, typed: bool = False, certain: bool = True) -> None:
        """Read one simple command, which runs in the folder `at`; not `certain`: unless a condition says otherwise."""
        parts = _without_prefix(parts)
        if not parts or self._depth > _DEEPEST:
            return
        if parts[:2] == ["env", "-C"] and len(parts) > 3:
            at, parts = at / parts[2], _without_prefix(parts[3:])
        if typed:
            self._typed_parts += parts
        self._options |= {word.partition("=")[0] for word in parts if word.startswith("--")}
        program = parts[0].rpartition("/")[2]
        if program in ("source", ".") and len(parts) > 1:
            self._note_path(parts[1], where, at, used=certain)
            return
        for before, word in pairwise(parts):
            value = word.partition("=")[2] if word.startswith("-") and "=" in word else word
            option = word if value != word else before if before.startswith("-") else ""
            redirected = program == "tee" or before in (">", ">>", ">|", "&>", "&>>")
            written = redirected or program in _MAKES_FILES or bool(_FOR_RESULTS.search(option))
            if value and not value.startswith("-") and " " not in value:
                needs = redirected or typed or (_starts(parts[0]) and not written)
                self._note_path(value, where, at, used=certain and needs, written=written)
        if program in _TOOLS:
            self._tools.setdefault(program, where)
        if program in _AROUND:
            inner = next((index for index, word in enumerate(parts) if index and _starts(word)), len(parts))
            self.command(parts[inner:], where, at, certain=certain)
            return
        self._depth += 1
        absent = dict(self._absent)
        try:
            self._start(program, parts, where, at)
        finally:
            self._depth -= 1
            self._absent = self._absent if certain else absent

    def _start(self, program: str, command: list[str], where: str, at: Path) -> None:
        if program in _LAUNCHERS:
            self._launchers.setdefault(program, where)
            module = next((name for option, name in pairwise(command) if option in ("-m", "--module")), "")
            script = next((word for word in command[1:] if word.endswith(".py")), "")
            if module:
                self._module(module, where, at)
            else:
                self._script(script, where, at)
        elif program in _MAKES:
            self._make(command[1:], where, at)
        elif _PYTHON.fullmatch(program):
            self._pythons.setdefault(command[0], where)
            self._python(command[1:], where, at)
        elif _SHELL.fullmatch(program):
            self._shell(command[1:], where, at)
        elif command[0].startswith(("./", "../")) or command[0].endswith(_ENDINGS):
            self._script(command[0], where, at, itself=True)

    def _python(self, rest: list[str], where: str, at: Path) -> None:
        for index, word in enumerate(rest):
            if word == "-c" and index + 1 < len(rest):
                self._source(rest[index + 1], f"{where} (-c)", at, None)
                return
            if word == "-m" and index + 1 < len(rest):
                self._module(rest[index + 1], where, at)
                return
            if word not in _WITHOUT_VALUE:
                if not word.startswith("-"):
                    self._script(word, where, at)
                return

    def _make(self, rest: list[str], where: str, at: Path) -> None:
        """Read a makefile: what its recipes start, and what its rules need.  Which of them run is not known."""
        given = dict(pairwise(rest))
        at /= given.get("-C", given.get("--directory", "."))
        names = [given["-f"]] if "-f" in given else ["GNUmakefile", "makefile", "Makefile"]
        path = next((at / name for name in names if _is_file(at / name)), None)
        text = self._text(path) if path is not None else None
        if path is None or text is None:
            return
        self._started[self._name(path)] = None
        values: dict[str, str] = {}
        for number, line in _logical_lines(text):
            place = f"{self._name(path)}, line {number}"
            if assignment := _MAKE_SETS.fullmatch(line):
                values[assignment[1]] = assignment[2].strip()
            elif line.startswith("\t"):
                recipe = _AUTOMATIC.sub('"$X"', _made(line.strip().lstrip("@-+ "), values)).replace("$$", "$")
                here: Path | None = at
                for command, _ in _simple_commands(recipe):
                    if command[0] == "cd":
                        here = at / command[1] if len(command) > 1 and not _expands(command[1]) else None
                    elif here is not None and command[0] not in ("(", ")", *_OPENS, *_CLOSES):
                        self.command(command, place, here, certain=False)
            elif ":" in line and not line.startswith(("#", " ")):
                targets, _, needs = _made(line.partition(";")[0], values).partition(":")
                for word in targets.split():
                    self._note_path(word, place, at, used=False, written="/" in word)
                for word in needs.split():
                    self._note_path(word, place, at, used=False)

    def _module(self, name: str, where: str, at: Path) -> None:
        if _MODULE.fullmatch(name) is None:
            return
        path = at.joinpath(*name.split("."))
        program = next(
            (candidate for candidate in (path.with_suffix(".py"), path / "__main__.py") if _is_file(candidate)), None
        )
        if program is not None:
            if not self._inside(program):
                self._note_path(os.path.relpath(program, at), where, at, used=True)
            self._file(program, at, [at])
        else:
            if name.startswith("torch.distributed."):
                self._launchers.setdefault(name, where)
            self._imports.setdefault(name.partition(".")[0], where)

    def _shell(self, rest: list[str], where: str, at: Path) -> None:
        for index, word in enumerate(rest):
            if word.startswith("-") and not word.startswith("--") and word.endswith("c") and index + 1 < len(rest):
                self._typed_parts.append(rest[index + 1])
                self._shell_text(rest[index + 1], where, at, lines=False)
                return
            if not word.startswith("-"):
                self._script(word, where, at)
                return

    def _script(self, script: str, where: str, at: Path, *, itself: bool = False) -> None:
        """Read a script that is started, by itself or by an interpreter."""
        if not script or _expands(script) or script.startswith("/"):
            return
        path = at / script
        if not _is_file(path):
            self._absent.setdefault(script, where)
            return
        if itself and not os.access(path, os.X_OK):
            self._faults.setdefault(
                self._name(path), f"it is not executable; `chmod +x {script}`, or name its interpreter"
            )
        self._file(path, at, [path.parent], itself=itself)

    # --- files ----------------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> str:
        resolved = Path(os.path.normpath(path))
        return resolved.relative_to(self._root).as_posix() if resolved.is_relative_to(self._root) else str(resolved)

    def _inside(self, path: Path) -> bool:
        return Path(os.path.normpath(path)).is_relative_to(self._root)

    def _text(self, path: Path) -> str | None:
        """Return the text of a file that is read for the first time; None for all others."""
        name = self._name(path)
        outside = not path.resolve().is_relative_to(self._root)  # also by a link
        if name in self._read or outside or len(self._read) >= _MOST_FILES:
            return None
        try:
            with path.open("rb") as file:
                body = file.read(_LARGEST)
        except OSError as error:
            self._faults.setdefault(name, error.strerror or "it cannot be read")
            return None
        self._read[name] = body.decode("utf-8", "replace")
        return self._read[name]

    def _file(self, path: Path, at: Path, roots: list[Path], *, itself: bool = False, started: bool = True) -> None:
        """Read a script or a module once, which runs in the folder `at`.  `roots`: where its imports are looked for."""
        name = self._name(path)
        text = self._text(path)
        if text is None:
            return
        if started:
            self._started[name] = None
        first = text.partition("\n")[0]
        shebang = first[2:].split() if first.startswith("#!") else []
        program = next((word for word in shebang[::-1] if not word.startswith("-")), "").rpartition("/")[2]
        is_shell = path.suffix == ".sh" or _SHELL.fullmatch(program) is not None
        if is_shell and "\r\n" in text:
            self._faults.setdefault(name, "its lines end with CR LF, which shells do not take; `dos2unix` converts it")
        elif itself and first.endswith("\r"):
            self._faults.setdefault(name, "its first line ends with CR, so the system finds no such interpreter")
        if itself and shebang and _PYTHON.fullmatch(program):
            self._pythons.setdefault(program if shebang[0].endswith("/env") else shebang[0], f"{name}, line 1")
        if is_shell:
            self._directives += [option for options in _DIRECTIVES.findall(text) for option in options.split()]
            self._shell_text(text, name, at, lines=True)
        elif path.suffix == ".py" or _PYTHON.fullmatch(program):
            self._source(text, name, at, roots)

    def _shell_text(self, text: str, name: str, at: Path, *, lines: bool) -> None:
        values: dict[str, str] = {}
        own = _HERE + str(Path(name).parent) if lines else ""
        here, around = at if at.is_dir() else None, list[Path | None]()
        branches = 0
        for number, raw in _logical_lines(text):
            where = f"{name}, line {number}" if lines else name
            line = _filled_in(_OWN_FOLDER.sub(lambda _: own, raw) if own else raw, values)
            line = _ASKED.sub(lambda match: (match[1] or match[2] or "").strip(), line) if own else line
            if plain := _SET.fullmatch(line.strip()):
                values[plain[1]] = plain[2].strip("\"'")
            for use in _OF_OTHERS.finditer(raw.partition(" #")[0]):
                if not use[2] and not raw.lstrip().startswith("#") and not re.search(rf"\b{use[1]}=", text):
                    self._unset.setdefault(use[1], where)
            for command, may_be_skipped in _simple_commands(line):
                branches += (command[0] in _OPENS) - (command[0] in _CLOSES)
                if command[0] in ("(", "$("):
                    around.append(here)
                elif command[0] == ")":
                    here = around.pop() if around else here
                elif command[0] in ("cd", "pushd", "popd"):
                    to = next((word for word in command[1:] if not word.startswith("-")), "")
                    start = self._root if to.startswith(_HERE) else here
                    to = to.removeprefix(_HERE)
                    here = start / to if start is not None and to and not _expands(to) else None
                elif here is not None:
                    command = [self._from(word, here) for word in command]
                    self.command(command, where, here, certain=not branches and not may_be_skipped)
                else:
                    self._lost.setdefault(name, where)
                    if command[0] in _TOOLS:
                        self._tools.setdefault(command[0], where)

    def _from(self, word: str, here: Path) -> str:
        """Return a word that names a path in the shipped folder, as it is from `here`."""
        return os.path.relpath(self._root / word.removeprefix(_HERE), here) if word.startswith(_HERE) else word

    # --- Python ---------------------------------------------------------------------------------------------------------

    def _source(self, text: str, name: str, at: Path, roots: list[Path] | None) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
            self._unparsed.setdefault(name, f"{line}{getattr(error, 'msg', None) or error}")
            return
        looked = [at] if roots is None else roots
        for node in tree.body:
            where = f"{name}, line {node.lineno}"
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, where, at, looked)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                self._import(node.module, where, at, looked, [alias.name for alias in node.names])
            elif isinstance(node, ast.ImportFrom) and roots is not None:
                base = (self._root / name).parents[node.level - 1] if node.level <= len(Path(name).parts) else None
                if base is not None:
                    for imported in [node.module] if node.module else [alias.name for alias in node.names]:
                        self._follow(base.joinpath(*imported.split(".")), where, at, looked)
        for constant in _constants(tree, self._options):
            where = f"{name}, line {constant.line}"
            self._note_path(constant.text, where, at, used=constant.use == "read", written=constant.use == "written")
        for pattern, number in _computed(tree):
            for path in _matching(pattern, at):
                self._note_path(path, f"{name}, line {number}", at, used=True, pattern=pattern)

    def _import(self, module: str, where: str, at: Path, roots: list[Path], names: Sequence[str] = ()) -> None:
        first, *rest = module.split(".")
        for root in roots:
            if not self._follow(root / first, where, at, roots):
                continue
            path = root / first
            for part in rest:
                path /= part
                self._follow(path, where, at, roots)
            for name in names:
                self._follow(path / name, where, at, roots)
            return
        self._imports.setdefault(first, where)

    def _follow(self, path: Path, where: str, at: Path, roots: list[Path]) -> bool:
        """Read a module or a package of the folder; return whether it is there."""
        for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
            if _is_file(file):
                self._local.setdefault(self._name(file), where)
                self._due.append((file, at, roots))
                return True
        return path.is_dir() and any(path.glob("*.py"))

    def _note_path(
        self, path: str, where: str, at: Path, *, used: bool, written: bool = False, pattern: str = ""
    ) -> None:
        plain = _PATH.fullmatch(path) or (written and _WORD.fullmatch(path))
        if not plain or path in (".", "./") or len(path) > _LONGEST_PATH:
            return
        full = os.path.normpath(at / path)
        target = path if path.startswith("/") else os.path.relpath(full, self._root)
        there = _is_there(full)
        if there or written or path.startswith("/"):
            self._paths.setdefault(Named(path, target, there, where, used, written, pattern))


def _without_prefix(command: list[str]) -> list[str]:
    while command and (command[0] in _BEFORE or _ASSIGNED.match(command[0])):
        command = command[1:]
    if command[:1] == ["env"] and command[1:2] != ["-C"]:
        return _without_prefix(command[1:])
    return command


def _is_file(path: Path) -> bool:
    """Return whether there is such a file; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _starts(word: str) -> bool:
    """Return whether a word looks like the first one of a command that starts a script."""
    program = word.rpartition("/")[2]
    known = _PYTHON.fullmatch(program) or _SHELL.fullmatch(program) or program in _LAUNCHERS
    return bool(known) or word.endswith(_ENDINGS)


def _expands(word: str) -> bool:
    return any(sign in word for sign in "$`*?~")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield a shell script's lines with their numbers, continued ones joined, without the texts of here-documents."""
    begun, parts, until = 0, list[str](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        begun = begun if parts else number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            document = _HERE_DOCUMENT.search(line)
            until = document[2] if document and not line.lstrip().startswith("#") else ""
            yield begun, " ".join(parts)
            parts = []


def _made(line: str, values: dict[str, str]) -> str:
    """Return a makefile's line with the values that the makefile gives its variables."""
    for _ in range(4):
        line = re.sub(r"\$[({]([\w.-]+)[)}]", lambda match: values.get(match[1], match[0]), line)[:_LONGEST_LINE]
    return line


def _filled_in(line: str, values: dict[str, str]) -> str:
    """Return a line with the variables whose values an earlier line of the script gives in plain text."""
    line = _USED.sub(lambda match: values.get(match[1] or match[2], match[0]), line)
    return line[:_LONGEST_LINE]


def _simple_commands(line: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the commands of a line, with whether it depends on the ones before whether they run; parentheses and the words
    that open or close a branch are yielded as commands of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        lexed = list(lexer)
    except ValueError:
        return  # A quoted text of several lines.
    command, skipped = list[str](), False
    for word in [*lexed, ";"]:
        parts = re.findall(r"&&|\|\||[();&|]", word) if word and not word.strip("();&|") else [word]
        for part in parts:
            if part not in _BETWEEN and (command or part not in (*_OPENS, *_CLOSES)):
                command.append(part)
                continue
            if command:
                yield command, skipped
                skipped = (
                    part == "||" or (part == "&&" and (skipped or command[0] in _TESTS)) or (skipped and part == "|")
                )
            else:
                skipped = skipped and part not in (";", "&")
            command = []
            if part in ("(", ")", *_OPENS, *_CLOSES):
                yield [part], False


class _Constant(NamedTuple):
    text: str
    line: int
    use: Literal["read", "written", ""]


def _constants(tree: ast.AST, options: Collection[str]) -> Iterator[_Constant]:
    """Yield texts that look like paths, with their lines and what they are for.  Defaults of options that the command gives
    are left out."""
    uses: dict[int, Literal["read", "written", ""]] = {}
    skipped: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                names = {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
                if names & set(options):  # without `func`: a chain of calls would be walked again for each of its links
                    given = [*node.args, *node.keywords]
                    skipped |= {id(inner) for part in given for inner in ast.walk(part)}
                results = any(_FOR_RESULTS.search(name) for name in names)
                for word in node.keywords:
                    if word.arg == "default":
                        uses |= dict.fromkeys(_texts(word.value), "written" if results else "read")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _WRITES or name in _READS:
                reads = name in _READS and not _opens_to_write(node)
                places = [*node.args, *(word.value for word in node.keywords if word.arg in _TO)]
                for value in places:
                    uses |= dict.fromkeys(_texts(value), "read" if reads else "written")
            case ast.Assign(targets=[ast.Name(id=name)]) if _FOR_RESULTS.search(name):
                uses |= dict.fromkeys(_texts(node.value), "written")
            case ast.Expr(value=ast.Constant()):
                skipped.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield _Constant(node.value, node.lineno, "" if node.value in _WRITE_MODES else uses.get(id(node), ""))


def _texts(value: ast.expr) -> Iterator[int]:
    """Yield the ids of the first text of a path: of `"out"`, `os.path.join("out", name)`, `Path("out") / name`."""
    while True:  # not by recursion: a sum may be longer than a stack is deep
        match value:
            case ast.Call(args=[first, *_]):
                value = first
            case ast.BinOp(left=left):
                value = left
            case ast.Constant(value=str()):
                yield id(value)
                return
            case _:
                return


def _computed(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield patterns of the paths that a source puts together and opens for reading, with their lines:
    `os.path.join("data", name, f"{split}.bin")` is `data/*/*.bin`.  Left out are those where it also writes."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assigned.setdefault(name, []).append(value)
    values = {name: given[0] for name, given in assigned.items() if len(given) == 1}
    read: dict[str, int] = {}
    written = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="read_text" | "read_bytes")):
                opened, writes = [value], False
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _WRITES or name in _READS:
                opened, writes = node.args[:2], name in _WRITES or _opens_to_write(node)
            case _:
                continue
        for value in opened:
            if not isinstance(value, ast.Constant) and (pattern := _pattern(value, values, 0)):
                fields = [field for part in ast.walk(value) for _, field in ast.iter_fields(part)]
                if writes or any(isinstance(field, str) and _FOR_RESULTS.search(field) for field in fields):
                    written.add(pattern)
                else:
                    read.setdefault(pattern, node.lineno)
    for pattern, line in read.items():
        # A name of which something may be known: neither a mere constant, which is noted as it is, nor anything at all.
        if pattern not in written and "*" not in pattern.partition("/")[0] and "/" in pattern:
            yield pattern, line


def _pattern(value: ast.expr, values: dict[str, ast.expr], depth: int) -> str:
    """Return the path that an expression gives, with `*` for what is not known; "" if it is none."""
    if depth > _DEEPEST:
        return "*"
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            known = [part.value if isinstance(part, ast.Constant) else "*" for part in parts]
            return re.sub(r"\*+", "*", "".join(map(str, known)))
        case ast.Name(id=name) if name in values and not isinstance(values[name], ast.Constant):
            return _pattern(values[name], values, depth + 1)
        case ast.Name(id=name) if name.isupper() and name in values:
            return _pattern(values[name], values, depth + 1)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{_pattern(left, values, depth + 1)}/{_pattern(right, values, depth + 1)}"
        case ast.Call(func=ast.Attribute(attr="join"), args=[_, _, *_] as given):
            return "/".join(_pattern(part, values, depth + 1) for part in given[:_MOST_PARTS])
        case ast.Call(func=ast.Name(id="Path") | ast.Attribute(attr="Path" | "abspath"), args=[one]):
            return _pattern(one, values, depth + 1)
        case _:
            return "*"


def _matching(pattern: str, at: Path) -> list[str]:
    """Return files that a pattern fits, a few of them, without following links out of bounds."""
    if "**" in pattern or pattern.startswith("/") or len(pattern) > _LONGEST_PATH:
        return []
    matches = [""]
    for part in pattern.split("/"):
        if part in ("", "."):
            continue
        if "*" not in part:
            matches = [f"{match}{part}/" for match in matches if _is_there(str(at / match / part))]
            continue
        inside = list[str]()
        for match in matches:
            try:
                with os.scandir(at / match) as entries:
                    inside += [f"{match}{entry.name}/" for entry in islice(entries, 1000) if _fits(entry.name, part)]
            except (OSError, ValueError):
                continue
        matches = sorted(inside)[:_MOST_MATCHES]
    return [match.removesuffix("/") for match in matches if match]


def _fits(name: str, part: str) -> bool:
    return not name.startswith(".") and fnmatch.fnmatchcase(name, part)


def _opens_to_write(call: ast.Call) -> bool:
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    return any(isinstance(argument, ast.Constant) and argument.value in _WRITE_MODES for argument in given)


_TO = ("dir", "directory", "file", "filename", "fname", "log_dir", "name", "path")
_WRITE_MODES = ("w", "wb", "a", "ab", "x", "xb", "w+", "wt", "a+", "at")


# --- the Python that will run it ------------------------------------------------------------------------------------------


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """A Python of this machine, and what it lacks."""

    program: str
    version: str
    missing: tuple[str, ...] = ()
    """Modules that it does not find."""
    faults: dict[str, str] = {}
    """Files that it cannot compile, and why."""


_PROBE = """\
import sys
sys.path[:] = [one for one in sys.path if one]
import ast, importlib.util, json
asked = json.load(sys.stdin)
missing, faults = [], {}
for name in asked["modules"]:
    try:
        if name not in sys.builtin_module_names and importlib.util.find_spec(name) is None:
            missing.append(name)
    except Exception:
        pass
for name, path in asked["files"].items():
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", ast.PyCF_ONLY_AST, True)
    except SyntaxError as error:
        faults[name] = ("line %d: " % error.lineno if error.lineno else "") + str(error.msg)
    except Exception as error:
        faults[name] = str(error)
json.dump({"version": "%d.%d.%d" % sys.version_info[:3], "missing": missing, "faults": faults}, sys.stdout)
"""
_PROBE_S = 30.0


def ask_python(program: str, reading: Reading, folder: Path) -> Python | None:
    """Return what this Python lacks for a program that was read, None if it cannot be asked.  It looks for modules as a
    container of plain processes does: without the packages of the user's home.  Nothing of the program is run.  Blocks."""
    files = {name: str(folder / name) for name in reading.scripts if name.endswith(".py")}
    question = json.dumps({"modules": sorted(reading.imports), "files": files})
    try:
        done = subprocess.run(
            [program, "-c", _PROBE],
            input=question,
            env={"PATH": os.defpath, "HOME": "/nonexistent", "LANG": "C.UTF-8"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        return msgspec.convert({"program": program, **json.loads(done.stdout)}, Python)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def shell_faults(reading: Reading, folder: Path) -> dict[str, str]:
    """Return which shell scripts of a program bash cannot parse, and why.  Blocks."""
    faults: dict[str, str] = {}
    for name in reading.started:
        if name.endswith(".sh"):
            try:
                done = subprocess.run(
                    ["bash", "-n", f"./{name}"],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=_PROBE_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode:
                fault = (done.stderr.splitlines() or ["it cannot be parsed"])[0]
                faults[name] = fault.removeprefix(f"./{name}: ")
    return faults
