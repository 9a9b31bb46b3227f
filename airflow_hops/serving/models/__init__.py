"""Models: found on disk, loaded, called, unloaded."""
