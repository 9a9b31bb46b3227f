"""Gateway: models of upstream model servers."""
