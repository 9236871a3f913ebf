"""Baseline policies for comparison.

static        fixed partitions, first come first served: the paper's baseline
app_level     offers by DRF, kept until the app ends, as in Mesos
task_level    slots for short tasks, as in Sparrow
tiresias      least attained service first, with preemption
optimus       each container goes where it shortens the remaining time most
packing       whole partitions on few nodes;  fixed_counts: counts that an operator fixes
"""
