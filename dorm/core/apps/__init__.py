"""Failures by place.

faults      whose fault a failure is: pairs of app and node that are avoided, and suspect nodes
"""
