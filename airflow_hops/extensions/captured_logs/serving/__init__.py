"""The format of models that only their endpoints have."""
