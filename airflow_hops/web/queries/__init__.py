"""Servers of the runtime environment that read for the web API what needs ML libraries."""
