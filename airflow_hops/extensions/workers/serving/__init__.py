"""The supervisor of workers, and what each shares with the others."""
