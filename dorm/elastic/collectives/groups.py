"""Which process groups exist among which members, and which are being built.

A group belongs to a set of processes, not to a view: its name follows from the slots and tokens of these processes, so all
members use the same name, whether they learn of an announcement or a death first.  `retarget` names the sets that matter (the
view's members, and the announced ones); groups of these are built in separate threads, the others are closed.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.collectives import messages as m
from dorm.elastic.collectives.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from dorm.elastic.collectives.pytorch import ProcessGroup
    from dorm.elastic.protocol.messages import Message

    Build = Callable[[Exchange, int, int, str], ProcessGroup]
    Slots = tuple[int, ...]

__all__ = ["SETTLE_S", "Groups"]

SETTLE_S = 10.0
"""Seconds that a change of members waits for the group, once its members are connected; then it continues without the
group."""
_KEPT = 16
"""Rendezvous of groups that this member has not been asked to build yet."""


class _Group:
    """A group that this member takes part in."""

    def __init__(self, name: str, slots: Slots) -> None:
        self.name = name
        self.slots = slots
        self.built: ProcessGroup | None = None
        self.failed = False
        self.seconds = 0.0


class Groups:
    """This member's process groups.  `send` sends a message to a peer; no method waits for one, except `settle`."""

    def __init__(self, slot: int, build: Build, send: Callable[[int, Message], None]) -> None:
        self.slot = slot
        self.host = ""
        """This member's address, as announced: groups listen there."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `settled` may have another answer."""
        self._build, self._send = build, send
        self._token = secrets.token_hex(8)
        self._tokens = {slot: self._token}
        """Tokens of this process and of the connected ones that build groups, by slot."""
        self._groups: dict[str, _Group] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._answers: dict[str, dict[int, bool]] = {}
        """Answers by group and member: True if it has the group."""
        self._ending: list[ProcessGroup] = []
        """Groups that nobody uses any more, and which could not be closed yet."""
        self._threads: list[threading.Thread] = []
        self._targets: set[Slots] = set()
        self._complete_at: dict[Slots, float] = {}
        """Time at which all members of a target were connected (monotonic seconds)."""
        self._changed = threading.Condition()

    # Peers.

    def connected(self, peer: int) -> None:
        self._send(peer, m.Hello(0, token=self._token))

    def lost(self, peer: int) -> None:
        """The connection with a peer is lost: no group with it works any more."""
        with self._changed:
            self._tokens.pop(peer, None)
            for group in self._groups.values():
                if peer in group.slots:
                    self._end(group)
            self._changed.notify_all()
        self.on_change()

    def receive(self, peer: int, message: Message) -> None:
        with self._changed:
            if isinstance(message, m.Hello):
                self._tokens[peer] = message.token
            elif isinstance(message, m.Published):
                value = message.payload[0].tobytes() if message.payload else b""
                self._exchange(message.group).take(message.key, value)
            elif isinstance(message, m.Built):
                self._answers.setdefault(message.group, {})[peer] = message.ok
                group = self._groups.get(message.group)
                if group is not None and not message.ok:
                    self._end(group)
            self._changed.notify_all()
        if isinstance(message, m.Hello):
            self._start()
        self.on_change()

    # Groups.

    def retarget(self, *targets: Iterable[int]) -> None:
        """Keep groups for exactly these sets of members."""
        with self._changed:
            self._targets = {tuple(sorted(slots)) for slots in targets}
            self._complete_at = {slots: at for slots, at in self._complete_at.items() if slots in self._targets}
            for group in [group for group in self._groups.values() if group.slots not in self._targets]:
                self._end(group)
                del self._groups[group.name], self._exchanges[group.name]
                self._answers.pop(group.name, None)  # The same processes may need a group again.
        self._start()

    def ready(self, members: Iterable[int]) -> ProcessGroup | None:
        """Return the group of these members, if this one has it."""
        with self._changed:
            group = self._groups.get(self._name(tuple(sorted(members))) or "")
            return group.built if group is not None else None

    def seconds(self, members: Iterable[int]) -> float:
        """Return how long it took to build the group of these members, 0 if there is none."""
        with self._changed:
            group = self._groups.get(self._name(tuple(sorted(members))) or "")
            return group.seconds if group is not None else 0.0

    def settled(self, members: Iterable[int], connected: AbstractSet[int]) -> bool:
        """Whether nothing is left to wait for: all members have the group, or one cannot have it, or it takes too long."""
        slots = tuple(sorted(members))
        with self._changed:
            if len(slots) < 2:
                return True
            if not set(slots) <= connected | {self.slot}:
                return False
            answers = self._answers.get(self._name(slots) or "", {})
            since = self._complete_at.setdefault(slots, time.monotonic())
            return not all(answers.values()) or set(slots) <= answers.keys() or time.monotonic() - since > SETTLE_S

    def settle(self, settled: Callable[[], bool]) -> None:
        """Wait for something that follows from `settled`, at most `SETTLE_S`."""
        deadline = time.monotonic() + SETTLE_S
        while not settled() and time.monotonic() < deadline:
            with self._changed:
                self._changed.wait(0.05)

    def fail(self, group: ProcessGroup) -> None:
        """A sum by the group failed at some member, so no member uses it any more."""
        with self._changed:
            known = next((known for known in self._groups.values() if known.built is group), None)
            if known is None:
                return
            self._end(known)
            peers = set(known.slots) - {self.slot}
        self._announce(peers, known.name, ok=False)

    def close(self) -> None:
        """End all groups, and wait for the threads that work on them."""
        with self._changed:
            for group in self._groups.values():
                self._end(group)
            self._groups, self._targets = {}, set()
            threads = list(self._threads)
        deadline = time.monotonic() + SETTLE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._close_idle()
        if self._ending:  # A daemon thread keeps them from being destroyed, so that the process can end.
            threading.Thread(target=_hold, args=(self._ending,), name="elastic-group-hold", daemon=True).start()

    # Under the lock.

    def _name(self, slots: Slots) -> str | None:
        """Return the name of the group of these members' processes; None while one of them is not connected."""
        if any(slot not in self._tokens for slot in slots):
            return None
        text = ",".join(f"{slot}:{self._tokens[slot]}" for slot in slots)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _exchange(self, name: str) -> Exchange:
        if name not in self._exchanges:
            unknown = [exchange for exchange in self._exchanges if exchange not in self._groups]
            for old in unknown[: max(0, len(unknown) + 1 - _KEPT)]:
                del self._exchanges[old]
                self._answers.pop(old, None)
            self._exchanges[name] = Exchange(lambda key, value: self._publish(name, key, value))
        return self._exchanges[name]

    def _end(self, group: _Group) -> None:
        """Mark the group as unused."""
        self._exchanges[group.name].close()
        built, group.built, group.failed = group.built, None, True
        if built is not None:
            built.ended = True
            self._ending.append(built)
            self._run(self._close_idle)

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start a thread that the end of the process waits for: PyTorch must not return into an ending interpreter."""
        thread = threading.Thread(target=target, args=arguments, name="elastic-group", daemon=True)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(thread)
        thread.start()

    # In threads.

    def _publish(self, name: str, key: str, value: bytes) -> None:
        with self._changed:
            group = self._groups.get(name)
        for slot in group.slots if group is not None else ():
            if slot != self.slot:
                payload: list[Any] = [np.frombuffer(value, dtype=np.uint8)]
                self._send(slot, m.Published(0, payload=payload, group=name, key=key))

    def _start(self) -> None:
        """Begin to build the wanted groups that are possible and do not exist yet."""
        new = []
        with self._changed:
            for slots in sorted(self._targets):
                name = self._name(slots)
                if name is None or name in self._groups or self.slot not in slots or len(slots) < 2:
                    continue
                self._groups[name] = group = _Group(name, slots)
                new.append((group, self._exchange(name)))
        for group, exchange in new:
            self._run(self._make, group, exchange)

    def _make(self, group: _Group, exchange: Exchange) -> None:
        began = time.monotonic()
        rank = group.slots.index(self.slot)
        try:
            built = self._build(exchange, rank, len(group.slots), self.host)
        except Exception as error:  # Any exception of PyTorch: training continues over TCP.
            self._failed_to_build(group, error)
            return
        with self._changed:
            group.seconds = time.monotonic() - began
            wanted = not group.failed
            group.built = built if wanted else None
            peers = (set(self._tokens) | set(group.slots)) - {self.slot}
            self._answers.setdefault(group.name, {})[self.slot] = wanted
            self._changed.notify_all()
        if not wanted:
            built.close()
        self._announce(peers, group.name, ok=wanted)
        self.on_change()

    def _failed_to_build(self, group: _Group, error: Exception) -> None:
        with self._changed:
            obsolete, group.failed = group.failed, True
            peers = (set(self._tokens) | set(group.slots)) - {self.slot}
            self._answers.setdefault(group.name, {})[self.slot] = False
            self._changed.notify_all()
        if not obsolete:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"dorm.elastic: no process group ({line}); tensors are summed over TCP", file=sys.stderr)
        self._announce(peers, group.name, ok=False)
        self.on_change()

    def _close_idle(self) -> None:
        """Close unused groups, except those with a sum in flight: closing them would wait for it."""
        with self._changed:
            idle = [group for group in self._ending if group.idle]
            busy = [group for group in self._ending if not group.idle]
            self._ending = busy
        for group in busy:
            group.abort()
        for group in idle:
            group.close()

    def _announce(self, peers: Iterable[int], name: str, *, ok: bool) -> None:
        for slot in sorted(peers):
            self._send(slot, m.Built(0, group=name, ok=ok))


def _hold(_: list[ProcessGroup]) -> None:
    while True:
        time.sleep(3600.0)
