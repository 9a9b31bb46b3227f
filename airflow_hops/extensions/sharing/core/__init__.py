"""Data sets that organisations share: signed entries, trusted keys, and their records in the store."""
