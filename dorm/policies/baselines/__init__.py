"""Simple policies that people use, and what they share with those of the laboratory.

static        fixed partitions, first come first served: the paper's baseline
fifo          first come, first served, with everything that an app asks for
drf           weighted dominant resource fairness, container by container

packing       an answer under construction, on few nodes
elastic       from counts to partitions that change as little as possible
fixed_counts  counts that an operator fixes
"""
