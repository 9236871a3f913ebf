"""The cost of looking back: folds, states at a moment, audits, starts.

replay   the bench;  steps: its parts in separate processes

A package of its own because the parts run in processes of their own, whose memory is measured: they import no more.

The log is of `dorm.bench.long_log`, the parts that need a NATS server are in `dorm.bench.log_server`.
"""
