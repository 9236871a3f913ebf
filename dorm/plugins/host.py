"""The program of a plug-in's process: loads one policy, and answers questions about it until its owner is gone.

    python -m dorm.plugins.host NAME MODULE:OBJECT LIFE

Standard input and output belong to `wire`; what the plug-in prints goes to standard error.  LIFE is the number of a pipe that
the owner never writes to: when it ends, the owner is gone, and this process ends too, whatever the plug-in is doing.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import metadata
from typing import Any

import msgspec

from dorm.plugins import wire
from dorm.policies.problem import Allocation

_LARGEST_DEFAULTS = 4096
"""Bytes: they are written to the log at each election."""
_LONGEST = 400


def main() -> None:
    name, value, life = sys.argv[1], sys.argv[2], int(sys.argv[3])
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    policy, loaded = _load(name, value)
    wire.send(answers, loaded)
    decode = msgspec.msgpack.Decoder(wire.Question).decode
    while policy is not None and (body := wire.receive(questions)) is not None:
        wire.send(answers, _answer(policy, decode(body)))
    os._exit(0)  # Threads of the plug-in must not keep the process alive.


def _end_with(life: int) -> None:
    os.read(life, 1)
    os._exit(1)


def _load(name: str, value: str) -> tuple[Any, wire.Loaded | wire.Failed]:
    try:
        policy = metadata.EntryPoint(name, value, "").load()()
        if problem := _misfit(policy, name):
            return None, wire.Failed("policy.not_installed", problem)
        defaults = policy.check_params({})
        if not isinstance(defaults, dict) or not all(isinstance(key, str) for key in defaults):
            return None, wire.Failed("policy.not_installed", "check_params({}) has to return a dict of all parameters")
        if len(msgspec.msgpack.encode(defaults)) > _LARGEST_DEFAULTS:
            return None, wire.Failed("policy.not_installed", f"its defaults take more than {_LARGEST_DEFAULTS} bytes")
    except BaseException as error:  # An import may do anything, even end the program.
        return None, wire.Failed("policy.not_installed", _error_text(error))
    meaning = next(iter((type(policy).__doc__ or "").strip().splitlines()), "")
    return policy, wire.Loaded(policy.version, defaults, meaning[:200])


def _misfit(policy: Any, name: str) -> str:
    """Return how an object differs from `Policy`, '' if it does not."""
    if getattr(policy, "name", None) != name:
        return f"its `name` is {getattr(policy, 'name', None)!r}, and has to be that of the entry point, {name!r}"
    version = getattr(policy, "version", None)
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**53:
        return f"its `version` is {version!r}, and has to be a whole number"
    missing = [method for method in ("check_params", "allocate") if not callable(getattr(policy, method, None))]
    return f"it has no method `{missing[0]}`" if missing else ""


def _answer(policy: Any, question: wire.Question) -> wire.Answered | wire.Failed:
    try:
        if question.problem is None:
            answer = policy.check_params(question.params)
            kind: type = dict
        else:
            answer = policy.allocate(question.problem, question.params)
            kind = Allocation
    except SystemExit as error:
        return wire.Failed("policy.ended", f"it tried to end the program ({_error_text(error)})")
    except BaseException as error:
        return wire.Failed("policy.raised", _error_text(error))
    if not isinstance(answer, kind):
        return wire.Failed("policy.nonsense", f"it answered with a {type(answer).__name__}, not with a {kind.__name__}")
    try:
        return wire.Answered(msgspec.Raw(msgspec.msgpack.encode(answer)))
    except Exception as error:
        return wire.Failed(
            "policy.nonsense", f"its answer holds something that is not a plain value: {_error_text(error)}"
        )


def _error_text(error: BaseException) -> str:
    """Return an exception in one line, with the place that raised it."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:
        text = type(error).__name__
    return text[:_LONGEST] + place


if __name__ == "__main__":
    main()
