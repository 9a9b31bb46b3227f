"""Names of the hosts of a gang, good and bad."""

from __future__ import annotations

import re

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.ranks.ml.examine import describe_host
from airflow_hops.extensions.ranks.ml.remote import rendezvous_address
from airflow_hops.extensions.ranks.ml.ssh import SshRanks, SshSettings, parse_hosts
from airflow_hops.ml.training import collectives
from airflow_hops.ml.training.gang import Placement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hosts: found '' in '', expected 'name:slots'"),
        ("gpu-1", "hosts: found 'gpu-1'"),
        ("gpu-1:", "hosts: 'gpu-1' has '' slots"),
        ("gpu-1:0", "hosts: 'gpu-1' has '0' slots"),
        ("gpu-1:four", "hosts: 'gpu-1' has 'four' slots"),
        ("gpu-1:2,gpu-1:2", "hosts: 'gpu-1' occurs twice"),
        ("-oProxyCommand=x:1", "hosts: found '-oProxyCommand=x:1'"),
        ("a b:1", "hosts: found 'a b:1'"),
    ],
)
def test_invalid_hosts_are_reported(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(expected)}"):
        parse_hosts(text)


def test_only_jobs_can_be_sent_to_hosts() -> None:
    with pytest.raises(BadInput, match="cannot be sent to other hosts"):
        SshRanks(parse_hosts("gpu-1:1"), SshSettings()).start(
            [Placement(0, 1, 0, 1, "gpu-1")], lambda placement, channel: None, {}
        )


def test_nat_address_is_not_bound() -> None:
    assert rendezvous_address(["192.0.2.7"]) == "", "all of this machine's"


def test_error_for_a_host_without_horovod_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "has_horovod", lambda: False)
    with pytest.raises(BadInput, match="airflow hops runtime create --horovod"):
        describe_host(Placement(0, 1, 0, 1, "gpu-1"), None, folders={})  # type: ignore[arg-type]
