"""The model server in front of other servers."""
