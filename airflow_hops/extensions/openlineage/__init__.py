"""openlineage."""
