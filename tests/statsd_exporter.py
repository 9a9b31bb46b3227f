"""Serves StatsD's metrics to Prometheus, with the names of its ``statsd_exporter``, which Debian has not packaged."""

from __future__ import annotations

import re
import socket
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StatsdExporter:
    """Receives lines such as ``airflow.ti.finish,dag_id=flights,state=success:1|c`` until :meth:`stop`.

    Attributes:
        port: UDP port that takes the lines.
        target: Address of the metrics.
    """

    def __init__(self) -> None:
        self._samples: dict[str, float] = defaultdict(float)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                samples = sorted(exporter._samples.copy().items())
                self.wfile.write("".join(f"{name} {value!r}\n" for name, value in samples).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.target = f"127.0.0.1:{self._http.server_address[1]}/metrics"
        for serve in (self._receive, self._http.serve_forever):
            threading.Thread(target=serve, daemon=True).start()

    def _receive(self) -> None:
        while data := self._socket.recv(65536):
            for line in data.decode().splitlines():
                self._add(*line.rsplit(":", 1))

    def _add(self, name: str, measured: str) -> None:
        value, kind, *_ = measured.split("|")
        name, *tags = name.split(",")
        pairs = (tag.partition("=") for tag in tags)
        labels = ",".join(f'{_name(key)}="{text}"' for key, _, text in pairs)
        if kind == "ms":  # a summary, in seconds
            self._samples[f"{_name(name)}_sum{{{labels}}}"] += float(value) / 1000
            self._samples[f"{_name(name)}_count{{{labels}}}"] += 1
        elif kind == "c" or value[0] in "+-":
            self._samples[f"{_name(name)}{{{labels}}}"] += float(value)
        else:
            self._samples[f"{_name(name)}{{{labels}}}"] = float(value)

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._socket.close()


def _name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)
