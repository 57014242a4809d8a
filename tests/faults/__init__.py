"""What is left of a rollout's spans when processes die and the server fails: see `matrix.py`."""
