"""What a model server captured: requests, and the labels that came later."""
