"""The shell around one member: threads, clock, announcements, connections and claims.

All calls of `protocol.member` happen under one lock; its requests never wait for I/O: connections and claims have their own
threads.  The script's thread calls the methods below and waits for answers.
"""

from __future__ import annotations

import errno
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dorm.elastic import arithmetic
from dorm.elastic.collectives.messages import GroupMessage
from dorm.elastic.errors import ContractError, ElasticError, LeftBehind, PeerError
from dorm.elastic.network.links import Link, accept, dial
from dorm.elastic.network.secret import claim, key_of
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.handover import unchanged
from dorm.elastic.protocol.member import Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.elastic.collectives.groups import Groups
    from dorm.elastic.contract import Announcement, Contract
    from dorm.elastic.ledger import Entry

__all__ = ["PORT_TAKEN", "SILENT_S", "STOPPED", "Group"]

SILENT_S = 1.5
"""Seconds without a byte after which a peer counts as dead."""
_BEAT_S = 0.25
_LOOK_S = 0.05
"""Seconds between two looks at announcement and peers."""
_READ_S = 1.0
"""Seconds after which the announcement is read again even if its file looks the same: two files that replace each other within
a tick of the file system's clock may look alike."""
_PAUSED_S = 0.75
"""Seconds between two looks above which this process itself was paused, so silence proves nothing."""
_DRAIN_S = 2.0
_STRANGERS = 16
"""Callers that may prove themselves at the same time."""
PORT_TAKEN = errno.EADDRINUSE
"""98: the exit code if another process listens on this worker's port."""
STOPPED = 128 + signal.SIGTERM
"""143: the exit code of a worker that was asked to stop, and did."""


