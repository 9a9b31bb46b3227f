"""Credentials do not get into what people see."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from airflow.sdk.log import mask_secret
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_hops.core import redaction
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.redaction import hide, masked, redacted
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.steps.protocol import StepSpec, format_record, parse_line
from airflow_hops.ml.__main__ import _explain, run_step
from airflow_hops.runner.runtime import RuntimeHook


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
        ("password=hunter2", "password=***"),
        ("PGPASSWORD=hunter2 psql -h x", "PGPASSWORD=*** psql -h x"),
        ("connects with password = hunter2, retries 3", "connects with password = ***, retries 3"),
        ("f(x=1, api_key=ab-c, y=2)", "f(x=1, api_key=***, y=2)"),
        ("host: db\npassword: hunter2\nuser: ann", "host: db\npassword: ***\nuser: ann"),
        ('{"password": 12345, "x": 1}', '{"password": ***, "x": 1}'),
        ("{'db': {'passwd': b'abc'}}", "{'db': {'passwd': b'***'}}"),
        ("run --api-key abc123 --epochs 3", "run --api-key *** --epochs 3"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic YTpi'}", "{'Authorization': 'Basic ***'}"),
        ("https://h/x?token=abc&key=d&y=2", "https://h/x?token=***&key=***&y=2"),
        ("db_pwd=x;Secret=y", "db_pwd=***;Secret=***"),
        (
            "--conf spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net=a+b/c==",
            "--conf spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net=***",
        ),
        ("signing_key=abc123 kms_key_id=k", "signing_key=*** kms_key_id=k"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
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
        "abfs://container@account.dfs.core.windows.net/x",
        "field 'password': expected text, found a number",
        "password: expected text; secret: none",
        "password=None, secret_key=null",
        "max_tokens=512, keys=3, tokenizer=bert, compass=north",
        "the secret is out; passwords expire",
        "sk-learn-gradient-boosting-classifier-of-delays, dapi, hf_hub, ghp_, eyJ",
    ],
)
def test_other_text_is_not_masked(text: str) -> None:
    assert redacted(text) == text


def test_step_lines_and_errors_have_no_credentials() -> None:
    text = "opens https://ann:abc123@host/x"
    for line in (text, format_record(text, level=logging.ERROR)):
        assert parse_line(line).text == "opens https://***@host/x"
    assert "abc123" not in redacted(_explain(OSError(text)))


def test_the_options_of_a_source_are_not_shown() -> None:
    value = {"url": "s3://bucket/x", "storage_options": {"key": "abc123"}}
    with pytest.raises(BadInput) as caught:
        Source.from_value("flights", value)
    assert "abc123" not in str(caught.value)
    assert "abc123" not in repr(Source("s3://bucket/x", storage_options={"key": "abc123"}))


def test_parameters_are_masked_by_name_in_nested_values_and_options() -> None:
    untouched = {
        "lr": 0.1,
        "pad_token": "<pad>",
        "max_tokens": 512,
        "secret": None,
        "use_password": True,
        "max_token": "512",
        "image_token": "<img>",
        "mask_tokens": ["[MASK]"],
    }
    values = {
        **untouched,
        "password": "hunter2",
        "db": {"Passwd": 12345, "token": "abc", "uri": "https://ann:PW@h/x?sig=abc&y=1"},
        "args": ["--api-key", "abc", "--password=abc", "-v", "epochs=3"],
        "authorization": "Basic abc",
        "credentials": {"any": "thing"},
        "passwords": ["a", "b"],
    }
    original = json.dumps(values)
    assert masked(values) == {
        **untouched,
        **dict.fromkeys(("password", "authorization", "credentials", "passwords"), "***"),
        "db": {"Passwd": "***", "token": "***", "uri": "https://***@h/x?sig=***&y=1"},
        "args": ["--api-key", "***", "--password=***", "-v", "epochs=3"],
    }
    assert json.dumps(values) == original


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "aB3" * 12,
        "github_pat_" + "aB3_" * 16,
        "glpat-" + "aB3-" * 5,
        "hf_" + "aBc" * 11,
        "sk-proj-" + "aB3_" * 6 + "aB3" * 8,
        "xoxb-1234567890-" + "aB3" * 5,
        "AIza" + "aB3-_" * 7,
        "dapi" + "0a" * 16,
        "AKIA" + "Z9" * 8,
        "eyJhbGciOi" + ".eyJzdWIiOi" + ".aB3-_aB3",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n",
    ],
)
def test_credentials_are_recognised_by_format(secret: str) -> None:
    params = {"env": {"LOGIN": secret, "EPOCHS": "3"}, "values": [f"--login={secret}"]}
    shown = json.dumps(masked(params)) + redacted(f"it logs in as {secret}") + redacted(json.dumps(params))
    assert secret.strip()[-20:] not in shown and "MIIB" not in shown and '"EPOCHS": "3"' in shown
    assert RuntimeHook().complete(StepSpec("train", "m:f", params=params)).secrets == ("env/LOGIN", "values/0")


def test_text_with_the_name_of_a_secret_is_masked() -> None:
    for name in ("DB_PASS", "smtp.pass", "SESSION_COOKIE"):
        assert masked({name: "hunter2", "compass": "north"}) == {name: "***", "compass": "north"}
        assert masked({name: 2}) == {name: 2}


def test_secret_is_found_in_other_parameters_too() -> None:
    params = {"env": {"DB_PASSWORD": "hunter22", "TARGET": "db;ann;hunter22", "NAME": "hunter"}, "values": ["hunter22"]}
    assert RuntimeHook().complete(StepSpec("train", "m:f", params=params)).secrets == (
        "env/DB_PASSWORD",
        "env/TARGET",
        "values/0",
    )


@given(
    st.sampled_from(["env", "params", "script_args"]),
    st.sampled_from(["API_TOKEN", "db_password", "accessKey", "client-secret", "HF_TOKEN"]),
    st.lists(st.text('ab1%/"\\é =:', min_size=5, max_size=12).map("x{}y".format), min_size=1, max_size=3),
    st.sampled_from(["{}", "it is {}!", "a{}b", '{{"x": "{}"}}', "https://h/{}/x"]),
)
@settings(max_examples=60)
def test_lines_of_user_code_have_no_secret_parameters(kind: str, name: str, lines: list[str], form: str) -> None:
    value = "\n".join(lines)
    params = {kind: [f"--{name}", value] if kind == "script_args" else {name: value}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_hidden", [])
        RuntimeHook().complete(StepSpec("train", "m:f", params=params))
        for line in lines:
            assert line not in parse_line(form.format(line)).text


def test_step_knows_its_secret_parameters() -> None:
    mask_secret("from-a-connection")
    params = {
        "lr": 0.1,
        "where": ["from-a-connection"],
        "env": {"API_TOKEN": "abcdef"},
        "uri": "https://h/x?sig=a1b2c3",
        "passwords": ["hunter2", "hunter3"],
    }
    services = {"serving_token": "served"}
    options = {"client_kwargs": [{"api_key": "of-storage"}], "credentials": {"any": "of-login"}}
    spec = RuntimeHook().complete(StepSpec("train", "m:f", params=params, services=services))
    assert spec.secrets == ("where/0", "env/API_TOKEN", "uri", "passwords")
    again = StepSpec.from_json(spec.to_json(), spec.variables())
    assert list(again.secret_values()) == ["from-a-connection", "abcdef", "hunter2", "hunter3", "served"]
    assert list(replace(again, storage_options=options).secret_values())[-3:] == ["of-storage", "of-login", "served"]
    assert again.params == params


def test_step_masks_its_secrets_in_all_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_hidden", [])
    spec = StepSpec("fails", "builtins:float", params={"x": "hunter2-x"}, secrets=("x",))
    assert "float() takes no keyword arguments" in str(run_step(spec).error)
    assert redacted("it was hunter2-x") == "it was ***"


def test_known_secrets_are_masked_in_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_hidden", [])
    hide(['s3"cr/t', "abc", 12345678])
    texts = json.dumps({"p": 's3"cr/t'}), 'it is s3"cr/t', "https://h/s3%22cr%2Ft", "abc 12345678"
    assert [redacted(text) for text in texts] == ['{"p": "***"}', "it is ***", "https://h/***", "abc 12345678"]
    assert masked({"p": 's3"cr/t'}) == {"p": "***"}
