"""Sweeps on a cluster: their apps (`events.spec.sweeps`) are submitted and found together.

submitting   the apps of a sweep, many at once, each once.  Start here
finding      which sweep a name means
cancelling   all apps of a sweep that have not ended
limiting     how many of its apps run at once
"""
