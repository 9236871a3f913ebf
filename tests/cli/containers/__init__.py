"""Commands that enter containers."""
