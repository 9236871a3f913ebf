"""The hash chain over a log, and the seals that masters sign.

    hash_chain   one value for all records up to a sequence, which no other records have
    seals        what a master signs of the chain, and with which key

Imports the vocabulary and `events.log`.
"""
