"""The GPUs that a node gives to apps: which they are, which are there, and which are free.

A GPU is known by its UUID (`GPU-...`, `MIG-...` for an instance).  Its index is a convenience for people: it can mean another
card after a reboot, a new driver or a lost card.  So an index that an operator gives is looked up once, by `nvidia-smi -L`,
and the node remembers which card it meant.  Ledger, containers and messages hold UUIDs from then on; notes of earlier
releases, which hold indices, are rewritten as soon as the cards are known.

What is not known is neither free nor gone:

    the listing does not answer        all cards stay as they were last seen
    an index that can't be looked up   stays an id of its own; beside UUIDs it is not given, since it may be one of them
    a container holds an id of another kind than the node's (`0`, and the node now has UUIDs)
                                       it may be any of these cards, so none of them is given until it ends
    a complete listing lacks a card    the card is gone: the container on it stops, with that reason, and nothing else
    the node no longer has that id     the same

The announced capacity counts free cards and held ones.  A card that is gone or in doubt therefore leaves the capacity when
its container has ended, and the others' containers are never in the way.

`resolve` and `standing` are pure.  A source of cards is a function: it returns all cards of the machine, or None if it does
not know, and blocks.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import structlog

from agents.config import ConfigError
from agents.ledger import UNKNOWN_DEVICE
from agents.runtime.interface import Unavailable
from events.quantities import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from agents.ledger import Ledger
    from agents.runtime.interface import Key

_log = structlog.get_logger(__name__)
_PATIENCE_S = 5.0
"""Seconds that a look may take.  A driver with a sick card can hang for longer; the cards then stay as they were."""
_PROGRAM = "nvidia-smi"
_NO_SUCH_CARD, _FALLEN_OFF = 6, 15
"""Exit codes of nvidia-smi(1): no such object; the card has fallen off the bus, or is inaccessible otherwise."""
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG_LINE = re.compile(r"\s+MIG .*Device\s+(\d+): \(UUID: (MIG-[0-9A-Za-z/-]+)\)")
_INDEX = re.compile(r"\d+(:\d+)?")


class Card(NamedTuple):
    """A GPU, or an instance of one."""

    uuid: str
    number: str
    """`0`; for an instance `0:1`."""
    parent: str = ""
    """The UUID of an instance's GPU."""


if TYPE_CHECKING:
    Source: TypeAlias = Callable[[Collection[str]], Sequence[Card] | None]


class Devices(NamedTuple):
    """What the node's ids mean."""

    ids: tuple[str, ...]
    """One for each card: its UUID if that is known, else the id as given."""
    absent: frozenset[str]
    """Those of them that a complete listing lacks."""
    unsure: frozenset[str]
    """Those of them that may be the same card as another one."""


class Standing(NamedTuple):
    """Which cards are free, and which containers have none any more."""

    free: tuple[str, ...]
    lost: dict[Key, str]
    """Containers whose card is gone, with that card."""
    unclear: dict[Key, str]
    """Containers that may have any of several cards, with the id that they were given."""
    total: int
    """The capacity: free and held cards."""


def parse_listing(text: str) -> tuple[Card, ...]:
    """Return the cards in the output of `nvidia-smi -L`."""
    listing: list[Card] = []
    gpu = Card("", "")
    for line in text.splitlines():
        if (whole := _GPU_LINE.match(line)) is not None:
            gpu = Card(whole[2], whole[1])
            listing.append(gpu)
        elif gpu.uuid and (part := _MIG_LINE.match(line)) is not None:
            listing.append(Card(part[2], f"{gpu.number}:{part[1]}", gpu.uuid))
    return tuple(listing)


def is_index(device: str) -> bool:
    return _INDEX.fullmatch(device) is not None


def is_uuid(device: str) -> bool:
    return device.startswith(("GPU-", "MIG-"))


def _in_words(device: str) -> str:
    return device if is_uuid(device) else f"GPU {device}"


def named(given: str, known: Mapping[str, str], cards: Sequence[Card] | None) -> str:
    """Return the UUID of an id as an operator gives it (an index, a UUID or its unambiguous beginning), else the id.  `known`
    has what indices meant when they were first looked up."""
    if given in known:
        return known[given]
    fitting = [card.uuid for card in cards or () if card.number == given or (is_uuid(given) and card.uuid == given)]
    if not fitting and is_uuid(given):
        fitting = [card.uuid for card in cards or () if card.uuid.startswith(given)]
    return fitting[0] if len(fitting) == 1 else given


def resolve(given: Sequence[str], known: Mapping[str, str], cards: Sequence[Card] | None) -> Devices:
    """Return the node's cards.  `cards` are all that the machine has, None if that is not known."""
    ids = tuple(dict.fromkeys(named(gpu, known, cards) for gpu in given))
    there = {card.uuid for card in cards or ()}
    absent = [gpu for gpu in ids if cards is not None and gpu not in there and (is_uuid(gpu) or is_index(gpu))]
    mixed = any(is_uuid(gpu) for gpu in ids)
    unsure = [gpu for gpu in ids if mixed and is_index(gpu) and gpu not in absent]
    return Devices(ids, frozenset(absent), frozenset(unsure))


