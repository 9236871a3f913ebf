"""The parts of the nodes, as the leading master stores them: what each agent follows.

A part is derived from the state that this master has folded, so it holds nothing that is not on the log.  When a master begins
to lead it writes the parts of all nodes, so one that was killed between a round and its parts loses nothing.

A part is written only in place of the one that its writer knows, and never over one that is derived from a later record.  Once
a new leader has written its parts, a deposed master, whose state is older, can't overwrite them.

Rounds never wait for parts. A store that does not answer delays only the agents' actions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from dorm.core.parts.concerned import Concerned
from dorm.core.parts.deriving import known_nodes, parts_of
from events.log.records import LogError, LogRefused, LogUnavailable, Overtaken
from events.parts import PartUnreadable, content_of, document_of, packed, sign, unpacked
from events.subjects import token

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.chain import SealKey
    from events.kinds import Event
    from events.log.records import Record
    from events.log.stores import Parts
    from events.parts import NodePart

_log = structlog.get_logger(__name__)
_AT_ONCE = 32
"""Parts that are derived and stored together: the loop serves others in between."""
_PAUSE_S = 0.2
_REFUSED_S = 10.0


class _Known(NamedTuple):
    """What the store has of a node."""

    revision: int
    content: str
    """`content_of` the part that this master stored, "" for one that it did not."""


_NOTHING = _Known(0, "")


class PartWriter:
    """One master's writer; `key` signs parts if the cluster names its masters' keys."""

    def __init__(self, parts: Parts, cluster: str, key: SealKey | None) -> None:
        self._parts = parts
        self._cluster = cluster
        self._key = key
        self._concerned = Concerned()
        self._wake = asyncio.Event()
        self._stored: dict[str, _Known] = {}
        self._leads = False

    def see(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        """Note a record that was folded into `state`."""
        if self._leads:
            self._concerned.see(state, record, event, folded)
            if self._concerned.nodes:
                self._wake.set()

    def all_again(self, state: State) -> None:
        """Write all parts again: this master was elected once more, which every node has to know."""
        if self._leads:
            every = dict.fromkeys(known_nodes(state))
            self._concerned.nodes |= every
            self._concerned.asked |= every
            self._wake.set()

    async def run(self, state: Callable[[], State]) -> None:
        """Store parts while this master leads, until cancelled; `state` returns the folded state."""
        try:
            await self._load()
            self._begin(state())
            while True:
                nodes, requested = self._concerned.taken()
                for first in range(0, len(nodes), _AT_ONCE):
                    await self._store(state(), nodes[first : first + _AT_ONCE], requested)
                if not self._concerned.nodes:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._leads = False

    async def _load(self) -> None:
        """Read what is stored.  A cluster whose streams an earlier release made has no store yet: agents follow the log."""
        warned = False
        while True:
            try:
                stored = await self._parts.all()
                break
            except LogRefused as error:
                self._parts.writes(False)
                if not warned:
                    _log.warning("nodes get no parts and follow the whole log", reason=str(error))
                    warned = True
                await asyncio.sleep(_REFUSED_S)
            except LogError as error:
                _log.debug("the parts of nodes can't be read yet", reason=str(error))
                await asyncio.sleep(_PAUSE_S)
        self._stored = {part.node: _Known(part.revision, "") for part in stored}

    def _begin(self, state: State) -> None:
        """Write all parts; from here on, records say which ones differ."""
        self._leads = True
        self._concerned.start(state)
        self._concerned.nodes = dict.fromkeys(known_nodes(state))
        self._parts.writes(True)

    async def _store(self, state: State, nodes: list[str], requested: list[str]) -> None:
        """Store the parts of these nodes that differ from what is stored, or that are asked for."""
        wanted = [
            part
            for part in parts_of(state, self._cluster, nodes)
            if part.node in requested or content_of(part) != self._stored.get(token(part.node), _NOTHING).content
        ]
        keys = state.known.keys_at(state.seq) if state.known is not None else []
        key = self._key if self._key is not None and self._key.public in keys else None
        outcomes = await asyncio.gather(*(self._put(part, key) for part in wanted))
        again = [part.node for part, stored in zip(wanted, outcomes, strict=True) if not stored]
        if again:  # Derived again when it is tried again.
            self._concerned.nodes |= dict.fromkeys(again)
            self._concerned.asked |= dict.fromkeys(node for node in again if node in requested)
            await asyncio.sleep(_PAUSE_S)

    async def _put(self, part: NodePart, key: SealKey | None) -> bool:
        """Store a part.  Return False if it is to be derived and tried again."""
        node, document = token(part.node), document_of(part)
        body = packed(document, sign(key, document) if key is not None else "")
        try:
            revision = await self._parts.put(part.node, body, self._stored.get(node, _NOTHING).revision)
        except Overtaken:
            return await self._look(part, body)
        except LogUnavailable as error:
            _log.debug("a part can't be stored, trying again", node=part.node, reason=str(error))
            return False
        except LogRefused as error:
            _log.error("the store refuses a part, so its node acts late", node=part.node, reason=str(error))
            await asyncio.sleep(_REFUSED_S)
            return False
        self._stored[node] = _Known(revision, content_of(part))
        return True

    async def _look(self, part: NodePart, body: bytes) -> bool:
        """Look at the part that was stored in between.  Return whether nothing is left to do: it is this one, whose answer was
        lost, or another master derived it from a later record."""
        node = token(part.node)
        try:
            stored = await self._parts.last(part.node)
        except LogError as error:
            _log.debug("a part can't be read", node=part.node, reason=str(error))
            return False
        if stored is None:
            self._stored.pop(node, None)
            return False
        same = stored.body == body
        self._stored[node] = _Known(stored.revision, content_of(part) if same else "")
        return same or _seq_of(stored.body) >= part.seq


def _seq_of(body: bytes) -> int:
    try:
        return unpacked(body)[0].seq
    except PartUnreadable:
        return 0
