"""A ledger of runs and attempts: append-only facts, and one fenced holder for what is dangerous."""
