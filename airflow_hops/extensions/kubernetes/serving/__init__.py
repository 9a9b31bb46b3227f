"""Events of KServe in the model server."""
