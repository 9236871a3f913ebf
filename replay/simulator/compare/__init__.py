"""Compares policies on the same workloads.

contenders   the policies that are compared
runs         runs scenarios, several at once
measures     the outcome of a run;  holdings, finish_times: parts of that;  outcome: as plain data
comparison   contenders over seeds;  report, page, plots: as documents
yardstick    Pollux's workloads as its own simulator runs them
"""
