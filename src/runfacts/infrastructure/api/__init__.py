"""The ledger's commands and reads, a group in each module; ``ledger.Ledger`` puts them together."""
