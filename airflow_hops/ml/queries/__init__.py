"""Queries of the web pages to the ML side: rows of Parquet files, runs of MLflow, statistics and schemas.

A small HTTP server (``python -m airflow_hops.ml.queries``), which Airflow's API server starts when somebody
looks, answers *queries*: the functions in ``__all__`` of this package's modules, ``<module>/<function>``. A query is a
plain function ``(place, params)`` that returns a JSON value or bytes, and knows nothing of HTTP. It is called in a
thread, and imports what costs time when it is called. :class:`~airflow_hops.core.contract.artifacts.BadInput` says that
``params`` cannot be used; ``FileNotFoundError`` that something was deleted.
"""
