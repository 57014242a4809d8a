"""Where spans go: Weave calls by way of the spool, and bounds for everybody else's exporters."""
