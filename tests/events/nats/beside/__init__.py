"""Streams beside the log: what is not decided by."""
