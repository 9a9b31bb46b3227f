"""Models: versions, serving, performance, and decisions."""
