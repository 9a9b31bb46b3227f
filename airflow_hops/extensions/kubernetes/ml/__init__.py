"""KServe's inference services."""
