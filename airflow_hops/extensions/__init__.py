"""Extensions: what most users never touch. Each folder can be removed; the rest of the package does not know it."""
