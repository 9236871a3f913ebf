"""Process groups of PyTorch: gloo for tensors in memory, NCCL for those on GPUs.

A group here is a separate backend, not the default group of `torch.distributed`, so several can exist: the one in use and the
one of the next view.  A script may use `torch.distributed` independently.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from dorm.elastic.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from dorm.elastic.collectives.exchange import Exchange

__all__ = ["ProcessGroup", "as_arrays", "available", "build", "devices_of", "flattened", "put_back", "take_arrays"]

_BUILD_S = 10.0
"""Seconds to connect, and for the first sum."""
_HANG_S = 300.0
"""Seconds after which a sum is given up although all members respond; a script may be slow, so this is long."""
_LOOK_S = 0.02
"""Seconds between two looks at whether the members are disturbed."""
_POLL_S = 0.0005
"""Seconds between two looks at whether a GPU has finished."""


def available(devices: Iterable[torch.device]) -> bool:
    """Whether this build of PyTorch has a backend for each device."""
    kinds = {device.type for device in devices}
    has = {"cpu": dist.is_gloo_available(), "cuda": dist.is_nccl_available()}
    return bool(kinds) and all(has.get(kind, False) for kind in kinds)


def devices_of(parts: Iterable[object]) -> list[torch.device]:
    """Return one device of each type on which the state has tensors."""
    devices: dict[str, torch.device] = {}

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            devices.setdefault(value.device.type, value.device)
        elif isinstance(value, dict):
            for item in value.values():
                visit(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)

    for part in parts:
        visit(part.state_dict() if hasattr(part, "state_dict") else part)
    return [devices[kind] for kind in sorted(devices)]


def build(devices: Sequence[torch.device], exchange: Exchange, rank: int, size: int, host: str) -> ProcessGroup:
    """Connect with the other members and sum once, so that everything that a sum needs is initialized.

    Raises PeerError or RuntimeError if that fails."""
    backends: dict[str, Any] = {}
    for device in devices:
        store = _Store(exchange, f"{device.type}/")
        backends[device.type] = _gloo(store, rank, size, host) if device.type == "cpu" else _nccl(store, rank, size)
    group = ProcessGroup(backends)
    for device in devices:
        probe = torch.ones(1, device=device)
        if not group.sum([probe], lambda: False, _BUILD_S) or probe.item() != size:
            group.close()
            raise PeerError(group.error or "its first sum is wrong", code="elastic.peer.group")
        backends[device.type]._set_default_timeout(timedelta(seconds=_HANG_S))
    return group


class ProcessGroup:
    """One group, with a backend for each type of device."""

    def __init__(self, backends: dict[str, Any]) -> None:
        self._backends = backends
        self.name = "+".join("gloo" if kind == "cpu" else "nccl" for kind in backends)
        self.error = ""
        """Why the last sum failed."""
        self.ended = False
        """Whether nobody uses it any more: a sum in flight is given up."""
        self._works: list[Any] = []
        """Works of the sum in flight; one that was given up may go on in threads of the backend."""

    def takes(self, tensors: Iterable[torch.Tensor]) -> bool:
        return all(tensor.device.type in self._backends for tensor in tensors)

    def sum(self, buffers: Sequence[torch.Tensor], disturbed: Callable[[], bool], timeout: float = _HANG_S) -> bool:
        """Sum over all members, in place; False if that failed, or was given up because the members are `disturbed`.

        The buffers belong to this group afterwards: a sum that was given up may still write to them."""
        deadline = time.monotonic() + timeout
        try:
            self._works = [self._backends[buffer.device.type].allreduce([buffer]) for buffer in buffers]
            for work, buffer in zip(list(self._works), buffers):
                if not self._completes(work, buffer.is_cuda, disturbed, deadline):
                    late = time.monotonic() > deadline
                    self.error = f"no answer within {timeout:.0f} s" if late else "another member has given it up"
                    return False
        except (RuntimeError, KeyError) as error:  # A group that another thread has closed has no backends.
            self.error = (str(error).splitlines() or [""])[0]
            return False
        self._works = []
        return True

    def _completes(self, work: Any, on_gpu: bool, disturbed: Callable[[], bool], deadline: float) -> bool:
        """Wait for a sum; False if it is given up.  Raises RuntimeError if it failed."""
        while True:
            try:
                if on_gpu and not work.is_completed():  # Its `wait` only orders streams.
                    time.sleep(_POLL_S)
                else:
                    work.wait(timedelta(seconds=_LOOK_S))
                    return True
            except RuntimeError:
                if work.is_completed():  # Otherwise, this wait timed out.
                    work.wait()
                    return True
            if self.ended or disturbed() or time.monotonic() > deadline:
                return False

    def abort(self) -> None:
        """Give up a sum in flight: NCCL can do that, gloo cannot."""
        for backend in self._backends.values():
            if hasattr(backend, "abort"):  # Older releases only have it for NCCL.
                backend.abort()

    @property
    def idle(self) -> bool:
        """Whether no sum is in flight.  The end of a group that is not idle would wait for it: with gloo, for as long as a
        frozen peer stays frozen."""
        return all(work.is_completed() for work in self._works)

    def close(self) -> None:
        """Close all connections."""
        self._works = []
        self._backends = {}


def _gloo(store: _Store, rank: int, size: int, host: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=_BUILD_S)
    options._threads = 1  # There is one sum at a time.
    try:
        options._devices = [gloo.create_device(hostname=host)]
    except RuntimeError:  # The address is the host's; inside a container it is another.
        options._devices = [gloo.create_default_device()]
    return gloo(store, rank, size, options)


def _nccl(store: _Store, rank: int, size: int) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=_BUILD_S)
    return nccl(store, rank, size, options)


def _parts(tensors: Sequence[torch.Tensor]) -> dict[tuple[str, torch.dtype], list[torch.Tensor]]:
    """Return the tensors by device and type: each kind fills one buffer."""
    parts: dict[tuple[str, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        parts.setdefault((str(tensor.device), tensor.dtype), []).append(tensor)
    return parts


def flattened(tensors: Sequence[torch.Tensor], scale: float) -> list[torch.Tensor]:
    """Return copies of the tensors times `scale`, one after the other in a buffer for each device and type."""
    with torch.no_grad():
        if scale == 0.0:  # Not a product: a mean over no samples is NaN.
            sizes = {kind: sum(tensor.numel() for tensor in part) for kind, part in _parts(tensors).items()}
            return [torch.zeros(size, device=kind[0], dtype=kind[1]) for kind, size in sizes.items()]
        buffers = [torch.cat([tensor.detach().reshape(-1) for tensor in part]) for part in _parts(tensors).values()]
        return [buffer if scale == 1.0 else buffer.mul_(scale) for buffer in buffers]


def put_back(tensors: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> None:
    """Write what `flattened` buffers hold now into the tensors."""
    with torch.no_grad():
        for part, buffer in zip(_parts(tensors).values(), buffers):
            for tensor, piece in zip(part, buffer.split([tensor.numel() for tensor in part])):
                tensor.copy_(piece.view_as(tensor))


def as_arrays(buffers: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
    """Return the buffers for a sum over TCP.  NumPy has no bfloat16; its sums have twice the width."""
    wide = [buffer.to(torch.float32) if buffer.dtype is torch.bfloat16 else buffer for buffer in buffers]
    return [tensor.cpu().numpy() for tensor in wide]


def take_arrays(buffers: Sequence[torch.Tensor], arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Write the result of a sum over TCP into the buffers."""
    for buffer, array in zip(buffers, arrays):
        buffer.copy_(torch.from_numpy(np.array(array)))  # Received arrays are read-only.


class _Store(dist.Store):
    """A store in PyTorch's sense, over the members' own connections.  Keys of several backends differ by their prefix."""

    def __init__(self, exchange: Exchange, prefix: str) -> None:
        super().__init__()
        self._exchange, self._prefix = exchange, prefix

    def set(self, key: str, value: bytes | str) -> None:
        self._exchange.publish(self._prefix + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._exchange.get(self._prefix + key, _BUILD_S)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else _BUILD_S
        self._exchange.wait([self._prefix + key for key in keys], seconds)

    def check(self, keys: list[str]) -> bool:
        return self._exchange.has([self._prefix + key for key in keys])

    def has_extended_api(self) -> bool:
        return False
