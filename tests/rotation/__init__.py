"""Rotation of the log: its past in archives, its present in a stream."""
