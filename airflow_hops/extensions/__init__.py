"""Extensions for special needs. Each folder can be removed: the rest of the package does not import it."""
