"""A node's offers follow from its folders, and its configuration has the last word."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from agents import offers as module
from agents.config import OfferedVolume
from agents.offers import Offers
from agents.runtime.interface import Refused
from events.kinds import NodeOffers, VolumeOffer
from events.spec import check_spec
from tests.core.records import document
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def wanting(volumes: Any) -> Any:
    return check_spec(document(volumes=volumes))


async def test_a_folder_that_disappears_and_returns_is_announced(tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    for folder in (data, scratch):
        folder.mkdir()
    offers = Offers({"data": OfferedVolume(data), "scratch": OfferedVolume(scratch, writable=True)}, "node-1")
    announced = await offers.announce()
    assert announced.volumes == {"data": VolumeOffer(missing=True), "scratch": VolumeOffer(writable=True)}, (
        "an empty folder to read from looks like one whose file system is not mounted"
    )
    assert not await offers.changed()
    (data / "file").touch()
    assert await offers.changed()
    await offers.announce()
    await offers.check(wanting({"data": "/data"}), "me")
    scratch.rmdir()
    assert await offers.changed()
    with raises(Refused, "volumes.missing", "scratch", str(scratch)):
        await offers.check(wanting([{"name": "scratch", "read_only": False}]), "me")


async def test_the_nodes_own_configuration_decides(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    offers = Offers({"data": OfferedVolume(tmp_path, tenants=("vision",))}, "node-1")
    await offers.check(wanting({"data": "/data"}), "vision")
    for volumes, owner, code in (
        ({"data": "/data"}, "nlp", "volumes.not_allowed"),
        ([{"name": "data", "read_only": False}], "vision", "volumes.read_only"),
        ({"other": "/data"}, "vision", "volumes.not_offered"),
    ):
        with raises(Refused, code, "node-1"):
            await offers.check(wanting(volumes), owner)


async def test_containers_that_start_together_share_one_look_at_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    offers = Offers({"data": OfferedVolume(tmp_path)}, "node-1")
    await asyncio.gather(*(offers.check(wanting({"data": "/data"}), "me") for _ in range(8)), offers.announce())


async def test_a_folder_that_does_not_answer_counts_as_missing_and_holds_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, looked = threading.Event(), []
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    there = module.is_there

    def look(volume: OfferedVolume) -> bool:
        looked.append(volume.path)
        if volume.path.name == "hangs":
            answers.wait(20)
        return there(volume)

    monkeypatch.setattr(module, "is_there", look)
    for name in ("fine", "hangs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    offers = Offers({name: OfferedVolume(tmp_path / name) for name in ("fine", "hangs")}, "node-1")
    for _ in range(3):
        announced = await offers.announce()
        assert {name: one.missing for name, one in announced.volumes.items()} == {"fine": False, "hangs": True}
    assert len(looked) == 2
    answers.set()
    async with asyncio.timeout(20):
        while not await offers.changed():
            pass


async def test_a_node_without_volumes_announces_that_it_builds_environments() -> None:
    offers = Offers({}, "node-1", ["3.12"])
    assert await offers.announce() == NodeOffers(environments=True, pythons=["3.12"])
    assert not await offers.changed()
