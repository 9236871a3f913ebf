"""Sums of tensors by process groups of PyTorch: the data path next to the members' protocol, which remains the authority.

    messages     what members send each other to build groups, over their authenticated connections
    exchange     one group's rendezvous: what each member published
    groups       existing groups and those being built, in separate threads; start here
    path         how the tensors of one view are summed: by its group if all members have it, else over TCP
    pytorch      the groups themselves; the only module that imports PyTorch

A group is built among the members of the next view while the present one trains, so a switch only changes which one is used.
A sum by a group counts only once every member has confirmed it in a sum of the protocol (`path`).

This package may import the library's errors and messages, and PyTorch if a script has imported it already.
"""
