"""Shadow traffic by a server with several processes."""

from __future__ import annotations

from typing import Any

import pytest
from server_process import ServerProcess
from waiting import wait_for

from tests.ml.serving.test_workers import CONNECTIONS, each, predict, report, server  # noqa: F401


def test_shadow_traffic_of_all_workers_is_merged(server: ServerProcess) -> None:  # noqa: F811
    def shadow() -> dict[str, Any]:
        return server.get("/v1/models/flights:shadow")["versions"].get("1", {"requests": 0})

    server.post("/v1/models/flights:shadow", {"percents": {"1": 100}})
    each(lambda: predict(server))
    wait_for(lambda: shadow()["requests"] == CONNECTIONS, lambda: str(shadow()))
    for counts in each(shadow):
        assert counts["codes"] == {"OK": CONNECTIONS}
        score = counts["outputs"]["score"]
        assert (score["rows"], score["rows_differing"], score["max_difference"]) == (CONNECTIONS, CONNECTIONS, 1000.0)
        assert score["mean_difference"] == pytest.approx(1000.0)
    server.post("/v1/models/flights:shadow", {"percents": None})
    each(lambda: predict(server))
    report(server)
    assert shadow()["requests"] == CONNECTIONS
