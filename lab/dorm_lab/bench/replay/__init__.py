"""The cost of looking back: folds, states at a moment, audits, starts.

replay   the bench;  steps: its parts in separate processes

The log is of `dorm.bench.long_log`, the parts that need a NATS server are in `dorm.bench.log_server`.
"""
