"""Readers' places in the log that the server keeps: durable consumers.

deliveries  one place, and the records that come from it; start here
named       all places of a cluster's log
"""
