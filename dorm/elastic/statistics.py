"""The running statistics of normalization layers (BatchNorm and its kin), which a model changes in its forward pass.

Each member normalizes its own share, as data-parallel training in PyTorch does, so its running mean and variance are those
of its share.  They are part of the state, which is the same on every member: with the gradients of a step, the members also
average these statistics, weighted by samples.  A step that is repeated begins with those that it had begun with.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dorm.elastic.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Statistics"]


class Statistics:
    """The statistics of the layers in a script's state; none if it has no model of PyTorch."""

    def __init__(self, parts: Sequence[Any]) -> None:
        """Raises ContractError for layers that exchange statistics on their own."""
        torch = sys.modules.get("torch")
        self._layers: list[Any] = []
        self.batch_norm = False
        """Whether a layer normalizes over the samples of a share, which takes two at least."""
        if torch is None:
            return
        norms = torch.nn.modules.batchnorm
        for module in (module for part in parts if isinstance(part, torch.nn.Module) for module in part.modules()):
            if isinstance(module, torch.nn.SyncBatchNorm):
                text = (
                    "SyncBatchNorm exchanges statistics over a group of torch.distributed, whose members cannot change; "
                    "use BatchNorm, whose running statistics allreduce averages"
                )
                raise ContractError(text, code="elastic.contract.sync_batch_norm")
            if isinstance(module, norms._NormBase):
                self.batch_norm |= isinstance(module, norms._BatchNorm)
                if module.running_mean is not None:
                    self._layers.append(module)

    def averaged(self) -> list[Any]:
        """Return the tensors that the members average: those of layers in training."""
        layers = [layer for layer in self._layers if layer.training]
        return [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)]

    def kept(self) -> list[Any]:
        """Return a copy of all statistics."""
        return [tensor.detach().clone() for tensor in self._all()]

    def changed(self, kept: Sequence[Any]) -> bool:
        """Whether they have changed since that copy."""
        return not all(bool((tensor == before).all()) for tensor, before in zip(self._all(), kept))

    def restore(self, kept: Sequence[Any]) -> None:
        """Put that copy in place."""
        for tensor, before in zip(self._all(), kept):
            tensor.detach().copy_(before)

    def _all(self) -> list[Any]:
        tensors = [
            statistic
            for layer in self._layers
            for statistic in (layer.running_mean, layer.running_var, layer.num_batches_tracked)
        ]
        return [tensor for tensor in tensors if tensor is not None]
