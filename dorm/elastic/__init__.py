"""Training that is resized while it runs: no sample is lost, and none is used twice.

    from dorm import elastic

    with elastic.join(state={"model": model, "optimizer": optimizer}) as job:
        for step in job.steps(data, batch=256, epochs=10):
            loss = train(step.indices)              # this member's samples of the step
            step.allreduce([loss, *gradients])      # in place: the means over the whole batch
            optimizer.step()
            step.report(loss=loss)

Members join and leave between two steps while the others train; one that dies is removed, and the step in flight is repeated.
The batch of a step is the same for any number of members, and each sample is used exactly once an epoch: a digest of all
samples used goes to the log at the end of each epoch, where anyone can check it.  Outside a cluster the same script runs
alone.

This follows Kaufmann et al., *Addressing Algorithmic Bottlenecks in Elastic Machine Learning with Chicle* (arXiv
1909.04885): one task per worker, data in chunks that move at iteration boundaries.

    job          the interface for scripts: join, steps;  step: one of them, and its sums
    chunks       which samples a step uses;  ownership: the owner of each chunk; ledger: the proof; summing: sums in fixed
                 order
    state        what is kept through resizes;  values: how it is sent;  checkpoints: how it outlives all members
    statistics   running statistics of BatchNorm layers, which are the same on all members
    arithmetic   how a member rounds, which its peers compare with their own rounding
    nested       lists and dictionaries of arrays, tensors and numbers, which a script sums
    protocol/    how members agree, without I/O
    network/     members over TCP
    collectives/ sums of tensors by process groups of PyTorch
    solvers/     algorithms that use all of a member's samples at once
    contract     environment, announcements, progress file
    errors       the errors that a script may see

A separate distribution, `dorm-elastic`: it needs only NumPy, and imports nothing else of this project.  It uses
PyTorch if a script has imported it.
"""

from __future__ import annotations

from dorm.elastic.errors import ContractError, ElasticError, LeftBehind, PeerError, StateError
from dorm.elastic.job import Job, Step, join

__all__ = ["ContractError", "ElasticError", "Job", "LeftBehind", "PeerError", "StateError", "Step", "join"]
