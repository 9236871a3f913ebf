"""Sums of tensors by process groups of PyTorch: the data path beside the members' protocol, which stays the authority.

    messages     what members send each other to build groups, over their authenticated connections
    exchange     one group's rendezvous: what each member published
    groups       which groups exist and which are being built, in threads of their own; start here
    path         how the tensors of one view are summed: by its group where all members have it, else over TCP
    pytorch      the groups themselves; the only module that imports PyTorch

A group is built among the members of the next view while the present one trains, so a switch only changes which one is used.
A sum by a group counts only once every member has confirmed it in a sum of the protocol (`path`).

This package may import the library's errors and messages, and PyTorch where a script has imported it already.
"""
