"""A part of the model server that runs it as several processes."""

from __future__ import annotations

from airflow_hops.extensions.workers.serving.flags import WorkerFlags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.parts import ServerPart


class Workers(ServerPart):
    """Runs the server as ``--workers`` processes."""

    flags = WorkerFlags

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        workers = flags.of(WorkerFlags).workers
        if workers > 1 and flags.models_flag:
            return f"--workers={workers} and --{flags.models_flag} are both given; start several servers"
        if workers > 1 and flags.grpc_socket_path:
            return f"--workers={workers} and --grpc_socket_path are both given; workers cannot share a UNIX socket"
        return ""

    def run(self, flags: Flags) -> int | None:
        """Runs the supervisor, if there are several workers."""
        if flags.of(WorkerFlags).workers == 1:
            return None
        from airflow_hops.extensions.workers.serving.supervisor import Supervisor

        return Supervisor(flags).run()