def twice(given: Sequence[str], known: Mapping[str, str], cards: Sequence[Card] | None) -> str | None:
    """Return why these ids name a card twice, in words; None if they do not as far as known."""
    seen: dict[str, str] = {}
    for gpu in given:
        uuid = named(gpu, known, cards)
        if uuid in seen:
            return f"{gpu} names the same card as {seen[uuid]}" if gpu != seen[uuid] else f"{gpu} is given twice"
        seen[uuid] = gpu
    for card in cards or ():
        if card.parent in seen and card.uuid in seen:
            return f"{seen[card.uuid]} is an instance of {seen[card.parent]}, which is given as well"
    return None


def standing(devices: Devices, held: Mapping[Key, Sequence[str]], cards: Sequence[Card] | None) -> Standing:
    """Return which cards are free while containers hold these."""
    lost: dict[Key, str] = {}
    unclear: dict[Key, str] = {}
    doubted: set[str] = set()
    for key, ids in sorted(held.items()):
        for gpu in ids:
            if gpu in devices.absent or (gpu not in devices.ids and is_uuid(gpu) and cards is not None):
                lost.setdefault(key, gpu)
            elif gpu not in devices.ids:
                others = [other for other in devices.ids if other not in devices.absent and _may_be(gpu, other)]
                if others:
                    doubted.update(others)
                    unclear.setdefault(key, gpu)
                else:
                    lost.setdefault(key, gpu)
    taken = {gpu for ids in held.values() for gpu in ids}
    out = taken | doubted | devices.absent | devices.unsure
    free = tuple(gpu for gpu in devices.ids if gpu not in out)
    return Standing(free, lost, unclear, len(free) + sum(len(ids) for ids in held.values()))


def _may_be(one: str, other: str) -> bool:
    """Return whether two different ids may name the same card: not if both are UUIDs, or both indices."""
    return not (is_uuid(one) and is_uuid(other)) and not (is_index(one) and is_index(other))


def nvidia_cards(known: Collection[str]) -> Sequence[Card] | None:
    """List the cards of this machine; None if the driver's program is missing, fails or does not answer.  `known` are UUIDs to
    ask about one by one if it can't list all: one card that has fallen off the bus makes it fail."""
    listed = _ask("-L")
    if listed is None:
        return None
    if listed.returncode == 0:
        return parse_listing(listed.stdout)
    cards = []
    for uuid in sorted(known):
        query = _ask("--query-gpu=index,uuid", "--format=csv,noheader", f"--id={uuid}")
        if query is None or (query.returncode and query.returncode not in (_NO_SUCH_CARD, _FALLEN_OFF)):
            return None
        index, _, shown = query.stdout.partition(",")
        if query.returncode == 0 and shown.strip() == uuid:
            cards.append(Card(uuid, index.strip()))
    return cards or None


