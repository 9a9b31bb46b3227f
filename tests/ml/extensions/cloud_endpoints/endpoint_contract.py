"""Tests of every service's endpoints: canaries, and kills before and after each call that changes something."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_hops.extensions.cloud_endpoints.ml.server import EndpointServer

Connect = Callable[..., EndpointServer]


class Kill(BaseException):
    """The end of the process."""


class Killing:
    """The calls of a service, and the writes of a store, of which one is the last: before it is made, or after."""

    def __init__(self, server: EndpointServer, last: int, is_made: bool) -> None:
        self.left, self.is_made = last, is_made
        for name in ("_call", "_write"):
            setattr(server.shares, name, self.counted(getattr(server.shares, name)))

    def counted(self, function: Any) -> Any:
        def call(*arguments: Any, **fields: Any) -> Any:
            if str(arguments[0]).startswith(("describe", "GET")):
                return function(*arguments, **fields)
            self.left -= 1
            if self.left == 0 and not self.is_made:
                raise Kill
            try:
                return function(*arguments, **fields)
            finally:
                if self.left == 0:
                    raise Kill  # also after an answer that there is nothing of this name

        return call


def canary(server: EndpointServer, name: str) -> Iterator[Callable[[], None]]:
    """The steps from the first version to a promoted and another, rolled back canary; each may be repeated."""

    def deploy(version: int, versions: list[int]) -> None:
        server.serve(name, versions)
        server.wait_until_available(name, version, 60)

    def split(percents: dict[int, int]) -> None:
        if server.shares.read(name) != percents:
            server.set_traffic(name, percents)

    yield lambda: deploy(1, [1])
    yield lambda: deploy(2, [1, 2])
    yield lambda: split({1: 80, 2: 20})
    yield lambda: split({1: 50, 2: 50})
    yield lambda: split({2: 100})
    yield lambda: deploy(2, [2])
    yield lambda: deploy(3, [2, 3])
    yield lambda: split({2: 80, 3: 20})
    yield lambda: split({2: 100})
    yield lambda: deploy(2, [2])


SEEN = [
    {"v1": 100}, {"v1": 100, "v2": 0}, {"v1": 80, "v2": 20}, {"v1": 50, "v2": 50}, {"v1": 0, "v2": 100}, {"v2": 100},
    {"v2": 100, "v3": 0}, {"v2": 80, "v3": 20}, {"v2": 100, "v3": 0}, {"v2": 100},
]  # fmt: skip
"""Weights after each of these steps."""


def run_step(server: EndpointServer, model: str, number: int) -> None:
    [*canary(server, model)][number]()


def undeploy(server: EndpointServer, model: str) -> None:
    """Does what a step of undeployment does."""
    if server.configured(model):
        server.withdraw(model)


def killed_until_done(connect: Connect, step: Callable[[EndpointServer], None], is_made: bool) -> int:
    """Runs a step in processes of which each is killed one call later; returns how many were."""
    for last in range(1, 20):
        server = connect()
        killing = Killing(server, last, is_made)
        try:
            step(server)
        except Kill:
            continue
        assert killing.left > 0
        return last - 1
    raise AssertionError("the step does not end")


class EndpointContract:
    """Tests that the endpoints of every service pass; a subclass connects to one, and looks at it.

    Attributes:
        kills: Kills that there are at least in the test of each step, and of undeployments.
    """

    kills: tuple[int, int]

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError("return a function that connects as a new process does, quickly")

    @pytest.fixture
    def name(self) -> str:
        return f"flights-{uuid.uuid4().hex[:8]}"

    @abstractmethod
    def weights(self, service: Any, name: str) -> dict[str, float]:
        """Returns the weights of an endpoint as the service shows them."""

    @abstractmethod
    def left_behind(self, service: Any, name: str) -> list[str]:
        """Returns the names that begin with a name of all that the service keeps."""

    def test_canary_goes_to_100_and_another_is_rolled_back(self, connect: Connect, service: Any, name: str) -> None:
        server, seen = connect(), []
        for step in canary(server, name):
            step()
            shown = self.weights(service, name)
            assert server.shares.read(name) == {int(part[1:]): weight for part, weight in shown.items() if weight}
            seen.append(shown)
        assert seen == SEEN
        server.withdraw(name)
        assert server.status(name) == [] and server.configured(name) == []

    def test_kill_at_each_point_leaves_shares_and_record_in_agreement(
        self, connect: Connect, service: Any, name: str
    ) -> None:
        kills = 0
        for is_made in (False, True):
            model = f"{name}-{is_made}"
            for number, expected in enumerate(SEEN):
                kills += killed_until_done(connect, lambda server: run_step(server, model, number), is_made)  # noqa: B023
                fresh = connect()
                assert self.weights(service, model) == expected
                assert fresh.shares.read(model) == {int(part[1:]): w for part, w in expected.items() if w}
                assert fresh.configured(model) == [int(part[1:]) for part in expected]
        assert kills > self.kills[0]

    @pytest.mark.parametrize("is_made", [False, True])
    def test_undeployment_after_and_through_kills_leaves_nothing(
        self, connect: Connect, service: Any, name: str, is_made: bool
    ) -> None:
        kills = 0
        for number in (0, 1, 2, 5):  # of the step that is killed at its n-th call, and not run again
            for last in range(1, 10):
                model = f"{name}-{number}-{last}"
                for step in [*canary(connect(), model)][:number]:
                    step()
                server = connect()
                Killing(server, last, is_made)
                try:
                    run_step(server, model, number)
                except Kill:
                    kills += killed_until_done(connect, lambda server: undeploy(server, model), is_made)  # noqa: B023
                    assert self.left_behind(service, model) == []
                else:
                    undeploy(connect(), model)
                    assert self.left_behind(service, model) == []
                    break
        assert kills > self.kills[1]
