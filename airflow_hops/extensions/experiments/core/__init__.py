"""Studies in the store, and options of a search, for both environments."""
