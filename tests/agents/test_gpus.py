"""GPUs are known by their UUIDs, and a card that is gone stops what sits on it and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING

import pytest

from agents import agent as agents
from agents.config import ConfigError, NodeConfig
from agents.gpus import Card, Devices, Gpus, check_given, named, nvidia_cards, parse_listing, resolve, standing, twice
from agents.ledger import UNKNOWN_DEVICE, Ledger
from agents.runtime.interface import Key, Unavailable
from dorm.local.cluster import LocalCluster, LocalOptions
from events import kinds as k
from tests.agents.one_node import Node, holds
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from pathlib import Path

A, B, C = Card("GPU-a1", "0"), Card("GPU-b2", "1"), Card("GPU-c3", "2")
FIRST, SECOND = Key("app-1", 1, 0), Key("app-2", 1, 0)
LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a1)
  MIG 1g.5gb      Device  0: (UUID: MIG-7)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-a1/7/0)
GPU 1: Tesla V100 (16 (x) GB) (UUID: GPU-b2)
"""


def test_a_listing_names_cards_and_instances() -> None:
    assert parse_listing(LISTING) == (
        A, Card("MIG-7", "0:0", "GPU-a1"), Card("MIG-GPU-a1/7/0", "0:1", "GPU-a1"), B,
    )  # fmt: skip
    assert parse_listing("No devices found.\n") == ()


@pytest.mark.parametrize(
    ("given", "known", "cards", "expected"),
    [
        ("0", {}, (A, B), "GPU-a1"),
        ("0", {"0": "GPU-b2"}, (A, B), "GPU-b2"),  # What the index meant first: cards are renumbered.
        ("0", {}, None, "0"),
        ("7", {}, (A, B), "7"),
        ("GPU-b", {}, (A, B), "GPU-b2"),
        ("GPU-", {}, (A, B), "GPU-"),
        ("0:1", {}, parse_listing(LISTING), "MIG-GPU-a1/7/0"),
        ("card7", {}, (A, B), "card7"),
    ],
)
def test_what_an_id_names(given: str, known: dict[str, str], cards: Sequence[Card] | None, expected: str) -> None:
    assert named(given, known, cards) == expected


@pytest.mark.parametrize(
    ("given", "cards", "named_in"),
    [
        (("0", "0"), None, "given twice"),
        (("0", "GPU-a1"), (A, B), "GPU-a1 names the same card as 0"),
        (("GPU-a1", "GPU-a"), (A, B), "GPU-a names the same card as GPU-a1"),
        (("0", "0:1"), parse_listing(LISTING), "is an instance of 0"),
    ],
)
def test_a_card_is_given_once(given: tuple[str, ...], cards: Sequence[Card] | None, named_in: str) -> None:
    with raises(ConfigError, "config.gpus.twice", named_in):
        check_given(given, lambda _: cards)
    assert twice(("0", "1"), {}, (A, B)) is None
    assert twice(("0", "GPU-a1"), {}, None) is None  # Not known; `resolve` gives neither twice.


def test_a_configuration_names_each_card_once(tmp_path: Path) -> None:
    with raises(ConfigError, "config.gpus.twice", "--gpu 0"):
        NodeConfig(name="n", address="a", capacity={"gpu": 2}, checkpoints=tmp_path, gpus=("0", "0"))


def test_the_node_s_cards() -> None:
    assert resolve(("0", "1"), {}, (A, B)) == Devices(("GPU-a1", "GPU-b2"), frozenset(), frozenset())
    assert resolve(("0", "GPU-a1"), {}, (A,)).ids == ("GPU-a1",)
    gone = resolve(("GPU-a1", "1", "mine"), {"1": "GPU-b2"}, (A,))
    assert gone.absent == {"GPU-b2"}
    unknown = resolve(("0", "GPU-b2"), {}, None)  # May be one card.
    assert not unknown.absent
    assert unknown.unsure == {"0"}


IDS = ("0", "1", "GPU-a1", "GPU-b2", "GPU-c3", "mine", UNKNOWN_DEVICE)
TRUTH = {"0": "GPU-a1", "1": "GPU-b2"}


@pytest.mark.parametrize("listing", [None, (), (A,), (B,), (A, B), (A, B, C)])
@pytest.mark.parametrize("given", [("0", "1"), ("0",), ("1", "GPU-a1"), ("GPU-a1", "GPU-b2"), ("mine",), ()])
def test_no_card_is_given_twice(given: tuple[str, ...], listing: Sequence[Card] | None) -> None:
    """Whatever containers hold, by whatever name: what is free is none of it."""
    for held in itertools.product([(), *((one,) for one in IDS)], repeat=2):
        found = standing(
            resolve(given, {}, listing),
            {key: ids for key, ids in zip((FIRST, SECOND), held, strict=True) if ids},
            listing,
        )
        there = {card.uuid for card in listing} if listing is not None else set(TRUTH.values())
        free = [TRUTH.get(one, one) for one in found.free]
        assert len(free) == len(set(free))
        used = {TRUTH.get(one, one) for ids in held for one in ids}
        assert not used & set(free)
        assert UNKNOWN_DEVICE not in used or not free
        assert all(one in there or one == "mine" for one in free)
        assert found.total == len(free) + sum(map(len, held))


