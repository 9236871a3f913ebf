"""Compares policies on the same workloads.

runs         runs scenarios, several at once
comparison   contenders over seeds;  report, page, plots: as documents
yardstick    Pollux's workloads as its own simulator runs them

`replay.simulator` has the contenders (`contenders`), what is measured of a run (`measures`), and its outcome as plain data
(`outcome`), because what-if and bisect use them as well.
"""
