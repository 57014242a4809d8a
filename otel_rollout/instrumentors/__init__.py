"""Instrumentors: each knows one library, and nothing else knows that library."""
