"""The typed contract between the Airflow side and the ML side. It uses only the standard library."""
