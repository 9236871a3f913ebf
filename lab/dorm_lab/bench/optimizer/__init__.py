"""The cost of a policy's round, and the quality of its answers.

optimizer   one size;  scale: every size;  plot: plots of both
workload    sequences of allocation problems;  samples: what one process measures of them
typed       the same with types of nodes, and speeds that are declared or measured
judge       figures of an answer that use nothing of the optimizer's own
"""
