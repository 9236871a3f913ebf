"""Metrics in the format of Prometheus: figures of a cluster from its log, and of the processes that run it.

    families         every metric: name, type, labels and their allowed values, help
    tally            pure: counters and histograms, as an `Observer` of a fold
    cluster_metrics  pure: a state and a tally as metrics; `exposition` turns metrics into bytes.  Start here
    log_figures      folds the log for a tally, and keeps the tally across restarts
    server           `/metrics` over HTTP, with the metrics of a master, of agents, and of the process;  address: where

The pure modules import the core alone; the others know masters and agents, which know nothing of metrics.  An app's id is
never a label: the number of series does not grow with the number of apps.
"""
