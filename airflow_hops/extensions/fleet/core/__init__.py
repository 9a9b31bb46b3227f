"""What both sides of a fleet share: its files, its options and its records."""
