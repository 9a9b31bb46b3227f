"""Fixtures of servers with a traffic file."""

from tests.ml.serving.test_traffic import server, traffic_file  # noqa: F401
