"""Data-parallel training: common parts of the sample programs, except their models.

    model        the interface between a model and the loop;  softmax: classification, for two of them
    options      the command line that all programs share
    training     the loop: shard gradients, sum, update, report, save, stop
    tuned        the same loop with a batch size that may change at each step, and the gradient noise
    batches      which samples a step uses, and which worker computes which of its shards
    checkpoint   saving and resuming, atomically
    digits       the data;  heldout: the part kept for accuracy

Start with `training`.  Imports `compose.apps.ring` and `compose.apps.worker`.
"""
