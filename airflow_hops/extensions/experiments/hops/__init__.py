"""The package ``hops`` for steps and notebooks: hops-util-py's functions, implemented with this package.

The extension's folder ``path_entry`` makes it importable as ``hops``. Signatures and results are those of
hops-util-py (https://github.com/logicalclocks/hops-util-py).
"""
