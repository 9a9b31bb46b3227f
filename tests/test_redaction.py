"""Credentials do not get into what people see."""

from __future__ import annotations

import json
import logging

import pytest

from airflow_hops.contract.artifacts import BadInput, HopsError
from airflow_hops.contract.protocol import format_record, parse_line
from airflow_hops.contract.redaction import redacted
from airflow_hops.contract.sources import Source
from airflow_hops.runtime.__main__ import _explain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("store sftp://ann:p@ss@host/dag/task@3/kind: gone", "store sftp://***@host/dag/task@3/kind: gone"),
        ("s3://AKIA:ab/cd+e@bucket/x", "s3://***@bucket/x"),
        ("postgresql://u:pw@h/db, https://token@h/x", "postgresql://***@h/db, https://***@h/x"),
        ("https://h/x.csv?a=1&X-Amz-Signature=abc&b=2", "https://h/x.csv?a=1&X-Amz-Signature=***&b=2"),
        ("https://h/x.csv?sv=2020&sig=a%3D'", "https://h/x.csv?sv=2020&sig=***'"),
        ("AccountName=hops;AccountKey=a+b/c==;", "AccountName=hops;AccountKey=***;"),
        ("{'secret': 'abc', 'endpoint_url': 'http://x:1'}", "{'secret': '***', 'endpoint_url': 'http://x:1'}"),
        (json.dumps({"secret": 'a"b', "x": 1}), '{"secret": "***", "x": 1}'),
        (
            json.dumps(json.dumps({"account_key": "ab", "y": "1"})),
            json.dumps(json.dumps({"account_key": "***", "y": "1"})),
        ),
        ("S3FileSystem(aws_session_token='abc', anon=False)", "S3FileSystem(aws_session_token='***', anon=False)"),
        ('"serving_token": "abc"', '"serving_token": "***"'),
        ("{'serving_prediction_token': 'abc'}", "{'serving_prediction_token': '***'}"),
    ],
)
def test_what_is_secret_is_left_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert str(BadInput(text)) == str(HopsError(text)) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "hdfs://nn:8020/hops/dag/task@3/kind",
        "http://[::1]:8080/x@3",
        "file:///srv/a: b@c",
        "{'token': 'the', 'signature': 'serving_default', 'key': 'flight'}",
        "signature='serving_default' has 3 tokens; keys: 'a', 'b'",
        "ann@example.org: 12:30",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_steps_lines_and_errors_are_shown_without_credentials() -> None:
    said = "opens https://ann:abc123@host/x"
    for line in (said, format_record(said, level=logging.ERROR)):
        assert parse_line(line).text == "opens https://***@host/x"
    assert "abc123" not in redacted(_explain(OSError(said)))


def test_the_options_of_a_source_are_not_shown() -> None:
    value = {"url": "s3://bucket/x", "storage_options": {"key": "abc123"}}
    with pytest.raises(BadInput) as caught:
        Source.from_value("flights", value)
    assert "abc123" not in str(caught.value)
    assert "abc123" not in repr(Source("s3://bucket/x", storage_options={"key": "abc123"}))
