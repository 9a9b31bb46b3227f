"""Clients of a model server: so many connections, each asking again as soon as it is answered.

A process of its own, told what to do in lines of JSON, so that the clients' work is not the server's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Ask = Callable[[], Awaitable[None]]


class HttpConnection(asyncio.Protocol):
    """A kept-alive HTTP/1.1 connection that sends the same request; as little of a client as measures a server."""

    def __init__(self, path: str, host: str, body: bytes) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._received = bytearray()
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def ask(self) -> None:
        self._received.clear()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        await self._answered

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answered is None:
            return
        head = bytes(self._received[:end]).lower()
        if b"content-length:" in head:
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            whole = len(self._received) >= end + 4 + length
        else:
            whole = self._received.endswith(b"0\r\n\r\n")  # chunked
        if whole:
            if b" 200 " in head.partition(b"\r\n")[0] + b" ":
                self._answered.set_result(None)
            else:
                self._answered.set_exception(RuntimeError(bytes(self._received[:500]).decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("the server has closed the connection"))


async def _http(stack: AsyncExitStack, url: str, body: bytes) -> Ask:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(
        lambda: HttpConnection(parts.path, parts.netloc, body), parts.hostname, parts.port
    )
    stack.callback(transport.close)
    return connection.ask


async def _grpc(stack: AsyncExitStack, address: str, method: str, body: bytes) -> Ask:
    import grpc

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
    call = channel.unary_unary(method)

    async def ask() -> None:
        await call(body)

    return ask


async def load(order: dict[str, Any]) -> dict[str, Any]:
    """Carries out one order: ``address`` or ``url``, ``method``, ``body``, ``clients``, ``warm_up_s``, ``seconds``."""
    body = Path(order["body"]).read_bytes()
    latencies: list[float] = []
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        asks = [
            await (
                _http(stack, order["url"], body)
                if "url" in order
                else _grpc(stack, order["address"], order["method"], body)
            )
            for _ in range(order["clients"])
        ]
        began = time.perf_counter() + order["warm_up_s"]
        ends = began + order["seconds"]

        async def client(ask: Ask) -> None:
            while (asked := time.perf_counter()) < ends:
                try:
                    await ask()
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}"[:300])
                    if len(errors) > 20:
                        return
                    continue
                if asked >= began:
                    latencies.append(time.perf_counter() - asked)

        async def mark() -> None:
            await asyncio.sleep(order["warm_up_s"])
            print("began", flush=True)

        await asyncio.gather(mark(), *(client(ask) for ask in asks))
    latencies.sort()

    def percentile_ms(share: float) -> float:
        return 1000 * latencies[min(len(latencies) - 1, int(share * len(latencies)))] if latencies else float("nan")

    return {
        "requests": len(latencies),
        "rate": len(latencies) / order["seconds"],
        "p50_ms": percentile_ms(0.5),
        "p99_ms": percentile_ms(0.99),
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }


def main() -> None:
    """Carries out orders until standard input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
