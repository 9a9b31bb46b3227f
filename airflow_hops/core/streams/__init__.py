"""Kafka topics as sources: the Airflow side plans closed ranges of offsets, and the ML side reads them."""
