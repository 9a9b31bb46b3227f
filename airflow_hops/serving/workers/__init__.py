"""Worker processes that answer requests at the same ports, since one interpreter does not use all cores.

The server's first process holds the state that exists once: config, catalog, traffic, counts, logs; it never imports
TensorFlow. Each worker listens at the ports with ``SO_REUSEPORT``, opens every version, and answers requests as a
server with one process does. It forwards requests other than inference to the first process. The entry point is
:class:`airflow_hops.serving.workers.supervisor.Workers`.
"""
