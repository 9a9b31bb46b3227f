"""The report of a rehearsal."""
