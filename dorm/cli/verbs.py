"""Words of other tools, and the commands that they mean here: for people who type what their fingers know."""

from __future__ import annotations

_STOP = "`dorm cancel APP` to stop an app; one that has ended is dropped by itself"
_LIST = "`dorm ps` for apps, `dorm nodes` for nodes"
_WAITS = "`dorm ps`, and `dorm explain APP` for why an app waits"
_ENTER = "`dorm shell APP`, or `dorm exec APP -- COMMAND` for one command"
_MEANT = {
    "stop": "`dorm cancel APP` to stop an app permanently, `dorm hold APP` to stop it for a while, `dorm pause` to pause all "
    "scheduling",
    "rm": _STOP,
    "delete": _STOP,
    "remove": _STOP,
    "terminate": "`dorm cancel APP`, or `dorm kill APP` to stop it without a checkpoint",
    "scancel": "`dorm cancel APP`",
    "start": "`dorm run -- COMMAND` or `dorm submit SPEC` to start an app, `dorm restart APP` for one that has failed or was "
    "cancelled, `dorm up` to start a cluster",
    "create": "`dorm submit SPEC`, or `dorm run -- COMMAND` without a file",
    "launch": "`dorm run -- COMMAND`, or `dorm submit SPEC`",
    "train": "`dorm run -- python train.py`",
    "python": "`dorm run -- python SCRIPT`",
    "python3": "`dorm run -- python3 SCRIPT`",
    "torchrun": "`dorm run --engine torchrun -- python SCRIPT`",
    "apply": "`dorm submit SPEC` for a new app, `dorm edit APP -f SPEC` for one that exists",
    "sbatch": "`dorm submit SPEC`, or `dorm run --detach -- COMMAND`",
    "srun": "`dorm run -- COMMAND`",
    "salloc": "`dorm run -- COMMAND`",
    "list": _LIST,
    "ls": _LIST,
    "get": "`dorm ps`, or `dorm describe APP -o yaml` for one app",
    "job": "`dorm ps`, or `dorm describe APP` for one app",
    "jobs": "`dorm ps`",
    "apps": "`dorm ps`",
    "queue": _WAITS,
    "squeue": _WAITS,
    "sinfo": "`dorm nodes`",
    "sacct": "`dorm history` for apps that have ended, and `dorm usage` for what they used",
    "scontrol": "`dorm describe APP`, `dorm update APP`, `dorm edit APP`, or `dorm drain NODE`",
    "sshare": "`dorm usage`",
    "status": "`dorm ps` for apps, `dorm describe APP` for one, `dorm doctor` for the cluster",
    "show": "`dorm describe APP`, or `dorm policy show` for settings",
    "info": "`dorm describe APP`, or `dorm doctor` for the cluster",
    "inspect": "`dorm describe APP -o json`",
    "ssh": _ENTER,
    "bash": _ENTER,
    "sh": _ENTER,
    "enter": _ENTER,
    "connect": _ENTER,
    "attach": "`dorm logs -f APP` to follow its output, `dorm shell APP` to enter a container",
    "tail": "`dorm logs -f APP` to follow an app's output, `dorm events -f` to follow the log",
    "output": "`dorm logs APP` for what it printed, `dorm cp APP:PATH .` for its files",
    "download": "`dorm cp APP:PATH .`",
    "fetch": "`dorm cp APP:PATH .`",
    "pull": "`dorm cp APP:PATH .`",
    "upload": "`dorm cp FILE APP:PATH`",
    "tunnel": "`dorm port-forward APP PORT`",
    "forward": "`dorm port-forward APP PORT`",
    "tensorboard": "`dorm port-forward APP 6006` to reach one that an app runs",
    "array": "`dorm sweep run --array N -- COMMAND`",
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
    "down": "Ctrl-C in the terminal of `dorm up` to stop a cluster on this machine",
    "ui": "`dorm dashboard`",
    "billing": "`dorm usage`",
    "help": "`dorm --help`, or `dorm COMMAND --help`",
    "version": "`dorm --version`",
    "validate": "`dorm plan SPEC`, which says whether an app would be accepted, and what it would change",
    "why": "`dorm explain APP`",
}


def replacement_for(word: str) -> str:
    """Return what to type instead of a word that is not a command here; "" if it is unknown."""
    return _MEANT.get(word, "")
