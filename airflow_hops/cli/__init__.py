"""``airflow hops``: the command line."""
