"""The invariants: `checks` at each record and each change of a container, `ending` once everything has settled."""
