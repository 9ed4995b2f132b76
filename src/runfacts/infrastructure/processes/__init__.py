"""
The local executor: a real process under a ledger, on Linux (R10).

A host claims an Attempt, passes the start barrier, lets the launcher create a keeper with the command's process
behind a gate, records that process's handle, and only then opens the gate. The keeper outlives the host and leaves a
receipt with the exit code, so the outcome arrives even when nobody was there to see it.
"""
