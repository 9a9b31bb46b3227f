"""Plans which part of a log an ingest reads."""
