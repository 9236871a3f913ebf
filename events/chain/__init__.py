"""The hash chain over a log, and the seals that masters sign.

    hash_chain   one value that identifies all records up to a sequence
    seals        what a master signs of the chain, and with which key
    rounds       the signature of a single round
    cuts         the signature of a statement that the past lies in an archive

Imports the vocabulary and `events.log`.
"""
