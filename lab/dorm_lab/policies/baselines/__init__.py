"""Policies from the literature, each in one module.

app_level     offers by DRF, kept until the app ends, as in Mesos
task_level    slots for short tasks, as in Sparrow
tiresias      least attained service first, with preemption
optimus       each container goes where it shortens the remaining time most
srtf          shortest remaining time first, with preemption
themis        finish-time fairness, by auctions among the apps that are worst off

preemptive    whole partitions in an order of precedence: of tiresias, srtf and `dorm_lab.policies.gavel`
speeds        how fast an app is, and what is left of its work
"""
