"""
The databases: tables, connections, statements, migrations, clocks and what binds a ledger file to its machine.

``opening.open_database(url)`` is the entrance. Everything that differs between SQLite and PostgreSQL lives
in this package: a type or an expression in ``dialects``, a statement as a pair of files in ``sql/``, a connection's
settings in ``engines``, a driver's errors in ``errors``.
"""
