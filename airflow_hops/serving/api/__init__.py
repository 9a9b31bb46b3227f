"""The server's gRPC and REST APIs, and the code that both share."""
