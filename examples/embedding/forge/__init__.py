"""
Forge, a made-up CI system that embeds runfacts.

It lives on ``eventsourcing`` and SQLAlchemy, and keeps its own events and tables in the ledger's database.
"""
