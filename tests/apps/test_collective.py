"""The ring, with its workers as threads of this process and real sockets between them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

from compose.apps.learning.batches import SHARDS, shards_of
from compose.apps.ring import collective, frames
from compose.apps.worker.contract import read_place
from compose.apps.worker.failures import PeerLost
from tests.lab.machines.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from compose.apps.ring.collective import Ring


T = TypeVar("T")


def with_ring(world_size: int, work: Callable[[int, Ring], T]) -> list[T]:
    """What `work` gives on every rank of a ring."""
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(world_size))

    def one(rank: int) -> T:
        place = read_place({"DORM_RANK": str(rank), "DORM_WORLD_SIZE": str(world_size), "DORM_PEERS": peers})
        ring = collective.join(place, "same", connect_timeout_s=20, peer_timeout_s=20)
        try:
            return work(rank, ring)
        finally:
            ring.close()

    with ThreadPoolExecutor(world_size) as threads:
        return list(threads.map(one, range(world_size)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 24, 26])
def test_the_sum_equals_that_of_one_worker_to_the_last_bit(world_size: int) -> None:
    random = np.random.default_rng(7)
    # Magnitudes so far apart that nearly any other order of addition gives other bits.
    shards = random.standard_normal((SHARDS, 1000)) * 10.0 ** random.integers(-8, 8, (SHARDS, 1000))
    expected = shards[0].copy()
    for shard in shards[1:]:
        expected += shard
    assert not np.array_equal(expected, shards[::-1].sum(axis=0)), "the order matters"

    def work(rank: int, ring: Ring) -> tuple[bytes, bool]:
        parts = [shards[k] for k in shards_of(rank, world_size)]
        total, stopping = ring.sum(1, parts, 1000, lambda: False)
        return total.tobytes(), stopping

    assert with_ring(world_size, work) == [(expected.tobytes(), False)] * world_size


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_request_of_one_worker_reaches_all_in_the_same_step(asked: int) -> None:
    def work(rank: int, ring: Ring) -> list[bool]:
        part = [np.ones(3)]
        return [ring.sum(step, part, 3, lambda: step == 2 and rank == asked)[1] for step in (1, 2, 3)]  # noqa: B023

    assert with_ring(3, work) == [[False, True, False]] * 3


def test_a_worker_that_gives_up_sends_the_reason_to_the_others() -> None:
    def work(rank: int, ring: Ring) -> str:
        if rank == 1:
            ring.give_up("the disk is full")
            return ""
        with pytest.raises(PeerLost) as lost:
            ring.sum(1, [np.ones(3)], 3, lambda: False)
        ring.give_up(str(lost.value))
        return str(lost.value)

    said = with_ring(3, work)
    assert said[2] == "the disk is full"


def test_workers_at_different_steps_do_not_add_up() -> None:
    def work(rank: int, ring: Ring) -> str:
        with pytest.raises(PeerLost) as lost:
            ring.sum(1 + rank, [np.ones(3)], 3, lambda: False)
        return str(lost.value)

    assert "at step 1, this worker at step 2" in with_ring(2, work)[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "another protocol"),
        (b"drm1\xff\xff\xff\xff\x00\x00\x00\x00", "another protocol"),
        (b"drm1\x00\x00\x00\x02\xff\xff\xff\xff{}", "4294967295 numbers where 5 were expected"),
        (b"drm1\x00\x00\x00\x02\x00\x00\x00\x00[]", "not a JSON object"),
        (b"drm1\x00\x00\x00\x02\x00\x00\x00\x00{{", "not JSON"),
        (b"drm1\x00\x00\x00\x09\x00\x00\x00\x00{}", "closed the connection"),
    ],
    ids=["http", "long header", "many numbers", "list", "broken", "short"],
)
def test_malformed_frames_are_refused(words: bytes, complaint: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(words)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(frames.FrameError, match=complaint):
            frames.receive(ours, 5, 10)
