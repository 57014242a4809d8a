"""The viewer's web server, which also speaks Weave's protocol. Needs the extra ``[view]``."""
