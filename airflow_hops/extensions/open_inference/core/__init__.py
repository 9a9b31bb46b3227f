"""The kind of model servers that is MLServer, for both sides."""