def _ask(*words: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [_PROGRAM, *words], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def check_given(given: Sequence[str], source: Source) -> None:
    """Refuse ids that name a card twice, as far as the machine knows its cards.  Blocks.  Raises ConfigError."""
    why = twice(given, {}, source(())) if given else None
    if why is not None:
        raise ConfigError(
            f"--gpu: {why}; name each card once, best by its UUID (`nvidia-smi -L`)", code="config.gpus.twice"
        )


class Gpus:
    """The GPUs of one node.  Without a `source`, its ids are taken as they are."""

    def __init__(self, given: Sequence[str], ledger: Ledger, node: str, source: Source | None = None) -> None:
        self._given = tuple(given)
        self._ledger = ledger
        self._node = node
        self._source = source
        self._known: dict[str, str] = {}
        """UUIDs of the node's indices when they were first looked up."""
        self._cards: Sequence[Card] | None = None
        self._devices = resolve(self._given, {}, None)
        self._standing = Standing(self._devices.ids, {}, {}, len(self._devices.ids))
        self._announced = -1
        self._said: list[str] = []
        self._looking: asyncio.Task[Sequence[Card] | None] | None = None
        self._taking = asyncio.Lock()
        """Held while cards are taken: two containers that start at once must not find the same one free."""

    def open(self) -> None:
        """Read the notes.  Blocks; raises OSError if they can't be read."""
        self._ledger.open()
        self._known = self._ledger.known_devices()
        self._settle()

    @property
    def any(self) -> bool:
        """Whether the node has GPUs, or a container still holds one."""
        return bool(self._given or self._standing.lost)

    @property
    def lost(self) -> Mapping[Key, str]:
        """Containers whose card is gone, with that card."""
        return self._standing.lost

    @property
    def troubles(self) -> list[str]:
        """Why some GPUs are not given to apps, in words."""
        away = [self._title(gpu) for gpu in self._devices.ids if gpu in self._devices.absent]
        return [
            *(f"{gpu} is missing" for gpu in away),
            *(
                f"GPU {gpu} may be one that is given by its UUID: no driver says"
                for gpu in sorted(self._devices.unsure)
            ),
            *(
                f"which GPU a container of {key.app} has is not known: it was given {gpu!r}"
                for key, gpu in self._standing.unclear.items()
            ),
        ]

    def why_lost(self, key: Key) -> str:
        """Return why a container stops, in words."""
        device = self._standing.lost[key]
        if device in self._devices.absent or (
            self._cards is not None and is_uuid(device) and not self._is_there(device)
        ):
            return f"{_in_words(device)} is gone from node {self._node}"
        return f"{_in_words(device)} is no longer one of those that node {self._node} gives to apps"

    def _is_there(self, device: str) -> bool:
        return any(card.uuid == device for card in self._cards or ())

    def _title(self, device: str) -> str:
        names = [name for name in self._given if name != device and self._known.get(name) == device]
        return f"{_in_words(device)} (--gpu {names[0]})" if names else _in_words(device)

    def capacity(self, configured: Mapping[str, int]) -> dict[str, int]:
        """Return the node's capacity with the GPUs that apps get or have."""
        return {**configured, **({GPU: self._standing.total} if self.any else {})}

    def announce(self, configured: Mapping[str, int]) -> dict[str, int]:
        """Return the capacity to announce now."""
        self._announced = self._standing.total
        return self.capacity(configured)

    @property
    def changed(self) -> bool:
        """Whether the capacity differs from the announced one."""
        return self._standing.total != self._announced

    async def look(self) -> None:
        """Look at the machine's cards, and at what the containers hold.  Raises OSError."""
        if self._source is not None and self._given:
            looking = self._looking
            if looking is None or looking.done():
                uuids = [gpu for gpu in self._devices.ids if is_uuid(gpu)]
                looking = self._looking = asyncio.create_task(asyncio.to_thread(self._source, uuids))
            await asyncio.wait([looking], timeout=_PATIENCE_S)  # Others may wait for the same look.
            if looking.done() and (cards := looking.result()) is not None:
                self._cards = cards
        await asyncio.to_thread(self._settle)
        self._tell()

    def _tell(self) -> None:
        """Log what is wrong, when that changes."""
        troubles = self.troubles
        for trouble in troubles:
            if trouble not in self._said:
                _log.error("a GPU is not given to apps", node=self._node, reason=trouble)
        for line in self._said:
            if line not in troubles:
                _log.info("a GPU is given to apps again", node=self._node, reason=line)
        self._said = troubles

    def _settle(self) -> None:
        """Derive everything from the cards and the notes.  Blocks."""
        fresh = {name: named(name, self._known, self._cards) for name in self._given if is_index(name)}
        fresh = {name: uuid for name, uuid in fresh.items() if is_uuid(uuid) and self._known.get(name) != uuid}
        if fresh:
            self._known |= fresh
            self._ledger.note_known_devices(self._known)
        held = self._ledger.held_devices()
        for key, ids in held.items():
            renamed = tuple(named(name, self._known, self._cards) if is_index(name) else name for name in ids)
            if renamed != ids:
                self._ledger.note_devices(key, renamed)
                held[key] = renamed
        self._devices = resolve(self._given, self._known, self._cards)
        self._standing = standing(self._devices, held, self._cards)

    async def settle(self) -> None:
        """Take note that a container has ended.  Raises OSError."""
        if self.any:
            await asyncio.to_thread(self._settle)

    async def holds(self, key: Key) -> bool:
        return bool(await asyncio.to_thread(self._ledger.devices, key))

    async def take(self, key: Key, count: int) -> tuple[str, ...] | None:
        """Take the first free cards, the same ones on a repeated call; None if too few are free.  Raises OSError,
        and Unavailable if that can't be known."""
        if not count:
            return await asyncio.to_thread(self._ledger.devices, key)
        async with self._taking:
            await self.look()
            return await asyncio.to_thread(self._take, key, count)

    def _take(self, key: Key, count: int) -> tuple[str, ...] | None:
        own = self._ledger.devices(key)
        if own and key not in self._standing.lost and all(gpu in self._devices.ids for gpu in own):
            return own
        if own:  # It was given a card that is gone or unknown now, and has not started.
            self._ledger.free_devices(key)
            self._settle()
        if len(self._standing.free) < count:
            damaged = next((gpu for gpu, id_ in self._standing.unclear.items() if id_ == UNKNOWN_DEVICE), None)
            if damaged is not None:
                raise Unavailable(
                    f"the note of the GPUs of {damaged} is damaged, so nobody knows which are free: wait until its "
                    "container is gone",
                    code="container.record.damaged",
                )
            return None
        chosen = self._standing.free[:count]
        self._ledger.note_devices(key, chosen)
        self._settle()
        return chosen
