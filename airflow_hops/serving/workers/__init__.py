"""Worker processes that answer requests at the same ports, since one interpreter does not use all cores.

Each worker is a server of its own, which listens at the ports with ``SO_REUSEPORT`` and reads the same config and
traffic file. The supervisor starts and replaces workers; it answers no requests, and never imports TensorFlow. What
workers know of each other is in files of :mod:`~airflow_hops.serving.workers.shared`.
"""
