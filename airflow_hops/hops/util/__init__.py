"""The package ``hops`` of steps and notebooks: hops-util-py's functions, by those of this package.

The folder ``airflow_hops/path_entry`` has the name ``hops`` for it. Signatures and results are those of hops-util-py
(https://github.com/logicalclocks/hops-util-py).
"""
