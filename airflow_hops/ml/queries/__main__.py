"""Serves queries on a free port of the loopback interface, until it is told to end or its starter is gone."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from aiohttp import web

from airflow_hops.core.contract.protocol import WORKER_VARIABLE
from airflow_hops.core.processes.lifetime import end_with
from airflow_hops.ml.queries.server import make_server

TOKEN_VARIABLE = "HOPS_QUERIES_TOKEN"


async def _serve(token: str) -> None:
    runner = web.AppRunner(make_server(token), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    print(f"Queries of {sys.prefix}: http://127.0.0.1:{port}", flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await runner.cleanup()


def main(arguments: list[str] | None = None) -> int:
    """Serves; the first line that it writes is its address. The token is read from the environment."""
    argparse.ArgumentParser(prog="python -m airflow_hops.ml.queries", description=__doc__).parse_args(arguments)
    end_with(os.environ.get(WORKER_VARIABLE, ""))
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_serve(os.environ.pop(TOKEN_VARIABLE)))
    os._exit(0)  # without waiting for what still computes


if __name__ == "__main__":
    sys.exit(main())
