"""A container's failure includes its last output, in one short line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.reporter import understood
from events import kinds as k
from tests.agents.one_node import Node

if TYPE_CHECKING:
    from pathlib import Path

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: no data\n\n'
)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\r\n\ntwo", "one / two"),
        (TRACEBACK, 'File "train.py", line 3, in <module> / main() / ValueError: no data'),
        (b"    print(x[0])\n          ~^^^\nIndexError: no 0\n", "print(x[0]) / IndexError: no 0"),
        (b"\xff\x1b[31mred", "\ufffd\x1b[31mred"),
    ],
)
def test_output_is_condensed_to_one_line(output: bytes, line: str) -> None:
    assert understood(output) == (line, False)


def test_the_end_of_a_long_line_counts() -> None:
    line = understood(b"x" * 10_000 + b" cause").text
    assert (len(line), line[0], line[-6:]) == (400, "…", " cause")


_OF_TORCHRUN = b"""\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 11, in <module>
[rank1]: ValueError: label 17 is out of range
E1128 16:12:01 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 4)
Traceback (most recent call last):
  File "torch/distributed/run.py", line 927, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
_WRAPPED = b"""\
KeyError: 'label'
Traceback (most recent call last):
  File "launch.py", line 3, in <module>
subprocess.CalledProcessError: Command 'train' returned non-zero exit status 1.
"""
_OF_CPP = b"""\
terminate called after throwing an instance of 'std::runtime_error'
  what():  no such layer
frame #0: c10::Error::Error (0x7f)
frame #1: main (0x40)
frame #2: __libc_start_main (0x7f)
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (_OF_TORCHRUN, "[rank1]: ValueError: label 17 is out of range"),
        (_OF_CPP, "what(): no such layer"),
        (b"ValueError: no data\n" + b"flushing\n" * 20, "ValueError: no data"),
        (b"ValueError: " + b"x" * 1000 + b"\na\nb\nc\n", "ValueError: " + "x" * 387 + "…"),
    ],
)
def test_an_error_is_found_before_what_others_print_after_it(output: bytes, line: str) -> None:
    assert understood(output) == (line, False)


def test_the_error_of_a_launcher_hides_no_error_of_its_program() -> None:
    assert understood(_WRAPPED).text == "KeyError: 'label'"


_GLOO = (
    b"RuntimeError: [gloo/transport/tcp/pair.cc:%d] %s [127.0.0.1]:8912. This is typically caused by a remote worker"
)


@pytest.mark.parametrize(
    "output",
    [
        _GLOO % (553, b"Connection closed by peer"),
        b"[rank0]: " + _GLOO % (537, b"Read error") + b": Connection reset by peer\n",
        b"RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        b"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:7, remote process exited or a network error\n"
        b"ncclRemoteError: A call failed possibly due to a network error.\nLast error:\nsocket\n",
        b"BrokenPipeError: [Errno 32] Broken pipe",
        b"dorm.elastic.errors.LeftBehind: the others continue without this member",
        b"dorm-launcher: the container of rank 2 is gone",
        b"ConnectionRefusedError: [Errno 111] Connection refused",
    ],
)
def test_a_lost_peer_is_recognized(output: bytes) -> None:
    assert understood(output).peer_lost


@pytest.mark.parametrize(
    "output",
    [
        TRACEBACK,
        b"",
        b"warning: Connection reset by peer, trying again\n" + TRACEBACK,
        b"ConnectionResetError: [Errno 104]\n\nDuring handling of the above exception, another occurred:\nKeyError: 3\n",
    ],
)
def test_an_error_of_its_own_is_not_taken_for_a_lost_peer(output: bytes) -> None:
    assert not understood(output).peer_lost


async def test_a_failure_is_reported_and_a_clean_end_is_not(tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        async with node.agent():
            await node.release("echo first; echo no data >&2; exit 3")
            await node.release("echo done", app="app-2")
            exits = await node.said(lambda facts: sum(isinstance(fact, k.ContainerExited) for fact in facts) == 2)
            said = {fact.app: (fact.exit_code, fact.message) for fact in exits if isinstance(fact, k.ContainerExited)}
            assert said == {"app-1": (3, "first / no data"), "app-2": (0, "")}
            await node.release("echo BrokenPipeError: 32 >&2; exit 1", app="app-3")
            exits = await node.said(lambda facts: sum(isinstance(fact, k.ContainerExited) for fact in facts) == 3)
            assert [fact.app for fact in exits if isinstance(fact, k.ContainerExited) and fact.peer_lost] == ["app-3"]
    finally:
        await node.clean()
