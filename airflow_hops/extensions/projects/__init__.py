"""Projects: DAGs, functions and a test for a file, which ``airflow hops init`` writes."""
