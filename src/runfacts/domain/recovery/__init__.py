"""Recovery: what can be proven about a process whose host is gone (R11, R12)."""
