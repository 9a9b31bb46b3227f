"""Names for user code in notebooks."""
