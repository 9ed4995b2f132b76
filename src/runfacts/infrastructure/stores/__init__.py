"""Stores: what is read from and written to the tables, and nothing about why."""
