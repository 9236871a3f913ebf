"""Baseline policies for comparison.

static        fixed partitions, first come first served: the paper's baseline
app_level     offers by DRF, kept until the app ends, as in Mesos
task_level    slots for short tasks, as in Sparrow
tiresias      least attained service first, with preemption
optimus       each container goes where it shortens the remaining time most
fifo          first come, first served, with everything that an app asks for
srtf          shortest remaining time first, with preemption
drf           weighted dominant resource fairness, container by container
themis        finish-time fairness, by auctions among the apps that are worst off

packing       an answer under construction, on few nodes
preemptive    whole partitions in an order of precedence: of tiresias, srtf and `dorm.policies.gavel`
elastic       from counts to partitions that change as little as possible: of drf, themis and `dorm.policies.market`
fixed_counts  counts that an operator fixes;  speeds: how fast an app is, and what is left of its work
"""
