"""Everything that touches the outside: databases, processes, clocks, the command."""
