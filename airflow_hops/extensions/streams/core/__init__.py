"""Topics, and their offsets by window, for both environments."""
