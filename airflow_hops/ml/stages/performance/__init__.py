"""Performance of served versions, by labels that came later."""
