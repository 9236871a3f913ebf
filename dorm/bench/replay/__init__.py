"""The cost of looking back: folds, states at a moment, audits, starts.

replay   the bench;  steps: its parts in separate processes;  server: those that need a NATS server
log      a history of any length
"""
