"""A plug-in as a policy: its code runs in another process, which is killed when an answer takes too long.

One process for each plug-in, started when it is first needed and again after it has ended.  A caller waits in its own thread,
so nothing here belongs on an event loop; `close` ends all processes, and with them all waiting calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dorm.plugins import wire
from dorm.plugins.finding import PluginError
from dorm.plugins.limits import LOAD_S, limit_s
from dorm.policies.parameters import ParameterError
from dorm.policies.problem import Allocation, PolicyFailure

if TYPE_CHECKING:
    from dorm.plugins.finding import PolicyEntry
    from dorm.policies.problem import Problem

_T = TypeVar("_T")
_END_S = 5.0
_opened: dict[str, PluginPolicy] = {}
_opening = threading.Lock()


class PluginPolicy:
    """A `Policy`.  `allocate` raises PolicyFailure, `check_params` also ParameterError."""

    def __init__(self, plugin: PolicyEntry) -> None:
        self.name = plugin.name
        self.plugin = plugin.plugin
        self._entry_point = plugin
        self._lock = threading.Lock()
        self._process: _Process | None = None
        loaded = self._load()
        self.version = loaded.version
        self.defaults = loaded.defaults
        self.meaning = loaded.meaning

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(wire.Question(params), dict[str, Any])
        except PolicyFailure as failure:
            if failure.code != "policy.raised":
                raise
            raise ParameterError(f"policy {self.name}: {failure}", code="policy.parameter.refused") from None

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        return self._ask(wire.Question(params, problem), Allocation)

    def close(self) -> None:
        """End its process, even while it works."""
        process = self._process
        if process is not None:
            process.kill()

    # --- its process ----------------------------------------------------------------------------------------------------

    def _load(self) -> wire.Loaded:
        """Start its process.  Raises PluginError."""
        named = f"policy {self.name!r} of the plug-in {self.plugin} cannot be loaded"
        process = _Process(self._entry_point)
        try:
            reply = process.reply()
            if isinstance(reply, wire.Loaded):
                self._process = process
                return reply
            raise PolicyFailure(reply.text if isinstance(reply, wire.Failed) else "it says something else")
        except PolicyFailure as failure:
            process.kill()
            raise PluginError(f"{named}: {failure}") from None
        except BaseException:
            process.kill()
            raise

    def _restart(self) -> None:
        try:
            loaded = self._load()
        except PluginError as error:
            raise PolicyFailure(str(error), code="policy.not_installed") from None
        if loaded.version != self.version:
            text = (
                f"version {loaded.version} was installed while version {self.version} was in use; restart this program"
            )
            raise PolicyFailure(text, code="policy.not_installed")

    def _ask(self, question: wire.Question, kind: type[_T]) -> _T:
        with self._lock:
            if self._process is None:
                self._restart()
            process = self._process
            assert process is not None
            try:
                reply = process.reply(question)
            except BaseException:  # Anything that it still sends would count as the next answer.
                self._process = None
                process.kill()
                raise
        return wire.answer_in(reply, kind)


class _Process:
    """A running `host`."""

    def __init__(self, plugin: PolicyEntry) -> None:
        life, self._life = os.pipe()
        try:
            # In its own process group: Ctrl-C is for its owner, which then ends it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dorm.plugins.host", plugin.name, plugin.value, str(life)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[life],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
            )
        except OSError as error:
            os.close(self._life)
            raise PluginError(f"no process can be started for policy {plugin.name!r}: {error}") from None
        finally:
            os.close(life)
        self._killing = threading.Lock()
        self._ended = False

    def reply(self, question: wire.Question | None = None) -> wire.Reply:
        """Return its next answer.  Raises PolicyFailure if it does not answer in time, or ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = limit_s() if question is not None else max(limit_s(), LOAD_S)
        late = threading.Event()

        def end() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(limit, end)
        timer.daemon = True
        timer.start()
        try:
            if question is not None:
                wire.send(self._process.stdin, question)
            body = wire.receive(self._process.stdout)
        except wire.TooLarge:
            raise PolicyFailure(f"its answer is larger than {wire.LARGEST >> 20} MiB", code="policy.nonsense") from None
        except (OSError, ValueError):  # Its end of the pipe is closed.
            body = None
        except (TypeError, OverflowError, msgspec.MsgspecError) as error:
            raise PolicyFailure(f"the problem cannot be passed on: {error}", code="policy.raised") from None
        finally:
            timer.cancel()
        if body is None:
            if late.is_set():
                raise PolicyFailure(f"it took longer than {limit:g} s, and was ended", code="policy.too_slow")
            raise PolicyFailure(f"its process {_describe_end(self._wait())}", code="policy.ended")
        return wire.reply_in(body)

    def kill(self) -> None:
        """End it, with all processes that it has started.  Any thread may call this, even twice."""
        with self._killing:
            if self._ended:
                return
            self._ended = True
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._wait()
            os.close(self._life)

    def _wait(self) -> int | None:
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None


def _describe_end(code: int | None) -> str:
    if code is None:
        return "closed its output"
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"


def _forget() -> None:
    """In a forked process: the pipes are its parent's."""
    global _opening
    _opening = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget)


def opened(plugin: PolicyEntry) -> PluginPolicy:
    """Return the plug-in's policy, one for each name in this program.  Raises PluginError."""
    with _opening:
        if plugin.name not in _opened:
            _opened[plugin.name] = PluginPolicy(plugin)
        return _opened[plugin.name]


def close() -> None:
    """End all plug-ins' processes; a caller that waits for one gets a PolicyFailure.  A later question starts it again."""
    for policy in list(_opened.values()):
        policy.close()
