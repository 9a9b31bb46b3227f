"""Steps: a step's entry, its context, and the process that it runs in."""
