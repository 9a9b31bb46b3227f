"""A script that forgets its model."""

model = print("nothing to show")
