"""Commands that people run in containers, and their ports."""
