"""Sources of raw data, and their files."""
