"""The simulator: runs, workloads, comparisons, what-if."""
