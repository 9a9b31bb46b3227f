"""Serves queries on a free port of the loopback interface until it is terminated or its parent process ends."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from aiohttp import web

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.protocol import WORKER_VARIABLE
from airflow_hops.core.processes.lifetime import end_with
from airflow_hops.ml.queries.place import Place

TOKEN_VARIABLE = "HOPS_QUERIES_TOKEN"
Query = Callable[[Place, Mapping[str, Any]], Any]
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REQUEST_BYTES = 8 << 20
_THREADS = 4
_NUMPY = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

log = logging.getLogger(__name__)


def _make_server(token: str) -> web.Application:
    """Makes the application; requests need the token, as every user of the machine reaches the loopback interface."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="query")

    async def answer(request: web.Request) -> web.Response:
        borne = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(borne.encode(), token.encode()):
            return _refused(401, "the token is not this server's")
        body = orjson.loads(await request.read())
        name = f"{request.match_info['subject']}/{request.match_info['query']}"
        status, content = await asyncio.get_running_loop().run_in_executor(threads, _call, name, body)
        return _refused(status, str(content)) if status != 200 else web.Response(body=content)

    app = web.Application(client_max_size=_REQUEST_BYTES)
    app.router.add_post("/{subject}/{query}", answer)
    return app


def _call(name: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    """Calls the query ``<module>/<function>``; returns the HTTP status, and the query's bytes or JSON, or the error."""
    try:
        value = _find_query(name)(Place(**body["place"]), body["params"])
        return 200, value if isinstance(value, bytes) else orjson.dumps(value, option=_NUMPY)
    except FileNotFoundError as error:
        return 410, f"{error.filename or error} was deleted"
    except BadInput as error:
        return 422, error
    except HopsError as error:
        return 502, error
    except Exception as error:
        log.exception("%s", name)
        return 500, f"{name}: {type(error).__name__}: {error}"


def _find_query(name: str) -> Query:
    subject, _, query = name.partition("/")
    if _NAME.fullmatch(subject) and _NAME.fullmatch(query):
        path = f"{__package__}.{subject}"
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
        else:
            if query in getattr(module, "__all__", ()):
                result: Query = getattr(module, query)
                return result
    raise BadInput(f"there is no query {name!r}; expected <module>/<function> of {__package__}")


def _refused(status: int, detail: str) -> web.Response:
    return web.Response(status=status, body=orjson.dumps({"detail": detail}), content_type="application/json")


async def _serve(token: str) -> None:
    runner = web.AppRunner(_make_server(token), access_log=None)
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
    """Serves; prints its address as the first line, and takes the token from the environment."""
    argparse.ArgumentParser(prog="python -m airflow_hops.ml.queries", description=__doc__).parse_args(arguments)
    end_with(os.environ.get(WORKER_VARIABLE, ""))
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_serve(os.environ.pop(TOKEN_VARIABLE)))
    os._exit(0)  # without waiting for running queries


if __name__ == "__main__":
    sys.exit(main())
