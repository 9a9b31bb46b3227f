"""The server's side: series of requests, and the log's newest lines."""
