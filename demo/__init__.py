"""The demo: the flights pipeline on real data, in a real Airflow, from ingest to a promoted retrained model."""
