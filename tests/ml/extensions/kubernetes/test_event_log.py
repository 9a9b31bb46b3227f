"""Events of KServe's logger: what is acknowledged is in the log, and each request becomes rows once."""

from __future__ import annotations

import json
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, Start

from airflow_hops.extensions.kubernetes.serving.event_log import EventLog, event_of
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.routes import HttpRequest
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.extensions.captured_logs.logs import (
    TYPES,
    Ingests,
    own_rows,
    random_requests,
    sorted_rows,
    source_of,
    tensor,
)

pytestmark = pytest.mark.runtime


class TestContract(ServerPartContract):
    name = "kserve_events"

    @pytest.fixture
    def arguments(self) -> list[str]:
        return ["--kserve_events_path=/events"]


def events(requests: Any) -> list[tuple[dict[str, str], bytes]]:
    """Headers and body of both events of each request, as KServe's logger posts them."""
    results = []
    for each in requests:
        outputs = [tensor("probability", each.values("probability"))]
        answer = {"model_name": "mixed", "model_version": "3", "outputs": outputs}
        bodies = {"request": {"inputs": [tensor(name, each.values(name)) for name in TYPES]}, "response": answer}
        for kind, body in bodies.items():
            headers = {
                "Ce-Id": each.request_id, "Ce-Specversion": "1.0", "Ce-Source": "http://localhost:9081/",
                "Ce-Type": f"org.kubeflow.serving.inference.{kind}", "Ce-Time": each.time,
                "Ce-Inferenceservicename": "mixed", "Ce-Namespace": "models", "Ce-Endpoint": "",
                "Content-Type": "application/json",
            }  # fmt: skip
            results.append((headers, json.dumps(body).encode()))
    return results


def post(server: ServerProcess, headers: dict[str, str], body: bytes) -> bool:
    """Whether the server acknowledges an event."""
    try:
        return server.call("/v1/kserve/events", body, headers=headers) == (200, {"accepted": 1})
    except OSError:
        return False


@pytest.mark.server
def test_each_acknowledged_event_is_in_the_log_through_kills(
    start_server: Start, saved_models: Path, make_context: Any, tmp_path: Path
) -> None:
    folder, draw = tmp_path / "events", random.Random(70)
    server = start_server(model_name="flights", model_base_path=saved_models / "flights", kserve_events_path=folder)
    requests = random_requests(70, 300)
    waiting = events(requests)
    draw.shuffle(waiting)
    waiting += draw.sample(waiting, 60)  # some are delivered twice
    while waiting:
        if len(waiting) in (500, 300):
            threading.Timer(0.02, server.process.send_signal, [signal.SIGKILL]).start()
        refused = [each for each in waiting[:100] if not post(server, *each)]
        waiting = [*refused, *waiting[100:]]
        if server.process.poll() is not None:
            server.start().wait_until_ready()
    server.stop()
    rows, _ = Ingests(make_context, tmp_path)(source_of(folder, layout="kserve"))
    columns = ["request_id", "row", "output.probability", "input.text", "input.large"]
    assert [*sorted_rows([rows], columns)] == [*sorted_rows(own_rows(requests), columns)]


def test_event_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="the header ce-id is missing; expected a CloudEvent"):
        event_of(HttpRequest("POST", "/v1/kserve/events", b"{}"))
    headers = {f"Ce-{name}": "x" for name in ("Id", "Type", "Source", "Specversion")}
    for time in ("noon", "2026-03-01T10:00:00", ""):
        with pytest.raises(ServingError, match=f"the header ce-time is '{time}'; expected such as 2026-03-01T10:00"):
            event_of(HttpRequest("POST", "/v1/kserve/events", b"{}", {**headers, "Ce-Time": time}))
    event = event_of(
        HttpRequest("POST", "/v1/kserve/events", b"", {**headers, "Ce-Time": "2026-03-01T10:00:00.123456789Z"})
    )
    assert event["time"].endswith("789Z")
    with pytest.raises(SystemExit):
        parse_flags(["--model_base_path=/m", "--kserve_events_path=events"])


def test_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    import resource

    log = EventLog(tmp_path / "events")
    log.append({"id": "1"}, 0.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            log.append({"id": "x" * 200}, 0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append({"id": "3"}, 0.0)
    log.append({"id": "4"}, 3600.0)
    lines = {path.name[:13]: path.read_text() for path in (tmp_path / "events").iterdir()}
    assert lines == {"1970-01-01T00": '{"id": "1"}\n{"id": "3"}\n', "1970-01-01T01": '{"id": "4"}\n'}
