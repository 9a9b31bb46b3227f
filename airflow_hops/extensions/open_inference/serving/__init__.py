"""The protocol as a part of the model server."""
