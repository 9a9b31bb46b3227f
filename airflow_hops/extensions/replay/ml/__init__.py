"""Back-tests in the runtime environment."""
