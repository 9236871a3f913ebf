"""How members agree, without I/O: calls and messages in, messages and answers out.

    messages   what members send each other
    views      who trains, which member owns which chunk, and what has been announced
    member     one member's state machine: steps, sums, and the switch from one view to the next
    recovery   what survivors do after a death

A *view* is a numbered list of members with the owner of each chunk.  Its lowest slot is the *leader*: it adds up what the
members contribute to a sum and answers all of them.  A sum completes only with the contributions of every member of the
view, so no two groups can both go on in one view.

Views change in two ways.  A **switch** follows an announcement (or moves chunks for balance): the leader marks a result
with `barrier`, every member stops before the next step, chunks and state move, and all go on together in the new view;
newcomers have received a first state and warmed up before the leader asks for the barrier.  A **recovery** follows a death:
the survivors report where they are to the lowest of them, which claims the right to continue (so that of two halves that
cannot hear each other one ends), brings the others up to the last result that anybody has, and gives the dead member's
chunks to the rest.  If the step in flight is not complete by then, all of it comes again.

Start with `member`.  Imports NumPy, `errors`, `ledger`, `ownership` and `summing`.
"""
