"""Builds an app's environment, then becomes the app's command: `python3 dorm-environment.py FOLDER [--inside] COMMAND…`.

The agent writes this file into the containers of apps that ask for an environment, where it runs with only Python's
standard library.  `dorm-environment.json` beside it says what to build.  In FOLDER, which all containers of the app
on a node share, it keeps

    lock     held (shared) by each container that uses it, until that has ended
    building held by the one that builds
    venv     the virtual environment
    ready    written once everything is built: the key, and which packages the Python had on which it builds
    failed   which generation could not build it, and why: its other containers do not try again

and beside itself `dorm-environment-ready`, with the seconds that this container has waited.  A container that finds nothing
ready builds; others wait for it.  Commands that fail end the container with the code 125, and the last line says which failed.
With --inside it builds nothing: for commands in a container that runs.
"""

import fcntl
import glob
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FAILED = 125
"""The exit code of a container whose environment can't be built."""
READY = "dorm-environment-ready"
PLAN = "dorm-environment.json"
REQUIREMENTS = "requirements.txt"


class Failed(Exception):
    """The environment can't be built; the message says what to change."""


def say(what: str) -> None:
    print("dorm: " + what, flush=True)


def main() -> None:
    folder, command = sys.argv[1], sys.argv[2:]
    if command[0] == "--inside":
        become(os.path.join(folder, "venv"), command[1:])
    begun = time.monotonic()
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(here, PLAN)) as file:
            plan = json.load(file)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
        built = have(folder, plan, lock)
        # The app's process keeps the lock as long as it lives, and the agent removes no environment that is in use.
        os.set_inheritable(lock, True)
        note(here, time.monotonic() - begun if built else 0.0)
    except Failed as failed:
        fail(str(failed))
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}")
    become(os.path.join(folder, "venv"), command)


