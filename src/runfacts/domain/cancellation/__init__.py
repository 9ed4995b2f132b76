"""Cancellation: who may stop a process next, what came of it, and what an operator must see (R6 to R9)."""
