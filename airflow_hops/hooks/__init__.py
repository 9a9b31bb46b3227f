"""Hooks: the connection type ``hops``, and clients of what it names."""
