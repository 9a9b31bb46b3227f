"""The server's side: listings of base paths in stores, and copies of versions."""
