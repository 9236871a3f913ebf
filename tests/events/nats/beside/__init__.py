"""Streams beside the log, on which no decision depends."""
