"""What looking back costs: folds, states at a moment, audits, starts.

replay   the bench;  steps: its parts in processes of their own;  server: those that need a NATS server
log      a history of any length
"""
