"""Policies beside each other.

contenders   who is compared
runs         running scenarios, several at once
measures     what a run comes to;  holdings, finish_times: parts of that;  outcome: as plain data
comparison   contenders over seeds;  report, page, plots: as documents
yardstick    Pollux's workloads as its own simulator runs them
"""
