"""Tables in the runtime environment: reading and writing."""
