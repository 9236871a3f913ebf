"""Which signals a program on the process runtime starts with."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.agents.harness import ended, output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agents.harness import Harness

_OF_LIBC = 0b11 << 31
"""Signals 32 and 33, which the C library keeps to itself: no program can set them, so some inherit them ignored."""
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGTSTP,
    signal.SIGRTMIN,
)


@pytest.fixture
def a_background_job() -> Iterator[None]:
    """Signals are ignored, as in a shell's background job, under `nohup`, or after `trap ''`."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in _IGNORED]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("a_background_job")
async def test_a_program_ignores_no_signal_because_its_agent_does(process_harness: Harness) -> None:
    async with process_harness.opened() as runtime:
        spec = process_harness.spec("grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        said = (await output(runtime, spec.key)).decode().split()
    assert said[::2] == ["SigBlk:", "SigIgn:"]
    assert [int(mask, 16) & ~_OF_LIBC for mask in said[1::2]] == [0, 0]
