"""Commands about the log's past."""
