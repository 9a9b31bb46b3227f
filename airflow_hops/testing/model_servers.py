"""Contract tests of kinds of model servers, for pytest in the runtime environment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.server_kinds import model_server_kinds
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.step.context import resolve

_NAME = "contract"


class ModelServerContract:
    """Tests that every kind passes; a subclass names the kind, writes a model, and starts a server.

    Attributes:
        kind: Name of the kind in the entry-point group ``airflow_hops.model_servers``.
        timeout_s: Seconds that the server may take to load or unload a version.
    """

    kind: ClassVar[str]
    timeout_s: ClassVar[float] = 60.0

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Writes a model of any format to a folder that does not exist yet."""

    @pytest.fixture
    def services(self) -> Mapping[str, str]:
        raise NotImplementedError("return the serving_* entries of the connection of a server that serves no model yet")

    @pytest.fixture
    def server(self, services: Mapping[str, str], tmp_path: Path) -> ModelServer:
        """Returns the control of the server, made as in a step."""
        return ModelServer.of({**services, "serving_kind": self.kind}, ArtifactStore(str(tmp_path / "store")))

    @pytest.fixture
    def published(self, server: ModelServer, tmp_path: Path) -> Iterator[ModelServer]:
        """Yields the server with versions 1 and 2 in their folders, of which none is served, and removes them."""
        self.write(tmp_path / "model")
        for version in (1, 2):
            assert server.publish(tmp_path / "model", _NAME, version, f"fingerprint {version}")
        yield server
        server.withdraw(_NAME)
        for version in (1, 2):
            server.folders.unpublish(_NAME, version)

    def test_control_is_that_of_the_kind(self, server: ModelServer) -> None:
        assert type(server) is resolve(model_server_kinds()[self.kind].control)
        assert server.splits_traffic or not model_server_kinds()[self.kind].is_bundled

    def test_knows_no_model_at_first(self, server: ModelServer) -> None:
        assert server.status(_NAME) == [] and server.configured(_NAME) == []
        server.withdraw(_NAME)

    def test_publishes_a_version_once(self, published: ModelServer, tmp_path: Path) -> None:
        assert not published.publish(tmp_path / "model", _NAME, 1, "fingerprint 1")
        with pytest.raises(BadInput, match="holds another model"):
            published.publish(tmp_path / "model", _NAME, 1, "fingerprint 2")

    def test_serves_champion_and_canary_and_withdraws_them(self, published: ModelServer) -> None:
        server = published
        for version, versions in ((1, [1]), (2, [1, 2])):
            server.serve(_NAME, versions)
            server.wait_until_available(_NAME, version, self.timeout_s)
            assert server.configured(_NAME) == versions
        server.set_labels(_NAME, {"stable": 1, "canary": 2})
        assert server.labels(_NAME) == {"stable": 1, "canary": 2}
        if server.splits_traffic:
            server.set_traffic(_NAME, {1: 75, 2: 25})
            assert server.shares.read(_NAME) == {1: 75, 2: 25}
            server.set_traffic(_NAME, {2: 100, 1: 0})
        else:
            with pytest.raises(BadInput):
                server.set_traffic(_NAME, {1: 75, 2: 25})
        assert server.shares.read(_NAME) == {2: 100}
        server.serve(_NAME, [2], {"stable": 2})
        assert server.wait_until_gone(_NAME, 1, self.timeout_s)
        assert server.configured(_NAME) == [2]
        server.withdraw(_NAME)
        assert server.wait_until_gone(_NAME, 2, self.timeout_s)
        assert server.configured(_NAME) == []

    def test_restores_what_was_served(self, published: ModelServer) -> None:
        nothing = published.serve(_NAME, [1])
        published.wait_until_available(_NAME, 1, self.timeout_s)
        restored = published.serve(_NAME, [1, 2])
        assert list(restored.model_version_policy.specific.versions) == [1]
        published.restore(_NAME, restored)
        assert published.configured(_NAME) == [1]
        published.restore(_NAME, nothing)
        assert published.configured(_NAME) == []
