"""The server's APIs: gRPC, REST, and what both have in common."""
