"""Back-tests in the store, for both environments."""
