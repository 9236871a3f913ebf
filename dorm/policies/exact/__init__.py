"""The policy `dorm-exact`: the goals solved one after the other as mixed-integer programs.

A package of its own because `dorm` also uses the program and the search, for a few apps at a time.

exact_policy  the policy: which terms hold, and when to clear the way for an app that θ2 holds back
search        one goal at a time under given terms
model         the program that HiGHS solves
"""
