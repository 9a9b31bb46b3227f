"""Records of served models."""
