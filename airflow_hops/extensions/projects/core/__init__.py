"""Description of a file, from which a project is written."""