def have(folder: str, plan: "dict[str, Any]", lock: int) -> bool:
    """Return whether something had to be built, or waited for.  Raises Failed, OSError."""
    ready = os.path.join(folder, "ready")
    mark = [plan["key"]]
    if "/" in plan["python"]:
        mark += described(interpreter(plan["python"]))["packages"]
    fcntl.flock(lock, fcntl.LOCK_SH)
    if is_ready(ready, mark):
        os.utime(ready)
        return False
    stale = os.path.exists(ready)
    if stale:  # A container that waits for the one that builds must not keep it from building.
        fcntl.flock(lock, fcntl.LOCK_UN)
    with open(os.path.join(folder, "building"), "w") as building:
        try:
            fcntl.flock(building, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another container builds the environment; waiting for it")
            fcntl.flock(building, fcntl.LOCK_EX)
        if is_ready(ready, mark):
            fcntl.flock(lock, fcntl.LOCK_SH)
            return True
        stale = os.path.exists(ready)
        if stale and not alone(lock):
            say("the packages of {} have changed, and another container uses what was built".format(plan["python"]))
            return False
        check_not_failed(folder, plan["generation"])
        try:
            if stale:
                os.unlink(ready)
            build(folder, plan)
        except Failed as failed:
            with open(os.path.join(folder, "failed"), "w") as file:
                json.dump({"generation": plan["generation"], "reason": str(failed)}, file)
            raise
        with open(ready, "w") as file:
            file.write("\n".join(mark))
        fcntl.flock(lock, fcntl.LOCK_SH)
    return True


def is_ready(ready: str, mark: "list[str]") -> bool:
    try:
        with open(ready) as file:
            return file.read() == "\n".join(mark)
    except FileNotFoundError:
        return False


def alone(lock: int) -> bool:
    """Return whether no other container uses the environment, which is then held alone; otherwise, it is shared."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return False
    return True


def check_not_failed(folder: str, generation: str) -> None:
    """Raises Failed if another container of this generation could not build it: this one could not either."""
    try:
        with open(os.path.join(folder, "failed")) as file:
            failed = json.load(file)
    except (OSError, ValueError):
        return
    if failed.get("generation") == generation:
        raise Failed(str(failed.get("reason")))


def build(folder: str, plan: "dict[str, Any]") -> None:
    """Create the virtual environment, install the requirements, run the commands. Raises Failed."""
    begun = time.monotonic()
    venv = os.path.join(folder, "venv")
    say("building the environment {}".format(plan["key"][:12]))
    remove(venv)
    python = interpreter(plan["python"])
    uv = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
    base = described(python)
    sees = plan["site_packages"] or "/" in plan["python"]
    environment = dict(
        os.environ, UV_CACHE_DIR=os.path.join(folder, "cache"), PIP_NO_CACHE_DIR="1", UV_LINK_MODE="copy"
    )
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off", UV_NO_PROGRESS="1")
    inside = within(venv, environment)
    pip = base["ensurepip"] or (sees and base["pip"])
    # A virtual environment passes on the packages of the Python that it was made from, and not its own.
    options = ["--system-site-packages"] if sees and not base["venv"] else []
    options += [] if base["ensurepip"] and not (sees and base["pip"]) else ["--without-pip"]
    run([python, "-m", "venv", *options, venv], environment, shown=" ".join([python, "-m", "venv", *options]))
    if sees:
        build_on(venv, python, base["sites"] if base["venv"] else [])
    if pip and not os.path.lexists(os.path.join(venv, "bin", "pip")):
        with open(os.path.join(venv, "bin", "pip"), "w") as file:
            file.write('#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n')
        os.chmod(os.path.join(venv, "bin", "pip"), 0o755)
    if plan["requirements"]:
        listed = os.path.join(folder, REQUIREMENTS)
        with open(listed, "w") as file:
            file.write("\n".join(plan["requirements"]) + "\n")
        own = os.path.join(venv, "bin", "python")
        if not uv and not pip:
            raise Failed(
                "there is neither pip nor uv here to install its requirements; use an image that has one of them"
            )
        as_user = dict(inside, **of_user())
        # uv does not see packages of other folders, and would install PyTorch again; nor does it read pip's configuration.
        uses_uv = uv and not (pip and ((sees and base["packages"]) or is_configured(own, as_user)))
        install = [uv, "pip", "install", "--python", own] if uses_uv else [own, "-m", "pip", "install"]
        # As short as people would type it: the end of the output is the reason of the app's failure.
        shown = ("uv" if uses_uv else "python -m") + " pip install -r " + REQUIREMENTS
        run([*install, "-r", listed], dict(as_user, **for_uv(as_user)) if uses_uv else as_user, shown=shown)
    for line in plan["setup"]:
        run(["/bin/sh", "-ec", line], inside, shown=line)
    remove(os.path.join(folder, "cache"))
    say("built the environment in %.1f s" % (time.monotonic() - begun))


def remove(folder: str) -> None:
    """Remove what an earlier build left.  A command of its may have mounted something there: the files of a mount are not the
    environment's.  Raises Failed."""
    inside = os.path.realpath(folder) + "/"
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            points = [os.fsdecode(unescaped(line.split()[4])) for line in file]
    except OSError:
        points = []
    mounted = next((point for point in points if (point + "/").startswith(inside)), None)
    if mounted is not None:
        raise Failed(f"something is mounted at {mounted}; unmount it, and nothing of it is removed")
    shutil.rmtree(folder, ignore_errors=True)


def unescaped(path: bytes) -> bytes:
    """Return a path as it is, which has octal numbers for spaces and the like in the list of mounts (proc(5))."""
    return re.sub(rb"\\([0-7]{3})", lambda escape: bytes([int(escape[1], 8)]), path)


DESCRIBES = """
import glob, importlib.util, json, os, sys
sites = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
names = [os.path.basename(found) for path in sites for found in glob.glob(os.path.join(glob.escape(path), "*.*-info"))]
ours = ("pip-", "setuptools-", "wheel-", "uv-", "distribute-", "pkg_resources-")
print(json.dumps({
    "venv": sys.prefix != sys.base_prefix,
    "sites": sites,
    "packages": sorted(set(name for name in names if not name.startswith(ours))),
    "pip": importlib.util.find_spec("pip") is not None,
    "ensurepip": importlib.util.find_spec("ensurepip") is not None,
}))
"""


def described(python: str) -> "dict[str, Any]":
    """Return what a Python is and which packages it has.  Raises Failed."""
    try:
        done = subprocess.run([python, "-c", DESCRIBES], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        description: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise Failed(f"{python} does not run as a Python: {error}") from None
    return description


def build_on(venv: str, python: str, sites: "list[str]") -> None:
    """Let an environment see the packages in `sites`, after its own, and have programs that were installed with them run with
    its Python, such as torchrun."""
    own = os.path.join(venv, "bin", "python")
    if sites:
        adding = "; ".join(f"site.addsitedir({site!r})" for site in sites)
        for folder in glob.glob(os.path.join(glob.escape(venv), "lib", "python*", "site-packages")):
            with open(os.path.join(folder, "dorm-base.pth"), "w") as file:
                file.write(f"import site; {adding}\n")
    programs = os.path.dirname(python)
    if programs in SEARCHED.split(":"):
        return
    # The second form is pip's for paths that are long or have a space.
    named = re.escape(os.fsencode(programs)) + rb"/python[0-9.]*"
    interprets = re.compile(
        rb"#!" + named + rb"[ \t]*\n|#!/bin/sh\n'''exec' \"?" + named + rb"\"? \"\$0\" \"\$@\"\n' '''\n"
    )
    start = b"#!/bin/sh\n'''exec' \"" + os.fsencode(own) + b'" "$0" "$@"\n\' \'\'\'\n'
    for name in os.listdir(programs):
        path, target = os.path.join(programs, name), os.path.join(venv, "bin", name)
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST_PROGRAM or os.path.lexists(target):
            continue
        with open(path, "rb") as file:
            text = file.read()
        match = interprets.match(text)
        if match:
            with open(target, "wb") as file:
                file.write(start + text[match.end() :])
            os.chmod(target, 0o755)


LARGEST_PROGRAM = 64 * 1024


def of_user() -> "dict[str, str]":
    """Return the home in which pip and uv find the configuration of this user of the machine; none in an image, whose passwd
    does not know the user."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return {}
    return {"HOME": home} if os.access(home, os.R_OK | os.X_OK) else {}


def is_configured(own: str, environment: "dict[str, str]") -> bool:
    """Return whether pip is told where to find packages, by files or variables, and uv is not."""
    if any(
        environment.get(name)
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
    ):
        return False
    done = subprocess.run(
        [own, "-m", "pip", "config", "list"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    names = (b"index-url", b"find-links", b"no-index", b"trusted-host", b".cert", b"proxy")
    return any(name in line.partition(b"=")[0] for line in done.stdout.splitlines() for name in names)


def for_uv(environment: "dict[str, str]") -> "dict[str, str]":
    """Return variables by which uv trusts whom the machine trusts, and asks the indexes that pip would ask."""
    variables = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    variables.update((uv, environment[pip]) for pip, uv in OF_PIP.items() if environment.get(pip))
    return {name: value for name, value in variables.items() if name not in environment}


OF_PIP = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_CERT": "SSL_CERT_FILE",
}


def interpreter(wanted: str) -> str:
    """Return the path of a Python.  Raises Failed."""
    if not wanted:
        return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else base_python()
    python = (
        wanted if "/" in wanted else shutil.which("python" + wanted, path=SEARCHED + ":" + os.environ.get("PATH", ""))
    )
    if not python or not os.access(python, os.X_OK):
        raise Failed(f"there is no Python {wanted} here; `dorm nodes -o wide` shows which nodes have one")
    return python


SEARCHED = "/usr/local/bin:/usr/bin:/bin"


def base_python() -> str:
    """Return the Python that a virtual environment was made from: ours may be one."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = os.path.join(sys.base_prefix, "bin", name)
    return python if os.access(python, os.X_OK) else sys.executable


def run(words: "list[str]", environment: "dict[str, str]", shown: str = "") -> None:
    """Run a command of the build.  Raises Failed."""
    say("$ " + (shown or " ".join(words)))
    try:
        code = subprocess.call(words, env=environment, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Failed(f"{words[0]}: {error.strerror}") from None
    if code:
        raise Failed(f"`{(shown or ' '.join(words))[:200]}` ended with exit code {code}")


def within(venv: str, environment: "dict[str, str]") -> "dict[str, str]":
    """Return the variables with which programs of the virtual environment come first."""
    path = os.path.join(venv, "bin") + ":" + environment.get("PATH", SEARCHED)
    return dict(environment, VIRTUAL_ENV=venv, DORM_ENVIRONMENT=venv, PATH=path)


def note(beside: str, seconds: float) -> None:
    """Tell the agent that the app's command starts now."""
    aside = os.path.join(beside, "." + READY)
    with open(aside, "w") as file:
        file.write(f"{seconds:.3f}")
    os.rename(aside, os.path.join(beside, READY))


def become(venv: str, command: "list[str]") -> "NoReturn":
    environment = within(venv, dict(os.environ))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that.
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(127)


def fail(why: str) -> "NoReturn":
    print("dorm: the environment can't be built: " + why, file=sys.stderr, flush=True)
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
