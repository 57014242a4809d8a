"""Trajectories in other people's back ends, received by their real servers: see `noxfile.py`."""
