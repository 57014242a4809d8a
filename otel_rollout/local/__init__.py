"""The local store: what was traced on this machine, read from the spool's files."""
