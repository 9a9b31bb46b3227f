"""The server's side: batches of requests, and their parameters."""
