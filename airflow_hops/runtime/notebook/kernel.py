"""The kernel of a notebook: IPython's, in the runtime environment. Jupyter starts it by its command line alone."""

from __future__ import annotations

from airflow_hops.runtime.notebook import session

if __name__ == "__main__":
    session.begin()
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance()
