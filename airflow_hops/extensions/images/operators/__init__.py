"""Operators that prepare and pack images."""
