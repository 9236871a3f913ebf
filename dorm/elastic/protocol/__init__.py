"""How members agree, without I/O: calls and messages in, messages and answers out.

    member     one member's state machine: the calls of its shell, and the part that handles each message
    known      the knowledge of one member, which the parts share
    sums       steps, contributions, results, and the ledger of samples
    changes    whether the view is due to change, and to what
    switching  boundaries between steps, newcomers, and the switch to the next view
    handover   which part of the state is sent to a newcomer
    recovery   what survivors do after a death
    views      members and owners of chunks, announcements, and the answers to the script
    messages   what members send each other

A *view* is a numbered list of members with the owner of each chunk.  Its lowest slot is the *leader*: it adds up what the
members contribute to a sum and sends all of them the result.  A sum completes only with the contributions of every member of
the view, so two groups can never both continue in one view.

Views change in two ways.  A **switch** follows an announcement, or moves chunks for balance.  Newcomers receive a first state
and warm up while the others train.  Then the leader marks a result with `barrier`: every member stops before the next step,
chunks and state move, and all continue together in the new view.  A **recovery** follows a death.  The survivors report their
positions to the lowest of them, which claims the right to continue, so that one of two halves that cannot hear each other
ends.  It brings the others up to the last result that any of them has, and gives the dead member's chunks to the rest.  If the
step in flight cannot complete, the survivors repeat all of it.

The parts call in one direction: `member` owns `sums`, `switching` and `recovery`; `recovery` calls `switching`; all of them
read and write `known`.  There are two callbacks to `member`, one for each way into a new view, because the consequences
concern all parts.

Start with `member`.  Imports NumPy, `errors`, `ledger`, `ownership` and `summing`.
"""
