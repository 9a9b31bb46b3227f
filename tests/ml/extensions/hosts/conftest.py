"""Fixtures of hosts."""

from tests.extensions.hosts.ssh_servers import start_ssh_server  # noqa: F401
from tests.ml.gang.conftest import rank_code  # noqa: F401
