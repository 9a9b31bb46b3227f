"""Feature views and their properties in the store, for both environments."""
