"""Streams of server-sent events: complete, and soon."""
