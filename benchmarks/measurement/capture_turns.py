"""The bundled server, which captures in every other turn of half a second.

``python -m benchmarks.measurement.capture_turns FIGURES FLAGS…`` takes the flags of the server.

Two servers differ by several percent for where in memory their parts happen to lie, and a shared machine by more from
one second to the next. Here both ways are the same process, a moment apart. ``FIGURES`` is a file of JSON that tells,
for ``off`` and ``on``, requests, CPU seconds of this process, and seconds, since the start.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

_TURN_S = 0.5
_SETTLES_S = 0.1  # what was answered before is spooled


class Turns:
    """Switches capture, and counts.

    Args:
        figures: The file to keep.
    """

    def __init__(self, figures: Path) -> None:
        self._figures = figures
        self._requests = 0
        self._capture: Any = None
        self._found = {way: {"requests": 0, "cpu_s": 0.0, "seconds": 0.0} for way in ("off", "on")}

    def run_server(self) -> int:
        """Runs the server as its command line says; returns its exit status."""
        from airflow_hops.serving import __main__, endpoint
        from airflow_hops.serving.monitoring.stats import RequestStats

        make_capture, record = endpoint.Capture, RequestStats.record

        def count(stats: RequestStats, *given: Any) -> None:
            self._requests += 1
            record(stats, *given)

        def capture(options: Any) -> Any:
            self._capture = make_capture(options)
            threading.Thread(target=self._take_turns, daemon=True).start()
            return self._capture

        endpoint.Capture, RequestStats.record = capture, count  # type: ignore[misc, assignment, method-assign]
        return __main__.main()

    def _take_turns(self) -> None:
        while True:
            for way, found in self._found.items():
                self._capture.enabled = way == "on"
                time.sleep(_SETTLES_S)
                readings = self._requests, time.process_time(), time.perf_counter()
                time.sleep(_TURN_S)
                after = self._requests, time.process_time(), time.perf_counter()
                for name, start, end in zip(found, readings, after, strict=True):
                    found[name] += end - start
            staging = self._figures.with_suffix(".tmp")
            staging.write_text(json.dumps(self._found))
            staging.replace(self._figures)


if __name__ == "__main__":
    turns = Turns(Path(sys.argv.pop(1)))
    sys.exit(turns.run_server())
