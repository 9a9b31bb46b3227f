"""The contract between the Airflow side and the ML side, written once and typed. Standard library alone."""
