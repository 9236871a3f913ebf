"""Pure: judges an app before it is submitted (`dorm check`).  Everything was observed before: the spec, the folder, what the
program says of itself, the Python that will run it, the cluster.

`wrong` means that the app certainly does not run, or certainly not as in the shell of its author.  What only seems so is a
`note`; what could not be looked at is `unknown`.
"""

from __future__ import annotations

import posixpath
import shlex
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.assumed import PlannedApp
from dorm.doctor.findings import Finding
from dorm.local.scripts import Python, Reading
from events.quantities import MEMORY, humanize
from events.spec import CheckedSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.local.scripts import Named

_MOST_NAMED = 4
_RANKS = (
    "DORM_ARRAY_INDEX", "DORM_MASTER_ADDR", "DORM_MEMBERS", "DORM_PEERS", "DORM_RANK", "DORM_SLOT", "DORM_WORLD_SIZE",
    "LOCAL_RANK", "MPI", "RANK", "TF_CONFIG", "WORLD_SIZE", "dorm_elastic", "mpi4py",
)  # fmt: skip
"""Variables that a program reads if it shares its work among its workers."""
_DISTRIBUTED = ("DistributedDataParallel", "FullyShardedDataParallel", "init_process_group", "Accelerator")
_OWN_MASTER = ("MASTER_ADDR", "MASTER_PORT", "init_method")
_PORT_OPTIONS = ("--master_port", "--master-port", "--rdzv_endpoint", "--rdzv-endpoint", "--main_process_port")
_PROVIDES = {
    "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "google": "protobuf", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Packages whose name is not that of their module."""


class AppFinding(Finding, frozen=True):
    """The result of one check of an app, with a code for programs."""

    code: str = ""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that would be shipped."""

    path: str
    files: int = 0
    size: int = 0
    """Bytes."""
    names: frozenset[str] = frozenset()
    """Everything that it has, with the folders in between."""
    left_out: tuple[str, ...] = ()
    """The entries that are left out, as sentences."""
    room: int | None = None
    """Bytes, compressed, that its owner may still ship; None if that is not known."""
    refused: tuple[str, str] | None = None
    """Code and text, if it cannot be shipped."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says of the app."""

    name: str
    nodes: int
    local: bool
    """Whether all nodes are this machine."""
    images: tuple[str, ...] = ()
    """Nodes that run containers from images."""
    processes: tuple[str, ...] = ()
    """Nodes that run plain processes."""
    refusals: tuple[tuple[str, str], ...] = ()
    """Codes and texts for which the app would be refused."""
    planned: PlannedApp | None = None
    """Plan of the next decision for the app; None if it would be refused."""
    others: tuple[str, ...] = ()
    """Other apps that this decision would change, in words."""
    paused: str = ""
    start: str = ""
    """Sentence about its start, if that is not at once."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of an app before it is submitted."""

    name: str
    spec: CheckedSpec | None = None
    """The checked spec; None if it has faults."""
    faults: tuple[tuple[str, str], ...] = ()
    """Codes and texts of what is wrong with the spec or the command."""
    notes: tuple[str, ...] = ()
    """Notes of the reader of the spec."""
    apps: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names and commands of a sweep's first and last app."""
    count: int = 1
    """Number of apps."""
    folder: Folder | None = None
    """The folder that would be shipped; None for none."""
    unshipped: str = ""
    """A script that is next to the spec and that nothing brings to the nodes."""
    reading: Reading | None = None
    """Contents of the program's files; None if no folder of this machine holds the program."""
    python: Python | None = None
    unasked: str = ""
    """Reason why there is no `python`."""
    not_found: tuple[str, ...] = ()
    """Programs that start it, and that are not on the nodes."""
    variables: tuple[tuple[str, str], ...] = ()
    """Codes and texts of what looks like variables that nothing expands."""
    not_passed: str = ""
    """The variables of the shell that the app does not get, as a sentence; "" for none."""
    cluster: Cluster | None = None
    unreached: tuple[str, str] = ("", "")
    """Code and text, if there is no `cluster`."""


def judge_app(seen: Observed) -> list[AppFinding]:
    """Return the findings of all checks, by subject."""
    return [*_spec(seen), *_folder(seen), *_program(seen), *_paths(seen), *_contract(seen), *_cluster(seen)]


def _ok(check: str, text: str) -> AppFinding:
    return AppFinding("ok", check, "", text)


def _wrong(check: str, text: str, todo: str = "", *, code: str) -> AppFinding:
    return AppFinding("wrong", check, "", text, todo, code)


def _note(check: str, text: str, todo: str = "", *, code: str) -> AppFinding:
    return AppFinding("note", check, "", text, todo, code)


def _unknown(check: str, text: str, todo: str = "", *, code: str) -> AppFinding:
    return AppFinding("unknown", check, "", text, todo, code)


# --- the spec -----------------------------------------------------------------------------------------------------------


def _spec(seen: Observed) -> Iterator[AppFinding]:
    for code, text in seen.faults:
        yield _wrong("spec", text, code=code)
    for text in seen.notes:
        yield _note("spec", f"noticed while it was read: {text}", code="check.spec.note")
    for code, text in seen.variables:
        yield _wrong("variables", text, code=code)
    if seen.not_passed:
        yield _note("variables", f"variables of this shell: {seen.not_passed}", code="check.variables.not_passed")
    if (spec := seen.spec) is None:
        return
    each = ", ".join(humanize(name, amount) for name, amount in spec.resources().items())
    size = f"{spec.n_min}" if spec.n_min == spec.n_max else f"{spec.n_min} to {spec.n_max}"
    plural = "" if (spec.n_min, spec.n_max) == (1, 1) else "s"
    if not seen.apps:
        yield _ok("spec", f"{size} container{plural} of {each}, engine {spec.engine}: {_argv(spec.command)}")
    else:
        yield _ok("spec", f"{seen.count} apps, each {size} container{plural} of {each}, engine {spec.engine}")
        for name, command in seen.apps:
            yield _ok("spec", f"{name}: {_argv(command)}")
    for name, secret in spec.secrets.items():
        yield _unknown(
            "secrets",
            f"{name}: whether the nodes have a secret {secret} of {spec.user if spec.user != 'anonymous' else 'yours'} is "
            "not known before it starts",
            "ask who runs the nodes (`dorm agent --secrets`)",
            code="check.secrets.unseen",
        )


def _argv(command: tuple[str, ...] | list[str]) -> str:
    """Return the exact words, so that each can be distinguished from its neighbor."""
    shown = msgspec.json.encode(list(command)).decode()
    return shown if len(shown) <= 300 else f"{shown[:297]}..."


# --- the folder ---------------------------------------------------------------------------------------------------------


def _folder(seen: Observed) -> Iterator[AppFinding]:
    folder = seen.folder
    if folder is None:
        if seen.unshipped and seen.spec is not None and not seen.spec.image:
            yield _wrong(
                "folder",
                f"nothing brings {seen.unshipped} to the nodes: the spec ships no folder",
                "write `workdir: .` into the spec",
                code="check.folder.not_shipped",
            )
        elif seen.unshipped:
            yield _note(
                "folder",
                f"{seen.unshipped} is beside the spec, and nothing brings it to the nodes, unless the image has it",
                "`workdir: .` would",
                code="check.folder.not_shipped",
            )
        return
    if folder.refused is not None:
        code, text = folder.refused
        yield _wrong("folder", text, code=code)
        return
    files = f"{folder.files:,} file{'' if folder.files == 1 else 's'}"
    yield _ok("folder", f"{folder.path}: {files}, {humanize(MEMORY, folder.size)} would be shipped")
    if folder.room is not None and folder.size > folder.room:
        yield _note(
            "folder",
            f"it may not fit: {humanize(MEMORY, max(0, folder.room))} are left of what you may ship, compressed and without "
            "what is there already",
            "`dorm files purge --unused-for 1m` removes what no app of yours names; leave out what is large by .dormignore",
            code="check.folder.quota",
        )
    for line in folder.left_out[:_MOST_NAMED]:
        yield _note("folder", line, code="check.folder.left_out")
    if more := folder.left_out[_MOST_NAMED:]:
        yield _note("folder", f"{len(more)} more are left out", code="check.folder.left_out")


# --- the program --------------------------------------------------------------------------------------------------------


def _program(seen: Observed) -> Iterator[AppFinding]:
    reading = seen.reading
    for word in seen.not_found:
        yield _wrong(
            "program",
            f"{word}: there is no such program in the containers' PATH",
            "name it by its path, or install it",
            code="check.program.not_found",
        )
    if reading is None:
        return
    reported = {code for code, _ in seen.faults}
    for script, where in reading.absent.items():
        if "run.script.not_found" not in reported:
            yield _wrong(
                "program", f"{where}: there is no {script}", "correct its name", code="check.program.script_not_found"
            )
    faults = {**reading.faults, **(seen.python.faults if seen.python is not None else {})}
    if seen.python is None:
        for name, why in reading.unparsed.items():
            text = f"{name}: {why}, says the Python of this command; the one that runs it was not asked"
            yield _note("program", text, code="check.program.malformed")
    for name, why in faults.items():
        yield _wrong("program", f"{name}: {why}", "correct it", code="check.program.malformed")
    yield from _directives(seen, reading)
    for tool, where in reading.tools.items():
        if tool in _OF_SLURM:
            text, todo = _OF_SLURM[tool]
            yield _wrong("program", f"{where}: {tool} is Slurm's; {text}", todo, code="check.program.foreign_tool")
        else:
            todo = _OF_SHELLS["module" if tool == "module" else "conda"]
            text = f"{where}: {tool} needs functions of a login shell, which no container has"
            yield _note("program", text, todo, code="check.program.foreign_tool")
    if reading.scripts and not reading.absent and not faults:
        named = ", ".join(reading.started[:_MOST_NAMED]) or "the command"
        modules = len(reading.scripts) - len(reading.started)
        more = f", with {modules} module{'' if modules == 1 else 's'} of the folder" if modules > 0 else ""
        yield _ok("program", f"{named} can be read{more}")
    elif not (reading.scripts or reading.pythons or reading.absent or reading.faults or seen.not_found or seen.faults):
        first = seen.spec.command[0] if seen.spec is not None else "the command"
        yield _unknown(
            "program",
            f"{first} is no script that can be read: what it starts, and which files it needs, is not known",
            code="check.program.not_read",
        )
    for where in list(reading.lost.values())[:_MOST_NAMED]:
        yield _unknown(
            "program",
            f"{where}: the folder in which this runs is known only then, so what it and the next lines need is not checked",
            code="check.program.not_read",
        )
    for variable, where in list(reading.unset.items())[:_MOST_NAMED]:
        here = next((ours for name, ours in _VARIABLES.items() if variable.endswith(name)), "")
        yield _note(
            "variables",
            f"{where}: {variable} is set by another system, and is empty here",
            f"the same here: {here}" if here else "",
            code="check.variables.foreign",
        )
    yield from _imports(seen, reading)


_VARIABLES = {
    "_PROCID": "DORM_RANK", "_NODE_RANK": "DORM_RANK", "_NODEID": "DORM_RANK", "_NTASKS": "DORM_WORLD_SIZE",
    "_NUM_NODES": "DORM_WORLD_SIZE", "_NODES_NUM": "DORM_WORLD_SIZE", "_NNODES": "DORM_WORLD_SIZE",
    "_JOB_NUM_NODES": "DORM_WORLD_SIZE", "_JOB_ID": "DORM_APP", "_JOBID": "DORM_APP", "_TASK_ID": "DORM_ARRAY_INDEX",
    "_NODELIST": "DORM_PEERS", "_NODE_IPS": "DORM_PEERS", "_NODES_IPS": "DORM_PEERS", "_LOCALID": "0",
    "_MASTER_NODE_IP": "DORM_MASTER_ADDR", "_RUN_NAME": "DORM_APP",
}  # fmt: skip
"""The ends of other systems' variables, and what has the value here."""

_DIRECTIVES = {
    "--cpus-per-task": "--cpu {}", "-c": "--cpu {}", "--mem": "--memory {}", "--gres": "--gpu {}", "--gpus": "--gpu {}",
    "--gpus-per-task": "--gpu {}", "--time": "--max-runtime {}", "-t": "--max-runtime {}", "--job-name": "--name {}",
    "-J": "--name {}", "--ntasks": "--n-min {0} --n-max {0}", "-n": "--n-min {0} --n-max {0}",
    "--nodes": "--n-min {0} --n-max {0}", "-N": "--n-min {0} --n-max {0}",
    "--signal": "--set stop_signal.signal={}", "--constraint": "--set require='has {}'",
}  # fmt: skip
"""Options of Slurm, and those of `dorm run` for them."""


def _directives(seen: Observed, reading: Reading) -> Iterator[AppFinding]:
    """Judge lines with `#SBATCH`: a script that still has them may be started with the same options."""
    if not reading.directives:
        return
    options = [
        part for option in reading.directives for part in (option.split("=", 1) if option[:2] == "--" else [option])
    ]
    given = dict(pairwise(options))
    tasks, nodes = given.get("--ntasks", given.get("-n", "")), given.get("--nodes", given.get("-N", ""))
    if each := given.get("--ntasks-per-node", ""):
        product = str(int(each) * int(nodes or 1)) if each.isdigit() and (nodes or "1").isdigit() else ""
        given["--ntasks"] = tasks = tasks or product
    if tasks:  # What counts containers; their nodes are not named.
        given = {name: value for name, value in given.items() if name not in ("--nodes", "-N")}
    equivalents = [
        _DIRECTIVES[name].format(_as_here(name, value)) for name, value in given.items() if name in _DIRECTIVES
    ]
    yield _note(
        "program",
        f"nothing reads the options in the script's #SBATCH lines: {' '.join(reading.directives)[:200]}",
        f"the same here: {' '.join(equivalents)}"
        if equivalents
        else "the page `Coming from Slurm` says what to write instead",
        code="check.program.directives",
    )


def _as_here(name: str, value: str) -> str:
    """Return a value of Slurm's as it is written here: `gpu:a100:2` as 2, `8G` as 8GiB, `1-12:00:00` as 36h."""
    if name in ("--gres", "--gpus", "--gpus-per-task"):
        return value.rpartition(":")[2]
    if name == "--signal":
        signal, _, before = value.rpartition(":")[2].partition("@")
        signal = signal if signal.startswith("SIG") else f"SIG{signal}"
        return signal + (f" --set stop_signal.before={before}s" if before.isdigit() and signal != "SIGTERM" else "")
    if name == "--mem" and value[:-1].isdigit():
        return f"{value}iB" if value[-1] in "KMGT" else f"{value}MiB"
    if name in ("--time", "-t"):
        days, dash, rest = value.rpartition("-")
        parts = rest.split(":")
        if not all(part.isdigit() for part in (*parts, days or "0")) or len(parts) > 3:
            return value
        if dash:
            parts = [*parts, "0", "0"]
        elif len(parts) < 3:
            parts = ["0", *parts, "0"]
        hours, minutes, seconds = map(int, parts[:3])
        total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
        return next(
            f"{total // length}{unit}" for unit, length in (("h", 3600), ("m", 60), ("s", 1)) if not total % length
        )
    return value


_OF_SLURM = {
    "scontrol": (
        "no container has it",
        "leave the line out; DORM_PEERS lists the workers, DORM_MASTER_ADDR is the first one's address",
    ),
    "srun": ("Dorm starts the command in each container", "leave srun and its options out"),
    "sbatch": ("it would submit to Slurm, not to this cluster", "name the script that it submits instead"),
}
_OF_SHELLS = {
    "module": "use an image, `requirements:` or `setup:`, or set the variables in `env:`",
    "conda": "name the environment's Python by its path, list its packages in `requirements:`, or use an image",
}


def _imports(seen: Observed, reading: Reading) -> Iterator[AppFinding]:
    spec, python = seen.spec, seen.python
    if not reading.imports and not reading.pythons:
        return
    if python is None:
        if reading.pythons and seen.unasked:
            yield _unknown(
                "python", f"{seen.unasked}: whether it has the packages is not known", code="check.python.not_asked"
            )
        return
    packages = {_package(line) for line in spec.requirements} if spec is not None else set()
    builds = spec is not None and bool(spec.requirements or spec.setup)
    missing = [name for name in python.missing if _normal(_PROVIDES.get(name, name)) not in packages]
    if not missing:
        there = " and the requirements provide" if packages else " has"
        yield _ok("python", f"{python.program} ({python.version}){there} the packages that the program imports")
        return
    named = ", ".join(f"{name} ({reading.imports[name]})" for name in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    install = " ".join(sorted({_PROVIDES.get(name, name) for name in missing}))
    modules = "module" if len(missing) == 1 else "modules"
    if builds:
        yield _note(
            "python",
            f"{python.program} ({python.version}) has no {modules} {named}{more}, and no requirement has such a name",
            f"add {install} to `requirements:`, unless they come with other packages",
            code="check.python.not_required",
        )
    else:
        yield _wrong(
            "python",
            f"{python.program} ({python.version}) has no {modules} {named}{more}",
            f"install {install} there, or name it in `requirements:` (`--requirements FILE`)",
            code="check.python.module_not_found",
        )


def _package(line: str) -> str:
    """Return the name of a requirement's package, normalized."""
    name = line.strip()
    for sign in " ;@<>=!~[":
        name = name.partition(sign)[0]
    return _normal(name)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


# --- paths --------------------------------------------------------------------------------------------------------------


def _paths(seen: Observed) -> Iterator[AppFinding]:
    """Judge the paths that the command and its scripts name: what is there in the shell may not be there in the copy."""
    reading, reported = seen.reading, set[tuple[str, str]]()
    if reading is None:
        return
    yield from _results(seen, reading)
    for named in reading.paths:
        finding = _path(seen, named)
        if finding is not None and (finding.code, named.target) not in reported:
            reported.add((finding.code, named.target))
            yield finding
    for name, where in reading.local.items():
        if seen.folder is not None and seen.folder.refused is None and name not in seen.folder.names:
            yield _wrong(
                "paths",
                f"{where}: it imports {name}, which is not shipped",
                _shipping(name, seen.folder),
                code="check.paths.left_out",
            )


def _path(seen: Observed, named: Named) -> AppFinding | None:
    if named.target.startswith("/"):
        return _absolute(seen, named)
    folder = seen.folder
    if folder is None or folder.refused is not None:
        return None
    outside = named.target.startswith("..")
    made = {path.target for path in seen.reading.paths if path.written} if seen.reading is not None else set[str]()
    if named.written and named.used:
        return _output(named, folder, made)
    if not named.there or named.target in made:
        return None
    if outside:
        return _wrong(
            "paths",
            f"{named.where}: {named.path} is outside of the folder that is shipped, so it is not there in the copy",
            f"{_from_above(seen, named, folder)}, or let the nodes offer the data (`volumes:`)",
            code="check.paths.outside",
        )
    if named.target not in folder.names:
        text = f"{named.where}: {named.path} is here and is not shipped"
        if named.target.endswith(("/activate", "/conda.sh")):
            todo = "leave this line out, and list the environment's packages in `requirements:`"
            if seen.cluster is not None and seen.cluster.local:
                todo = "leave this line out: the app gets this shell's Python, with the environment that is active here"
        else:
            todo = f"{_shipping(named.target, folder)}; large data belongs on the nodes, as a volume (`volumes:`)"
        make = _wrong if named.used and not _may_be_another(named, seen, folder) else _note
        return make("paths", text, todo, code="check.paths.left_out")
    return None


def _output(named: Named, folder: Folder, made: set[str]) -> AppFinding | None:
    """Judge a file to which a shell script sends output: its folder has to be there."""
    folder_of_output = posixpath.dirname(named.target)
    made_too = any(
        path == folder_of_output or path.startswith(f"{folder_of_output}/") for path in made if path != named.target
    )
    if made_too or folder_of_output in folder.names or not folder_of_output.strip("./"):
        return None
    return _wrong(
        "paths",
        f"{named.where}: the copy has no folder for {named.path}, so the shell cannot write there",
        f"make it before, by `mkdir -p {shlex.quote(posixpath.dirname(named.path))}`",
        code="check.paths.no_folder",
    )


def _from_above(seen: Observed, named: Named, folder: Folder) -> str:
    """Return how to ship a folder above and still start the command in this one."""
    up = 0
    for part in PurePosixPath(named.target).parts:
        if part != "..":
            break
        up += 1
    inner = "/".join(PurePosixPath(posixpath.normpath(folder.path)).parts[-up:])
    above = "/".join([".."] * up)
    command = shlex.join(seen.spec.command) if seen.spec is not None else ""
    typed = f"--workdir {above} -- env -C {shlex.quote(inner)} {command if 0 < len(command) <= 100 else 'COMMAND'}"
    return f"ship the folder above and start the command in this one: `{typed}`"


def _may_be_another(named: Named, seen: Observed, folder: Folder) -> bool:
    """Return whether a program that computes the path may mean one that is shipped."""
    others = seen.reading.paths if named.pattern and seen.reading is not None else ()
    return any(other.pattern == named.pattern and other.target in folder.names for other in others)


def _shipping(target: str, folder: Folder) -> str:
    """Return how to ship something that is left out.  Rules do not look into a folder that is left out as a whole."""
    path = PurePosixPath(target)
    outermost = next((str(parent) for parent in reversed(path.parents) if str(parent) not in folder.names), "")
    return f"ship it by a line `!/{outermost + '/' if outermost else target}` in .dormignore"


def _results(seen: Observed, reading: Reading) -> Iterator[AppFinding]:
    """Judge where results go: everything in the copy ends with the container."""
    if seen.folder is None or reading.mentions("DORM_OUTPUTS", "DORM_CHECKPOINT_DIR"):
        return
    written = {
        path.path: path.where for path in reversed(reading.paths) if path.written and not path.path.startswith("/")
    }
    places = list(dict.fromkeys(path.path for path in reading.paths if path.path in written))
    if places:
        named = ", ".join(places[:_MOST_NAMED]) + (" and others" if len(places) > _MOST_NAMED else "")
        yield _note(
            "paths",
            f"{written[places[0]]}: what it writes to {named} is deleted with the container",
            "write results to the folder in DORM_OUTPUTS, and checkpoints to the one in DORM_CHECKPOINT_DIR",
            code="check.paths.not_kept",
        )


def _absolute(seen: Observed, named: Named) -> AppFinding | None:
    """Judge an absolute path of this machine."""
    offered = [str(at) for at in _mounted(seen)]
    inside = any(PurePosixPath(named.path).is_relative_to(at) for at in offered if at)
    system = named.path.startswith(("/dev/", "/proc/", "/sys/", "/tmp", "/usr/", "/bin/", "/etc/", "/opt/", "/lib"))
    cluster = seen.cluster
    if inside or system or named.path == "/" or cluster is None:
        return None
    if cluster.images and not cluster.processes:
        if not named.there:
            return None  # It may be in the image.
        text = (
            f"{named.where}: {named.path} is a path of this machine, and containers from images see none of its folders"
        )
    elif not cluster.local:
        text = f"{named.where}: {named.path} has to be on every node"
    elif named.there or named.written or not named.used:
        return None
    else:
        text = f"{named.where}: there is no {named.path} here, where all nodes are"
    todo = "let the nodes offer it as a volume and name it in `volumes:`"
    return _note("paths", text, todo, code="check.paths.of_this_machine")


def _mounted(seen: Observed) -> Iterator[str]:
    from events.spec import volumes_of

    if seen.spec is not None:
        for volume in volumes_of(seen.spec.volumes):
            yield volume.at or f"/volumes/{volume.name}"


# --- what Dorm expects of a program -------------------------------------------------------------------------------------


def _contract(seen: Observed) -> Iterator[AppFinding]:
    spec, reading = seen.spec, seen.reading
    if spec is None or reading is None or not reading.started:
        return
    if spec.n_max > 1 and spec.engine == "plain":
        yield from _ranks(spec, reading)
    yield from _ports(spec, reading)
    if spec.elastic or reading.mentions("dorm_elastic"):
        return
    reports = reading.mentions("DORM_PROGRESS")
    if not reports and spec.resume and spec.resume != spec.command:
        yield _note(
            "checkpoints",
            f"nothing starts the spec's `resume`: {reading.started[-1]} reports no checkpoint, so `command` runs after each "
            "restart, and may overwrite what was saved",
            'write a line such as {"checkpoint": 120} to the file in DORM_PROGRESS whenever it has saved',
            code="check.checkpoints.resume_unused",
        )
        return
    if not reading.mentions("DORM_CHECKPOINT_DIR") or not reports:
        which = "does not report checkpoints" if not reports else "saves nothing to DORM_CHECKPOINT_DIR"
        fixed = spec.n_min == spec.n_max or spec.resizable == "never"
        when = "a move to another node" if fixed else "a resize"
        more = "" if fixed else "; until then, `resizable: never` (`--resizable never`) keeps its containers"
        yield _note(
            "checkpoints",
            f"{reading.started[-1]} {which}, so {when} restarts it from the beginning",
            f"save to DORM_CHECKPOINT_DIR and report it in DORM_PROGRESS{more}",
            code="check.checkpoints.none",
        )
    else:
        yield _ok("checkpoints", "it saves to DORM_CHECKPOINT_DIR and reports in DORM_PROGRESS")


def _ranks(spec: CheckedSpec, reading: Reading) -> Iterator[AppFinding]:
    several = f"with up to {spec.n_max} containers"
    if reading.launchers:
        program, where = next(iter(reading.launchers.items()))
        yield _note(
            "ranks",
            f"{where}: {program} starts workers of its own in each container, and {several} these trainings do not know of "
            "each other",
            "use `engine: torchrun` with the script alone; `engine_options: {processes: N}` starts several in a container",
            code="check.ranks.own_launcher",
        )
    elif reading.mentions(*_DISTRIBUTED):
        yield _note(
            "ranks",
            "the program uses torch.distributed, and only the engine torchrun sets RANK, WORLD_SIZE and MASTER_ADDR for it",
            "use `engine: torchrun`",
            code="check.ranks.engine",
        )
    elif not reading.mentions(*_RANKS):
        yield _note(
            "ranks",
            f"the program does not look at its rank: {several}, the same work is done in each of them",
            "use n_max 1, or share the work by DORM_RANK and DORM_WORLD_SIZE",
            code="check.ranks.unused",
        )


def _ports(spec: CheckedSpec, reading: Reading) -> Iterator[AppFinding]:
    typed = [word.partition("=")[0] for word in spec.command]
    if option := next((word for word in typed if word in _PORT_OPTIONS), ""):
        yield _note(
            "ports",
            f"the command chooses a port by {option}, which another app on the same node may have",
            "use `engine: torchrun`, or the port in DORM_MASTER_PORT",
            code="check.ports.fixed",
        )
    elif (
        reading.mentions("localhost", "127.0.0.1")
        and reading.mentions(*_OWN_MASTER)
        and reading.mentions(*_DISTRIBUTED)
    ):
        yield _note(
            "ports",
            "the program seems to meet its other workers at a fixed address of its own machine, where several containers or "
            "apps on one node would collide and several nodes never meet",
            "leave MASTER_ADDR and MASTER_PORT to `engine: torchrun`",
            code="check.ports.fixed",
        )


# --- the cluster --------------------------------------------------------------------------------------------------------


def _cluster(seen: Observed) -> Iterator[AppFinding]:
    cluster, spec = seen.cluster, seen.spec
    if cluster is None:
        code, text = seen.unreached
        yield _unknown(
            "cluster",
            f"nodes, volumes, limits and the place that it would get are not checked: {text}",
            code=code,
        )
        return
    if spec is None:
        yield _unknown(
            "cluster",
            "nodes, volumes and the place that it would get are checked once the spec is right",
            code="check.cluster.not_asked",
        )
        return
    if "run.image.missing" not in {code for code, _ in seen.faults}:
        yield from _image(spec, cluster)
    for code, text in cluster.refusals:
        yield _wrong("cluster", text, code=code)
    if not cluster.nodes:
        yield _note(
            "cluster", f"cluster {cluster.name} has no node yet, so it would wait", code="check.cluster.no_nodes"
        )
    if cluster.paused:
        yield _note("cluster", f"{cluster.paused}; until then, it would wait", code="check.cluster.paused")
    planned = cluster.planned
    if planned is None or cluster.refusals:
        return
    if planned.after:
        where = ", ".join(f"{count} on {node}" for node, count in sorted(planned.nodes_after.items()))
        plural = "" if planned.after == 1 else "s"
        yield _ok("place", f"it would get {planned.after} container{plural} now: {where}")
    else:
        reason = f"{planned.reason.text} ({planned.reason.code})" if planned.reason is not None else "no room"
        start = f"; {cluster.start[0].lower()}{cluster.start[1:]}" if cluster.start else ""
        yield _note("place", f"it would wait now: {reason}{start}", code="check.place.waits")
    for text in cluster.others[:_MOST_NAMED]:
        yield _note("place", text, code="check.place.others")
    if more := cluster.others[_MOST_NAMED:]:
        yield _note(
            "place", f"{len(more)} more apps would change", "`dorm plan SPEC` lists them", code="check.place.others"
        )


def _image(spec: CheckedSpec, cluster: Cluster) -> Iterator[AppFinding]:
    if cluster.images and not spec.image:
        named = ", ".join(cluster.images[:_MOST_NAMED])
        verb = "runs" if len(cluster.images) == 1 else "run"
        make = _note if cluster.processes else _wrong
        yield make(
            "image",
            f"{named} {verb} containers from images, and the spec names none",
            "name one that has the program, such as `image: python:3.12-slim`",
            code="run.image.missing",
        )
    elif spec.image and not cluster.images and cluster.nodes:
        yield _note(
            "image",
            f"the nodes run plain processes and ignore the image {spec.image}: the programs are those of the nodes",
            code="check.image.ignored",
        )