def test_which_containers_have_lost_their_card() -> None:
    held = {FIRST: ("GPU-a1",), SECOND: ("GPU-b2",)}
    assert standing(resolve(("0", "1"), {}, (A, B)), held, (A, B)).lost == {}
    assert standing(resolve(("GPU-a1", "GPU-b2"), {}, (B,)), held, (B,)).lost == {FIRST: "GPU-a1"}
    assert standing(resolve(("GPU-a1", "GPU-b2"), {}, None), held, None).lost == {}  # No answer is no loss.
    assert standing(resolve(("1",), {}, None), {FIRST: ("0",)}, None).lost == {FIRST: "0"}
    renamed = standing(resolve(("GPU-a1", "GPU-b2"), {}, None), {FIRST: ("0",)}, None)
    assert (renamed.lost, renamed.free, renamed.total) == ({}, (), 1)
    assert standing(resolve((), {}, None), {FIRST: ("0",)}, None).lost == {FIRST: "0"}


def test_a_note_that_can_t_be_read_may_mean_any_card(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_devices(SECOND, ("GPU-a1",))
    (tmp_path / "app-1-1-0.devices").write_bytes(b"\0\xff\xff" * 4)
    (tmp_path / "stray.devices").write_text("GPU-a1")
    assert ledger.held_devices() == {FIRST: (UNKNOWN_DEVICE,), SECOND: ("GPU-a1",)}
    for damaged in (b"", b"\0" * 9):
        (tmp_path / "app-1-1-0.devices").write_bytes(damaged)
        assert ledger.devices(FIRST) == (UNKNOWN_DEVICE,)


async def test_with_a_damaged_note_no_start_fails_and_none_gets_a_card(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    gpus = Gpus(("0", "1"), ledger, "node-1")
    ledger.open()
    (tmp_path / "ledger" / "app-1-1-0.devices").touch()
    gpus.open()
    with raises(Unavailable, "container.record.damaged", "app-1"):
        await gpus.take(SECOND, 1)
    assert await gpus.take(FIRST, 1) == ("0",)  # Its own container takes a card again.
    assert await gpus.take(SECOND, 1) == ("1",)


def test_nodes_of_one_machine_share_its_gpus(tmp_path: Path) -> None:
    cluster = LocalCluster(LocalOptions(data=tmp_path, agents=2, capacity={"cpu": 1000, "gpu": 2}))
    assert [cluster._node(index).gpus for index in (0, 1)] == [("0", "1"), ("2", "3")]


# --- nvidia-smi -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces the program on the PATH by a script."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def replace(script: str) -> None:
        (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\n{script}")
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)

    return replace


def test_the_driver_s_program_lists_the_cards(
    nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(f"cat <<END\n{LISTING}END\n")
    assert nvidia_cards(()) == parse_listing(LISTING)
    nvidia_smi("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9")
    assert nvidia_cards(()) is None
    assert nvidia_cards(["GPU-a1"]) is None
    # A card that has fallen off the bus makes the listing fail; the others are asked about one by one.
    nvidia_smi('case "$*" in -L) exit 255;; *GPU-a1) exit 15;; *) echo "1, GPU-b2";; esac')
    assert nvidia_cards(["GPU-a1", "GPU-b2"]) == [B]
    nvidia_smi("exec sleep 60")
    monkeypatch.setattr("agents.gpus._PATIENCE_S", 0.05)
    assert nvidia_cards(()) is None
    monkeypatch.setenv("PATH", "")
    assert nvidia_cards(()) is None


# --- an agent -------------------------------------------------------------------------------------------------------


class Machine:
    """The cards of a node's machine."""

    def __init__(self, *cards: Card) -> None:
        self.cards: Sequence[Card] | None = cards

    def __call__(self, known: Collection[str]) -> Sequence[Card] | None:
        return self.cards


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(agents, "_GPUS_S", 0.05)
    node = Node(tmp_path)
    yield node
    await node.clean()


SHOW = 'echo "$CUDA_VISIBLE_DEVICES" > "$DORM_CHECKPOINT_DIR/gpus"; trap "exit 0" TERM; while :; do sleep 0.05; done'


def given(node: Node, app: str) -> str:
    """What its container was given, "" as long as it has not said that."""
    path = node.root / "checkpoints" / app / "gpus"
    return path.read_text().strip() if path.exists() else ""


async def release(node: Node, *apps: str, script: str = SHOW) -> None:
    for index, app in enumerate(apps, 1):
        await node.release(script, app=app, demand={"gpu": 1})
        await node.until(k.ContainerStarted, index)
        await holds(lambda app=app: bool(given(node, app)))  # type: ignore[misc]


def joined(facts: Sequence[k.Event]) -> list[int]:
    return [fact.capacity.get("gpu", 0) for fact in facts if isinstance(fact, k.NodeJoined)]


async def test_containers_get_uuids_and_a_lost_card_stops_its_own_alone(node: Node) -> None:
    machine = Machine(A, B)
    async with node.agent(gpus=("0", "1"), cards=machine) as agent:
        await release(node, "app-1", "app-2")
        assert [given(node, app) for app in ("app-1", "app-2")] == ["GPU-a1", "GPU-b2"]
        machine.cards = (Card("GPU-b2", "0"),)  # The first one is gone, and the other one has its number.
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.app, ended.reason, ended.exit_code, ended.asked) == ("app-1", "device", None, False)
        assert "GPU-a1" in ended.message
        await node.said(lambda facts: joined(facts)[-1] == 1)
        assert agent.gpus.troubles == ["GPU-a1 (--gpu 0) is missing"]
        machine.cards = (A, B)  # It is back.
        await node.said(lambda facts: joined(facts)[-1] == 2)
        assert agent.gpus.troubles == []
    assert [type(fact) for fact in node.facts()].count(k.ContainerExited) == 1


async def test_a_program_that_fails_before_the_loss_is_seen_fails_by_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_GPUS_S", 3600.0)
    machine = Machine(A)
    async with node.agent(gpus=("GPU-a1",), cards=machine):
        go = node.root / "go"
        wait = f'echo x > "$DORM_CHECKPOINT_DIR/gpus"; until [ -e {go} ]; do sleep 0.02; done; exit 3'
        await release(node, "app-1", script=wait)
        machine.cards = ()
        go.touch()
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.reason, ended.exit_code) == ("device", None)


async def test_a_driver_that_does_not_answer_loses_nothing(node: Node) -> None:
    machine = Machine(A)
    async with node.agent(gpus=("0",), cards=machine) as agent:
        await release(node, "app-1")
        machine.cards = None
        await agent.gpus.look()
        assert agent.gpus.lost == {}
        await node.release(SHOW, app="app-2", demand={"gpu": 1})
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.app, ended.reason) == ("app-2", "device")  # None is free.


