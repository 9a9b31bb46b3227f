"""Queries of the web pages to the ML side: rows of Parquet files, runs of MLflow, statistics and schemas.

A small HTTP server (``python -m airflow_hops.ml.queries``), which Airflow's API server starts on demand, answers
*queries*: the functions in ``__all__`` of this package's modules, ``<module>/<function>``. A query is a function
``(place, params)`` that returns a JSON value or bytes, and does not depend on HTTP. It runs in a thread, and imports
slow modules when it is called. :class:`~airflow_hops.core.contract.artifacts.BadInput` means that ``params`` are
invalid; ``FileNotFoundError`` that the object was deleted.
"""
