"""replay/simulator/workloads/traces: to be described."""
