"""The command that adopts a model."""
