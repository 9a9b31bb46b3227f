"""An SSH server for tests, without root: it really runs the commands that clients send.

``python ssh_server.py <folder>`` makes ``host_key`` and ``client_key`` there, and writes ``port`` when it listens.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncssh

_LAST_WORDS_S = 0.1


async def run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Runs a client's command in a shell, as sshd does."""
    assert process.command is not None
    print("a greeting for all who log in", file=sys.stderr, flush=True)
    process.stdout.write(b"Welcome: what a login script prints\n")
    reading, writing = os.pipe()
    # Pipes of our own: asyncssh reads asyncio's streams twice at once when the client takes its time.
    output, error = os.pipe(), os.pipe()
    child = await asyncio.create_subprocess_shell(process.command, stdin=reading, stdout=output[1], stderr=error[1])
    os.close(output[1])
    os.close(error[1])
    await process.redirect(
        stdin=os.fdopen(writing, "wb"),
        stdout=os.fdopen(output[0], "rb"),
        stderr=os.fdopen(error[0], "rb"),
        send_eof=False,
    )
    code = await child.wait()
    await asyncio.sleep(_LAST_WORDS_S)
    process.exit(code)
    os.close(reading)  # only now: a client that still sends to a command that has failed is to be told its exit code


async def serve(folder: Path) -> None:
    """Serves until it is killed."""
    for name in ("host_key", "client_key", "other_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
        (folder / name).chmod(0o600)
    server = await asyncssh.listen(
        "0.0.0.0",
        0,
        server_host_keys=[folder / "host_key"],
        authorized_client_keys=str(folder / "client_key.pub"),
        process_factory=run_command,
        encoding=None,
    )
    port = server.sockets[0].getsockname()[1]
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"[{host}]:{port} {public}\n" for host in ("127.0.0.1", "127.0.0.2")))
    (folder / "config").write_text(
        f"UserKnownHostsFile {folder / 'known_hosts'}\nStrictHostKeyChecking yes\nIdentitiesOnly yes\n"
    )
    staging = folder / "port.staging"
    staging.write_text(str(port))
    staging.replace(folder / "port")
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
