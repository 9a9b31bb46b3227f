"""Models: versions, what serves, how it does, and decisions on it."""
