"""Fixtures of hosts."""

from tests.extensions.ranks.ssh_servers import start_ssh_server  # noqa: F401
