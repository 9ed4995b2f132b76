"""What people read, derived from facts only."""
