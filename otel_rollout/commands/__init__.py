"""Commands of ``otel-rollout`` that are more than a few lines."""
