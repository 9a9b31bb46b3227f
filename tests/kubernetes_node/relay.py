"""Relays TCP connections between network namespaces: relay.py PID HOST PORT PID HOST PORT (listens, then connects).

Prints the port that it listens at. A PID is that of a process in the namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys


def enter(pid: str) -> None:
    """Moves this process to the network namespace of another."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if libc.setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), f"setns to the namespace of {pid}")
    os.close(descriptor)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction, and closes it."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def relay(server: socket.socket, host: str, port: int) -> None:
    """Connects each client of a listening socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            out_reader, out_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(pump(reader, out_writer), pump(out_reader, writer))
            out_writer.close()
        writer.close()

    await (await asyncio.start_server(serve, sock=server)).serve_forever()


if __name__ == "__main__":
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    listen_pid, host, port, connect_pid, to_host, to_port = sys.argv[1:]
    enter(listen_pid)
    server = socket.create_server((host, int(port)))
    print(server.getsockname()[1], flush=True)
    enter(connect_pid)
    asyncio.run(relay(server, to_host, int(to_port)))