class Group:
    """This process's member, connected with its peers."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._member = Member(contract.slot)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._links: dict[int, Link] = {}
        self._dialing: set[int] = set()
        self._waiting: dict[int, list[m.Message]] = {}
        """Messages for peers that are not connected yet."""
        self._announcement: Announcement | None = None
        self._mark: tuple[int, int, int] | None = None
        """Mark of the announcement's file, just before it was read."""
        self._read_at = 0.0
        self._announced = 0
        """The number of the last membership that the member knows."""
        self._groups: Groups | None = None
        self._differs = False
        """Whether a peer that rounds otherwise has been reported."""
        self._error: BaseException | None = None
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self._strangers = threading.Semaphore(_STRANGERS)
        self._ticker = threading.Thread(target=self._tick, name="elastic-clock", daemon=True)
        self._name = f"{contract.app}/{contract.generation}"
        self._key = b""

    def use(self, groups: Groups) -> None:
        """Build process groups; before `open`."""
        self._groups = groups
        groups.on_change = self._inform_member

    # The script's calls.

    def open(self) -> None:
        """Read the announcement and listen.  Raises ContractError, OSError, and SystemExit(98) if the port is taken."""
        deadline = time.monotonic() + 30.0
        while (announcement := self._contract.announcement()) is None:
            if time.monotonic() > deadline:
                text = f"{self._contract.members}: no such file; the agent writes it before a worker starts"
                raise ContractError(text, code="elastic.contract.members")
            time.sleep(_LOOK_S)
        if self._contract.members is not None or len(announcement.members) > 1:
            self._key = key_of(self._contract.shared, self._contract.app, self._contract.generation)
            arithmetic.digest()  # Now: the first product in a thread takes long, also in a newcomer's step.
            if self._contract.slot in announcement.members:
                self._listen(*announcement.members[self._contract.slot])
        self._announce(announcement)
        self._ticker.start()

    def join(self, stop: threading.Event) -> m.State | None:
        """Wait until this member may begin; return the first state of the training members, or None if none trains yet.

        Raises LeftBehind if the others ended or continue without this member, and SystemExit(143) if `stop` is set
        meanwhile: it has nothing to save."""
        with self._lock:
            while self._member.first_state is None:
                self._check()
                if stop.is_set():
                    raise SystemExit(STOPPED)
                announced = self._member.announced.members
                if announced and self._contract.slot not in announced:
                    raise LeftBehind(
                        "this worker was to join, but is not announced any more", code="elastic.left_behind.unannounced"
                    )
                if self._member.may_found:
                    return None
                if self._member.deserted:
                    raise LeftBehind("the others have finished", code="elastic.left_behind.finished")
                self._changed.wait(1.0)
            state = self._member.first_state
            self._member.first_state = None
            return state

    def warmed_up(self, seconds: float) -> None:
        self._do(lambda: self._member.warmed_up(seconds))

    def start(self, plan: v.Plan, step: int, used: Entry) -> None:
        self._do(lambda: self._member.start(plan, step, used))

    def boundary(
        self, step: int, values: dict[int, v.Packed], state: Callable[[bool], v.Packed], stop: threading.Event
    ) -> v.Begin | v.Left | v.Stop:
        """Ask for a step and wait for it; `state` gathers the state, as a copy or as it is.  Raises LeftBehind, and
        SystemExit(143) if `stop` is set before its first step; later the members agree on where to stop."""
        if self._member.wants == "first":
            self._supply("first", state)
        self._do(lambda: self._member.boundary(step, values=values))
        answer = self._answer(state, stop)
        assert isinstance(answer, (v.Begin, v.Left, v.Stop))
        return answer

    def contribute(self, sums: Any, used: Any, seconds: float, *, stop: bool) -> v.Summed | v.Interrupted:
        """Give this member's part of a sum and wait for the whole.  Raises LeftBehind."""
        self._do(lambda: self._member.contribute(sums, used, seconds, stop=stop))
        answer = self._answer(None)
        assert isinstance(answer, (v.Summed, v.Interrupted))
        return answer

    def finish(self, step: int) -> None:
        """The script ends before `step`: all steps before it are complete."""
        self._do(lambda: self._member.finish(step))

    def facts(self) -> list[v.Changed | v.EpochDone]:
        """Return the facts to report since the last call."""
        with self._lock:
            facts, self._member.facts = self._member.facts, []
            return facts

    @property
    def view(self) -> v.View | None:
        return self._member.view

    @property
    def used(self) -> Entry:
        """The ledger of this epoch, up to the last completed step."""
        return self._member.used

    @property
    def may_found(self) -> bool:
        """Whether this member should begin the job if none trains yet."""
        return self._member.may_found

    @property
    def founded_at(self) -> int | None:
        """The step with which the job began, or began again from a checkpoint, if this member was there."""
        return self._member.founded_at

    @property
    def targets(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The members of the view, and the announced ones that live: the members that need process groups."""
        view, announcement = self._member.view, self._announcement
        announced = set(announcement.members) - self._member.dead if announcement is not None else set()
        return (view.members if view is not None else ()), tuple(sorted(announced))

    def settled(self) -> bool:
        """Whether the announced members have their process group, or continue without one."""
        return self._groups is None or self._groups.settled(self.targets[1], frozenset(self._member.connected))

    def disturbed(self, number: int) -> bool:
        """Whether a member of the view with this number has died, or another view is the present one."""
        member = self._member
        view, failed = member.view, self._error is not None or member.behind is not None
        return failed or member.recovering or view is None or view.number != number

    def deliver(self, slot: int, message: m.Message) -> None:
        """Send a message that bypasses the member's state machine, once the peer is connected."""
        with self._lock:
            link = self._links.get(slot)
            if link is not None:
                link.send(message)
            elif slot not in self._member.dead:
                self._waiting.setdefault(slot, []).append(message)

    def close(self) -> None:
        """End gracefully: everything sent arrives."""
        if self._closing.is_set():
            return
        with self._lock:
            view = self._member.view
            bye = m.Bye(view.number if view is not None else 0, step=self._member.step, finished=self._member.finished)
            links = list(self._links.values())
            for link in links:
                link.send(bye)
                link.finish()
        self._closing.set()
        deadline = time.monotonic() + _DRAIN_S
        for link in links:
            link.join(deadline)
        if self._listener is not None:
            self._listener.close()

    # Under the lock.

    def _do(self, action: Callable[[], None]) -> None:
        with self._lock:
            self._member.now = time.monotonic()
            try:
                action()
                self._carry_out()
            except ElasticError as error:
                self._error = error
            self._changed.notify_all()

    def _carry_out(self) -> None:
        outbox, self._member.outbox = self._member.outbox, []
        for slot, message in outbox:
            link = self._links.get(slot)
            if link is not None:
                link.send(message)
            elif slot not in self._member.dead:
                self._waiting.setdefault(slot, []).append(message)
        gone, self._member.disconnect = self._member.disconnect, set()
        for slot in gone:
            self._drop(slot)
        if self._member.recovery.claim:
            views, self._member.recovery.claim = self._member.recovery.claim, ()
            threading.Thread(target=self._claim, args=(views,), name="elastic-claim", daemon=True).start()

    def _drop(self, slot: int) -> None:
        link = self._links.pop(slot, None)
        self._waiting.pop(slot, None)
        if link is not None:
            threading.Thread(target=link.cut, daemon=True).start()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _answer(self, state: Callable[[bool], v.Packed] | None, stop: threading.Event | None = None) -> v.Answer:
        answer = None
        while answer is None:
            with self._lock:
                while self._member.answer is None and (state is None or not self._member.wants):
                    self._check()
                    if state is not None and self._member.deserted:
                        return v.Left()
                    if stop is not None and stop.is_set() and not self._member.has_trained:
                        raise SystemExit(STOPPED)
                    if self._member.first_state is not None:  # Another leader asks; the script has already warmed up.
                        self._member.first_state = None
                    self._changed.wait(1.0)
                answer, self._member.answer = self._member.answer, None
                self._check()
                wanted = self._member.wants
            if answer is None and state is not None:
                self._supply(wanted, state)
        if isinstance(answer, v.Behind):
            raise LeftBehind(answer.text)
        return answer

    def _supply(self, wanted: str, state: Callable[[bool], v.Packed]) -> None:
        """Gather the state in the script's thread, without the lock, so that keep-alives are sent meanwhile.  A first state
        is copied: training goes on while it is sent."""
        packed = state(wanted == "first")
        same = unchanged(self._member.first_arrays, packed[1]) if wanted == "final" else frozenset()
        self._do(lambda: self._member.supply(wanted, packed, same))

    # Threads.

    def _tick(self) -> None:
        """Read the announcement, send keep-alives, and detect silence."""
        beat = looked = time.monotonic()
        while not self._closing.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                links = list(self._links.values())
            if now - looked > _PAUSED_S:
                for link in links:
                    link.heard_at = now
            looked = now
            if now - beat >= _BEAT_S:
                beat = now
                for link in links:
                    link.send(None)
            for link in links:
                if now - link.heard_at > SILENT_S:
                    self._lost(link)
            self._look()
            self._do(self._member.tick)

    def _look(self) -> None:
        """Read the announcement if it may be new, and dial the members that are not connected yet."""
        announcement = self._announcement
        try:
            mark, now = self._contract.mark(), time.monotonic()
            if mark is not None and (mark != self._mark or now - self._read_at >= _READ_S):
                self._mark, self._read_at = mark, now
                announcement = self._contract.announcement()
        except FileNotFoundError:
            return
        except (ContractError, OSError) as error:
            print(f"dorm.elastic: {error}", file=sys.stderr)
            return
        if announcement is not None:
            self._announce(announcement)

    def _announce(self, announcement: Announcement) -> None:
        known = self._announcement
        if known is None or announcement.membership > known.membership:
            self._announcement = announcement
            if self._groups is not None:
                self._groups.host = announcement.members.get(self._contract.slot, (self._groups.host, 0))[0]
                self._groups.retarget(*self.targets)
        self._inform_member()
        for slot in sorted(announcement.members):
            with self._lock:
                # The lower slot connects; a leaver, whose address is not announced any more, connects with all.
                dials = slot > self._contract.slot or self._contract.slot not in announcement.members
                if not dials or slot in self._links or slot in self._dialing:
                    continue
                if slot in self._member.dead or slot in self._ended():
                    continue
                self._dialing.add(slot)
            address = announcement.members[slot]
            threading.Thread(target=self._dial, args=(slot, address), name=f"elastic-dial-{slot}", daemon=True).start()

    def _inform_member(self) -> None:
        """Inform the member of the announcement once the process group of the announced members exists: it leads to a switch,
        and training continues until then."""
        announcement = self._announcement
        if announcement is None or announcement.membership <= self._announced or self._closing.is_set():
            return
        present, coming = self.targets
        if present not in ((), coming) and not self.settled():
            return
        self._announced = announcement.membership
        members = tuple(sorted(announcement.members))
        message = v.Announced(announcement.membership, members, announcement.founders)
        self._do(lambda: self._member.announce(message))

    def _ended(self) -> set[int]:
        return self._member.ended

    def _dial(self, slot: int, address: tuple[str, int]) -> None:
        try:
            connection, rounds = dial(address, self._contract.slot, slot, self._name, self._key)
        except (OSError, PeerError):
            time.sleep(_LOOK_S)  # It may not listen yet; the next look tries again.
        else:
            self._add(slot, connection, rounds)
        finally:
            with self._lock:
                self._dialing.discard(slot)

    def _listen(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                print(f"dorm.elastic: another process listens on {host}:{port}", file=sys.stderr)
                raise SystemExit(PORT_TAKEN) from None
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            listener.bind(("", port))  # The address is the host's; inside a container it is another.
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="elastic-listen", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), name="elastic-greet", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            peer, rounds = accept(connection, self._contract.slot, self._name, self._key)
        except (OSError, PeerError):
            connection.close()
        else:
            self._add(peer, connection, rounds)
        finally:
            self._strangers.release()

    def _add(self, peer: int, connection: socket.socket, rounds: str) -> None:
        """Add a connection with a peer; `rounds` is how it rounds."""
        link = Link(peer, connection, self._receive, self._lost)
        with self._lock:
            if peer in self._links or peer in self._member.dead or self._closing.is_set():
                connection.close()
                return
            self._links[peer] = link
            link.start()
            for message in self._waiting.pop(peer, []):
                link.send(message)
            differs = rounds not in ("", arithmetic.digest()) and not self._differs
            self._differs = self._differs or differs
        if differs:
            print(
                f"dorm.elastic: slot {peer} rounds products otherwise than this worker (another CPU, or another NumPy), "
                "so the model is not bit for bit that of one worker",
                file=sys.stderr,
            )
        if self._groups is not None:
            self._groups.connected(peer)
        self._do(lambda: self._member.connect(peer))

    def _receive(self, peer: int, message: m.Message) -> None:
        if not isinstance(message, GroupMessage):
            self._do(lambda: self._member.receive(peer, message))
        elif self._groups is not None:
            self._groups.receive(peer, message)

    def _lost(self, link: Link) -> None:
        if self._groups is not None and self._links.get(link.peer) in (link, None) and not self._closing.is_set():
            self._groups.lost(link.peer)
        with self._lock:
            if self._links.get(link.peer) is not link or self._closing.is_set():
                return
            del self._links[link.peer]
        link.cut()
        self._do(lambda: self._member.lose(link.peer, hung_up=link.hung_up))

    def _claim(self, views: tuple[int, ...]) -> None:
        """Claim the right to continue, if members share a folder; else the larger part of them has it."""
        shared = self._contract.shared
        try:
            granted = (
                not self._member.recovery.minority
                if shared is None
                else claim(shared, self._contract.generation, views)
            )
        except OSError as error:
            print(f"dorm.elastic: {shared}: {error.strerror}", file=sys.stderr)
            granted = False
        self._do(lambda: self._member.recovery.claimed(views, granted))
