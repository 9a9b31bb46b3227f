"""The kernel of a notebook: IPython's, in the runtime environment. Jupyter starts it by its command line alone."""

from __future__ import annotations

from typing import Any

from airflow_hops.runtime.notebook import session

if __name__ == "__main__":
    session.begin()
    from ipykernel.kernelapp import IPKernelApp

    class KernelApp(IPKernelApp):  # type: ignore[misc]
        """Drops no output that comes faster than it is read."""

        def init_iopub(self, context: Any) -> None:
            """Makes the socket of outputs."""
            context.sndhwm = 0  # messages; no limit
            super().init_iopub(context)

    KernelApp.launch_instance()
