"""Parts of nodes, derived from states."""
