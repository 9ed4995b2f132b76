"""
The bench: how fast the ledger is, in proportion to what it stands beside.

Absolute figures say more about a disk and a processor than about a program, and both change their speed while one
looks. So every figure here has an opponent that ran in the same processes, in turns with it, a fraction of a second
each: hand-written SQL that writes the same rows, and the recorders that the ``eventsourcing`` package brings. What is
compared is the ratio within one round of turns; its median and its spread over the rounds are reported.

Not part of what is shipped. ``docs/performance.md`` says what each figure means.
"""
