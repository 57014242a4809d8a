"""Real servers that tests and benchmarks write to and read from."""
