"""The policy `dorm-exact`: the goals solved one after the other as mixed-integer programs.

search   the policy: one goal at a time
model    the program that HiGHS solves
"""
