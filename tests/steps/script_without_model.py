"""A script that forgets its model."""

print("nothing to show")
