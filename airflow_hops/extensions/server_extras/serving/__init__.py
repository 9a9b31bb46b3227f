"""The part of the model server, with the supervisor of its workers and what each shares with the others."""
