"""Telemetry: the adapters of the port ``runfacts.domain.measures.Measures``."""
