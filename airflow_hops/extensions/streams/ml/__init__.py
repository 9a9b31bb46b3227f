"""Messages of topics as rows."""
