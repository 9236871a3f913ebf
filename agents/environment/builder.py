"""Builds an app's environment, then becomes the app's command: `python3 dorm-environment.py FOLDER [--inside] COMMAND…`.

The agent writes this file into the containers of apps that ask for an environment, where it runs with only Python's
standard library.  `dorm-environment.json` beside it says what to build.  In FOLDER, which all containers of the app
on a node share, it keeps

    lock     held (shared) by each container that uses it, until that has ended
    building held by the one that builds
    venv     the virtual environment
    ready    written once everything is built
    failed   which generation could not build it, and why: its other containers do not try again

and beside itself `dorm-environment-ready`, with the seconds that this container has waited.  A container that finds nothing
ready builds; others wait for it.  Commands that fail end the container with the code 125, and the last line says which failed.
With --inside it builds nothing: for commands in a container that runs.
"""

import fcntl
import json
import os
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
    beside = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(beside, PLAN)) as file:
            plan = json.load(file)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
        built = have(folder, plan, lock)
        # The app's process keeps the lock as long as it lives, and the agent removes no environment that is in use.
        os.set_inheritable(lock, True)
        note(beside, time.monotonic() - begun if built else 0.0)
    except Failed as failed:
        fail(str(failed))
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}")
    become(os.path.join(folder, "venv"), command)


def have(folder: str, plan: "dict[str, Any]", lock: int) -> bool:
    """Return whether something had to be built, or waited for.  Raises Failed, OSError."""
    ready = os.path.join(folder, "ready")
    fcntl.flock(lock, fcntl.LOCK_SH)
    if os.path.exists(ready):
        os.utime(ready)
        return False
    with open(os.path.join(folder, "building"), "w") as building:
        try:
            fcntl.flock(building, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another container builds the environment; waiting for it")
            fcntl.flock(building, fcntl.LOCK_EX)
        if os.path.exists(ready):
            return True
        check_not_failed(folder, plan["generation"])
        try:
            build(folder, plan)
        except Failed as failed:
            with open(os.path.join(folder, "failed"), "w") as file:
                json.dump({"generation": plan["generation"], "reason": str(failed)}, file)
            raise
        with open(ready, "w") as file:
            file.write(plan["key"])
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
    shutil.rmtree(venv, ignore_errors=True)
    python = interpreter(plan["python"])
    uv = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
    shared = ["--system-site-packages"] if plan["site_packages"] else []
    environment = dict(
        os.environ, UV_CACHE_DIR=os.path.join(folder, "cache"), PIP_NO_CACHE_DIR="1", UV_LINK_MODE="copy"
    )
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off", UV_NO_PROGRESS="1")
    inside = within(venv, environment)
    pip = subprocess.call([python, "-c", "import ensurepip"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) == 0
    options = [*shared, *([] if pip else ["--without-pip"])]
    run([python, "-m", "venv", *options, venv], environment, shown=" ".join([python, "-m", "venv", *options]))
    if plan["requirements"]:
        listed = os.path.join(folder, REQUIREMENTS)
        with open(listed, "w") as file:
            file.write("\n".join(plan["requirements"]) + "\n")
        own = os.path.join(venv, "bin", "python")
        if not uv and not pip:
            raise Failed(
                "there is neither pip nor uv here to install its requirements; use an image that has one of them"
            )
        install = [uv, "pip", "install", "--python", own] if uv else [own, "-m", "pip", "install"]
        # As short as people would type it: the end of the output is the reason of the app's failure.
        run([*install, "-r", listed], inside, shown=("uv" if uv else "python -m") + " pip install -r " + REQUIREMENTS)
    for line in plan["setup"]:
        run(["/bin/sh", "-ec", line], inside, shown=line)
    shutil.rmtree(os.path.join(folder, "cache"), ignore_errors=True)
    say("built the environment in %.1f s" % (time.monotonic() - begun))


def interpreter(wanted: str) -> str:
    """Return the path of a Python.  Raises Failed."""
    if not wanted:
        return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else base_python()
    found = (
        wanted if "/" in wanted else shutil.which("python" + wanted, path=SEARCHED + ":" + os.environ.get("PATH", ""))
    )
    if not found or not os.access(found, os.X_OK):
        raise Failed(f"there is no Python {wanted} here; `dorm nodes -o wide` shows which nodes have one")
    return found


SEARCHED = "/usr/local/bin:/usr/bin:/bin"


def base_python() -> str:
    """Return the Python that a virtual environment was made from: ours may be one."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = os.path.join(sys.base_prefix, "bin", name)
    return found if os.access(found, os.X_OK) else sys.executable


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
