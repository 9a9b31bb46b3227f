"""Kernel of a notebook: IPython's, in the runtime environment; Jupyter starts it by its command line."""

from __future__ import annotations

from typing import Any

from airflow_hops.extensions.notebooks.ml import session

if __name__ == "__main__":
    session.begin()
    from ipykernel.kernelapp import IPKernelApp
    from ipykernel.zmqshell import ZMQExitAutocall

    class Exit(ZMQExitAutocall):
        """Ends the notebook, as ``sys.exit`` does; IPython's own would let the cells that follow run."""

        def __call__(self, code: object = None) -> None:
            """Raises ``SystemExit``."""
            raise SystemExit(code)

    class KernelApp(IPKernelApp):
        """Keeps outputs that arrive faster than they are read, and lets ``exit()`` end the notebook."""

        def init_shell(self) -> None:
            """Makes the shell, with ``exit`` and ``quit``."""
            super().init_shell()
            self.shell.user_ns.update(exit=Exit(self.shell), quit=Exit(self.shell))

        def init_iopub(self, context: Any) -> None:
            """Makes the socket of outputs."""
            context.sndhwm = 0  # messages; no limit
            super().init_iopub(context)

    KernelApp.launch_instance()
