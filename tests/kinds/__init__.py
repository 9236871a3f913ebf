"""Kinds of events: what each says about itself, and what follows from that.

    python -m tests.kinds.golden rewrite     record this build's digests (`golden.json`)

`oracle` keeps the tables that were written by hand before a kind was declared once; `golden.json` has digests of what was
made with them.  Both prove that nothing was lost.
"""
