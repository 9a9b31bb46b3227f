"""Fingerprints of the user code and the libraries that a step depends on."""
