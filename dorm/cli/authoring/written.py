"""A new spec as text: the fields that its author needs, each with its meaning, and the most useful others as
comments."""

from __future__ import annotations

import json
import re
from typing import Literal, get_args

import msgspec

Kind = Literal["plain", "pytorch", "elastic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ABOUT: dict[Kind, str] = {
    "plain": "any program",
    "pytorch": "PyTorch with torch.distributed (DDP, FSDP)",
    "elastic": "a program that uses dorm.elastic, resized while it trains",
}
"""The purpose of each kind."""
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./=-]*")
_NO_TEXT = re.compile(r"[0-9.+-]+[eE]?[0-9]*|0[xob].*|true|false|yes|no|on|off|null|y|n|\.?(inf|nan)", re.IGNORECASE)
"""Words that YAML would read as something other than text."""


class Answers(msgspec.Struct, frozen=True):
    """The contents of the spec."""

    kind: Kind
    name: str
    command: tuple[str, ...]
    n_min: int = 1
    n_max: int = 1
    cpu: str = "1"
    memory: str = ""
    gpu: int = 0
    image: str = ""
    volumes: tuple[tuple[str, str], ...] = ()
    """Names and paths."""


def written(answers: Answers) -> str:
    """Return the spec as YAML with comments."""
    lines = [
        f"# {ABOUT[answers.kind][0].upper()}{ABOUT[answers.kind][1:]}. `dorm submit {answers.name}.yaml` submits it; with "
        "--dry-run it is only checked.",
        f"name: {_word(answers.name)}",
        *_ENGINE[answers.kind],
        f"command: [{', '.join(map(_word, answers.command))}] # starts one worker",
        *_resume(answers),
        *_image(answers.image),
        f"demand: {{{_demand(answers)}}} # of one container",
        f"n_min: {answers.n_min} # fewer containers and it cannot run",
        f"n_max: {answers.n_max} # more and it gains nothing",
        *_GRACE[answers.kind],
        *_volumes(answers.volumes),
        *_FURTHER,
    ]
    return "\n".join(lines) + "\n"


_ENGINE: dict[Kind, list[str]] = {
    "plain": [
        "engine: plain # the command runs as it is; DORM_RANK, DORM_WORLD_SIZE and DORM_PEERS say which worker it is"
    ],
    "pytorch": [
        "engine: torchrun # sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the command is the script, without torchrun",
        "# engine_options: {processes: 8} # workers in each container, where it has several GPUs",
    ],
    "elastic": ["engine: elastic", "elastic: live # members join and leave while the others train"],
}
_GRACE: dict[Kind, list[str]] = {
    "plain": ["grace: 30s # between SIGTERM, at which it saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
    "pytorch": ["grace: 60s # between SIGTERM, at which rank 0 saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
    "elastic": ["grace: 30s # between SIGTERM, at which it saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
}
_FURTHER = [
    "retries: {limit: 3} # how often it is started again after a failure",
    "# steps: 10000 # all of its work, in the steps that it reports in DORM_PROGRESS",
    "# stop_signal: {signal: SIGUSR1, before: 60s} # another signal than SIGTERM, or one more before it; default: SIGTERM",
    "# deadlines: {progress: 15m} # it counts as failed after so long without a sign of work",
    "# env: {OMP_NUM_THREADS: '2'}",
    "# env_file: .env # more variables; those that look like secrets are left out",
    "# requirements: [numpy, einops] # installed once on each node; or requirements_file: requirements.txt or uv.lock",
    "# secrets: {API_KEY_FILE: key} # paths of files that the nodes have for you (dorm agent --secrets)",
    '# require: gpu_type == "h100" # which nodes, by the labels that `dorm nodes -o wide` shows',
]


def _resume(answers: Answers) -> list[str]:
    again = ", ".join(map(_word, (*answers.command, "--resume")))
    return [f"# resume: [{again}] # starts a worker from a checkpoint; default: command"]


def _image(image: str) -> list[str]:
    if image:
        return [f"image: {_word(image)} # holds the program; ignored where nodes run plain processes"]
    return ["# image: python:3.12-slim # for nodes with Docker: it holds the program"]


def _demand(answers: Answers) -> str:
    parts = [f"cpu: {_quantity(answers.cpu)}"]
    parts += [f"memory: {_quantity(answers.memory)}"] if answers.memory else []
    parts += [f"gpu: {answers.gpu}"] if answers.gpu else []
    return ", ".join(parts)


def _volumes(volumes: tuple[tuple[str, str], ...]) -> list[str]:
    if not volumes:
        return ["# volumes: {datasets: /data} # folders that nodes offer; `dorm nodes -o wide` shows them"]
    named = ", ".join(f"{_word(name)}: {_word(path)}" for name, path in volumes)
    return [f"volumes: {{{named}}} # folders that nodes offer, read-only; their paths are in DORM_VOLUME_NAME as well"]


def _quantity(text: str) -> str:
    return text if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else _word(text)


def _word(text: str) -> str:
    """Return a text as YAML, within brackets too.  JSON's quotes are YAML's."""
    plain = _PLAIN.fullmatch(text) and not _NO_TEXT.fullmatch(text)
    return text if plain else json.dumps(text)
