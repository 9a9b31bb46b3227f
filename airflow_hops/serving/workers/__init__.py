"""Several processes that answer requests at the same ports, for the cores that one interpreter leaves idle.

The server's first process keeps what there is one of: config, catalog, traffic, counts, logs; it never imports
TensorFlow. Each worker listens at the ports with ``SO_REUSEPORT``, has every version open, and answers with the parts
that a server of one process has. What is no inference a worker hands on to the first process. It starts at
:class:`airflow_hops.serving.workers.supervisor.Workers`.
"""
