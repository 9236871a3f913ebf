"""Commands that run a cluster, its nodes and its settings."""
