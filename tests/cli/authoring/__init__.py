"""Commands that write specs."""
