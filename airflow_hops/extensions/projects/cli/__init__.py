"""The command that writes a project, and the templates of its files."""
