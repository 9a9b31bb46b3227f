"""A step: its entry, its context, the process that it runs in."""
