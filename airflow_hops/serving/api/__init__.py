"""How requests come in: gRPC, REST, and what both have in common."""