@pytest.mark.parametrize("machine", [Machine(A, B), None])
async def test_cards_that_have_other_names_after_a_restart_are_not_given_twice(
    node: Node, machine: Machine | None
) -> None:
    async with node.agent(gpus=("0", "1")):
        await release(node, "app-1")
    assert given(node, "app-1") == "0"
    async with node.agent(gpus=("GPU-a1", "GPU-b2"), cards=machine) as agent:
        await node.release(SHOW, app="app-2", demand={"gpu": 1})
        if machine is not None:  # The old note is rewritten, since it is known which card it names.
            await node.until(k.ContainerStarted, 2)
            assert Ledger(node.root / "agent" / "ledger").held_devices()[FIRST] == ("GPU-a1",)
            await holds(lambda: bool(given(node, "app-2")))
            assert given(node, "app-2") == "GPU-b2"
        else:
            ended = await node.until(k.ContainerExited)
            assert isinstance(ended, k.ContainerExited)
            assert ended.app == "app-2"
            assert joined(node.facts())[-1] == 1
            (trouble,) = agent.gpus.troubles
            assert "app-1" in trouble


async def test_a_card_that_is_taken_from_the_apps_stops_its_own_alone(node: Node) -> None:
    async with node.agent(gpus=("0", "1")):
        await release(node, "app-1", "app-2")
    async with node.agent(gpus=("1",)):
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.app, ended.reason) == ("app-1", "device")
        await node.said(lambda facts: joined(facts)[-1] == 1)
        assert set(joined(node.facts())[:-1]) == {2}, "until then, it held the card"
    assert [type(fact) for fact in node.facts()].count(k.ContainerExited) == 1


async def test_an_index_keeps_its_card_over_restarts(node: Node) -> None:
    async with node.agent(gpus=("0",), cards=Machine(A, B)):
        await release(node, "app-1")
    swapped = Machine(Card("GPU-b2", "0"), Card("GPU-a1", "1"))
    async with node.agent(gpus=("0",), cards=swapped) as agent:
        assert agent.gpus.lost == {}
        assert Ledger(node.root / "agent" / "ledger").known_devices() == {"0": "GPU-a1"}


async def test_containers_that_start_at_once_get_different_cards(tmp_path: Path) -> None:
    gpus = Gpus(("0", "1", "2", "3"), Ledger(tmp_path / "ledger"), "node-1")
    gpus.open()
    taken = await asyncio.gather(*(gpus.take(Key(f"app-{index}", 1, 0), 1) for index in range(6)))
    assert sorted(ids for ids in taken if ids is not None) == [("0",), ("1",), ("2",), ("3",)]
    assert taken.count(None) == 2
