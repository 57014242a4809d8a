"""Faults of rollout tracers that people have reported: each tried the whole way, and with OTLP."""
