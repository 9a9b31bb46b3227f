"""The command that rehearses a monitor."""
