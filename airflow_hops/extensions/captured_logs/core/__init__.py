"""The source of captured rows in a log, and its windows, for both environments."""
