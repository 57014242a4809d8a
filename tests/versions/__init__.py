"""What has to hold with every version of the libraries beside us: see `noxfile.py`."""
