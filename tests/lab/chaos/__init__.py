"""Real faults on three machines in network namespaces: `make chaos`."""
