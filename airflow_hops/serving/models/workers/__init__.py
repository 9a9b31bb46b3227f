"""Versions in worker processes: each available version is answered for by a pool of processes of its own.

They are forked from a process that has imported TensorFlow and done nothing else. The server's own process keeps ports,
catalog, split, counts and capture, and never imports TensorFlow. It starts at
:class:`airflow_hops.serving.models.workers.supervisor.WorkerSupervisor`.
"""
