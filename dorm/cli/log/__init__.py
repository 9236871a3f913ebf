"""Commands that read the log as it grows, and check it."""
