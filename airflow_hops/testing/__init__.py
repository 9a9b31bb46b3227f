"""Contract tests for implementations of other distributions: pytest classes that their authors subclass."""
