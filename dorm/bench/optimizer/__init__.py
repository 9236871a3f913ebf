"""What a round of a policy costs, and how good its answers are.

optimizer   one size;  scale: every size;  plot: what both can draw
workload    sequences of allocation problems;  samples: what one process measures of them
judge       figures of an answer that use nothing of the optimizer's own
"""
