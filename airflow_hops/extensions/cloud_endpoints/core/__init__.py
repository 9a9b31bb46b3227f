"""The kinds of model servers that are endpoints of clouds, for both sides."""
