"""Words of other tools, and the commands that they mean here: for people who type what their fingers know."""

from __future__ import annotations

_MEANT = {
    "stop": "`dorm cancel APP` stops an app permanently, `dorm pause` all scheduling",
    "rm": "`dorm cancel APP` stops an app; one that has ended is dropped by itself",
    "delete": "`dorm cancel APP` stops an app; one that has ended is dropped by itself",
    "remove": "`dorm cancel APP` stops an app; one that has ended is dropped by itself",
    "terminate": "`dorm cancel APP`, or `dorm kill APP` without a checkpoint",
    "scancel": "`dorm cancel APP`",
    "start": "`dorm submit SPEC` or `dorm run -- COMMAND` starts an app, `dorm restart APP` one that has failed or was cancelled, "
    "`dorm up` a cluster",
    "create": "`dorm submit SPEC`, or `dorm run -- COMMAND` without a file",
    "launch": "`dorm run -- COMMAND`, or `dorm submit SPEC`",
    "apply": "`dorm submit SPEC` for a new app, `dorm edit APP -f SPEC` for one that exists",
    "sbatch": "`dorm submit SPEC`, or `dorm run --detach -- COMMAND`",
    "srun": "`dorm run -- COMMAND`",
    "salloc": "`dorm run -- COMMAND`",
    "list": "`dorm ps`, or `dorm nodes` for nodes",
    "ls": "`dorm ps`, or `dorm nodes` for nodes",
    "get": "`dorm ps`, or `dorm describe APP -o yaml` for one app",
    "jobs": "`dorm ps`",
    "apps": "`dorm ps`",
    "queue": "`dorm ps`, and `dorm explain APP` for why an app waits",
    "squeue": "`dorm ps`, and `dorm explain APP` for why an app waits",
    "sinfo": "`dorm nodes`",
    "sacct": "`dorm usage`, and `dorm ps --all` for apps that have ended",
    "scontrol": "`dorm describe APP`, `dorm update APP`, `dorm edit APP`, or `dorm drain NODE`",
    "sshare": "`dorm usage`",
    "status": "`dorm ps` for apps, `dorm describe APP` for one, `dorm doctor` for the cluster",
    "show": "`dorm describe APP`, or `dorm policy show` for settings",
    "info": "`dorm describe APP`, or `dorm doctor` for the cluster",
    "inspect": "`dorm describe APP -o json`",
    "attach": "`dorm logs -f APP` follows its output",
    "tail": "`dorm logs -f APP` follows an app's output, `dorm events` the log",
    "watch": "`dorm top`, `dorm wait APP`, or `dorm logs -f APP`",
    "resize": "`dorm scale APP N`",
    "set": "`dorm edit APP --set KEY=VALUE` for an app, `dorm policy set KEY=VALUE` for the cluster",
    "patch": "`dorm edit APP --set KEY=VALUE`",
    "replace": "`dorm edit APP -f SPEC`",
    "change": "`dorm edit APP`, or `dorm update APP` for weight and bounds",
    "rerun": "`dorm restart APP`",
    "requeue": "`dorm restart APP`",
    "config": "`dorm policy show` for the cluster's settings, `dorm context` for which cluster commands use",
    "login": "`dorm context add`, with the credentials that an admin gave you",
    "whoami": "`dorm context show`",
    "cordon": "`dorm drain NODE`",
    "uncordon": "`dorm drain NODE --undo`, or `dorm nodes up NODE` after maintenance",
    "down": "Ctrl-C in the terminal of `dorm up` stops a cluster on this machine",
    "ui": "`dorm dashboard`",
    "billing": "`dorm usage`",
    "help": "`dorm --help`, or `dorm COMMAND --help`",
    "version": "`dorm --version`",
    "validate": "`dorm plan SPEC` says whether an app would be accepted, and what it would change",
    "why": "`dorm explain APP`",
}


def meant(word: str) -> str:
    """Return what to type instead of a word that is no command here; "" where nothing is known of it."""
    return _MEANT.get(word, "")
