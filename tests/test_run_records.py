"""The user code that is kept of a run, and how it is found again."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.steps.run_record import (
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    TRAIN_ENTRY,
    RunRecord,
    is_recorded,
    read_code,
    read_record,
    write_record,
)
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.run_records import without_secrets
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.user_code.fingerprints import user_code


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / "dags" / name).mkdir(parents=True)
        (tmp_path / "dags" / name / "train.py").write_text("print('one text')\n")
    (tmp_path / "beside.py").write_text("print('beside')\n")
    return tmp_path / "dags"


def kept(dags: Path, **params: str) -> RunRecord:
    """The record of a training, as it is read."""
    store = ArtifactStore(str(dags.parent / "store"))
    spec = StepSpec("train", TRAIN_ENTRY, params, producer=Producer("d", "r", "train"), code_paths=(str(dags),))
    code = user_code(spec)
    record = RunRecord("d", "train", TRAIN_ENTRY, params, {}, {}, "", "", {}, "", script=code.script, code_paths=1)
    key = f"{len(store.names(store.internal('_runs', 'd'))):064x}"
    write_record(store, key, record, code)
    result = read_record(store, "d", key)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("a/train.py", "0/a/train.py"),
        ("{dags}/b/train.py", "0/b/train.py"),
        ("../beside.py", "(script)/beside.py"),
        ("{dags}/../beside.py", "(script)/beside.py"),
    ],
)
def test_script_is_recorded_at_its_relative_path(dags: Path, script: str, path: str) -> None:
    kept(dags, script="a/train.py")  # whose text is the same
    record = kept(dags, script=script.format(dags=dags))
    assert record.script == path
    assert path in read_code(ArtifactStore(str(dags.parent / "store")), record)


@pytest.mark.parametrize(
    ("dag_id", "entry", "kind", "source", "recorded"),
    [
        ("d", "airflow_hops.ml.ingest:run", "snapshot", "", True),
        ("d", "airflow_hops.ml.step.function:run", "examples", "", True),
        ("d", "airflow_hops.ml.step.function:run", None, "import hops", True),
        ("d", "airflow_hops.ml.step.function:run", None, "import json", False),
        ("d", TRAIN_ENTRY, None, "", True),
        ("d", "airflow_hops.ml.deploy.stage:run", "deployment", "", False),
    ],
)
def test_every_step_of_a_pipeline_has_a_record(
    dag_id: str, entry: str, kind: str | None, source: str, recorded: bool
) -> None:
    output = Output("file:///store/d/r/t/k", kind) if kind else None
    producer = Producer(dag_id, "r", "t")
    spec = StepSpec("t", entry, {"source": source}, output=output, producer=producer, cache_key_parts={"code": "c"})
    assert is_recorded(spec) == recorded


def test_hyperparameter_secrets_are_not_recorded_but_code_is() -> None:
    source = "def train(context):\n    password = 'of code'\n"
    params = {
        "shipped": {"source": source},
        "params": {"lr": 0.1, "passwd": 12345, "pad_token": "<pad>", "max_tokens": 512},
        "script_args": ["--api-key", "abc", "secret=abc", "--epochs", "3"],
    }
    result, secrets = without_secrets(params)
    assert result["shipped"] == {"source": source}
    assert result["params"]["passwd"] is None
    assert result["params"]["max_tokens"] == 512
    assert result["script_args"] == ["--api-key", None, None, "--epochs", "3"]
    assert {"params/passwd", "script_args/1", "script_args/2"} <= set(secrets)


def test_spark_property_secrets_change_the_key_and_are_masked() -> None:
    def parts(key: str) -> dict[str, str]:
        conf = {"spark.sql.ansi.enabled": "true", "spark.hadoop.fs.s3a.secret.key": key}
        return SparkOperator(task_id="on_spark", conf=conf).step_cache_key_parts(RuntimeHook())

    one, other = parts("hunter2"), parts("hunter3")
    assert "hunter" not in str(one)
    assert one["conf"] == other["conf"]
    assert one != other
    assert parts("hunter2") == one


def test_source_credentials_are_named_not_recorded() -> None:
    options = {"account_key": "azurekey9999", "key": "AKIA123", "endpoint_url": "http://minio:9000", "anon": False}
    params = {
        "sources": {"a": {"uri": "s3://AKIAKEY:SuperSecretKey99@bucket/x", "storage_options": options}},
        "files": ["https://user:hunter2hunter2@host/x.csv", "https://host/x.csv?sig=abcdef12345", "https://tok@host/x"],
        "kept": [
            "abfss://box@hops.dfs.core.windows.net/x",
            "s3://bucket/part-?.csv",
            "hdfs://nn:8020/x",
            "a://b?c=d e",
        ],
    }
    result, secrets = without_secrets(params)
    source = {"uri": None, "storage_options": {**options, "account_key": None, "key": None}}
    assert result == {"sources": {"a": source}, "files": [None] * 3, "kept": params["kept"]}
    of_options = [f"sources/a/storage_options/{name}" for name in ("account_key", "key")]
    assert list(secrets) == ["sources/a/uri", *of_options, "files/0", "files/1", "files/2"]


def test_links_outside_the_code_are_named_not_recorded(dags: Path) -> None:
    (dags / "a" / "outside.txt").symlink_to(dags.parent / "beside.py")
    (dags / "a" / "inside.txt").symlink_to(dags / "b" / "train.py")
    (dags / "linked").symlink_to(dags.parent / "elsewhere")
    (dags.parent / "elsewhere").mkdir()
    (dags / "linked" / "model.py").write_text("import a.train\nfiles = ['a/inside.txt', 'a/outside.txt']\n")
    spec = StepSpec("train", TRAIN_ENTRY, {"train": "linked.model:train"}, code_paths=(str(dags),))
    code = user_code(spec)
    assert set(code.files) == {"0/a/inside.txt", "0/a/train.py", "0/linked/model.py"}
    assert list(code.left_out) == ["0/a/outside.txt"]


def test_archives_beyond_the_limits_are_refused(dags: Path) -> None:
    store, record = ArtifactStore(str(dags.parent / "store")), kept(dags, train="a.train:train")
    file = Path(store.internal("_runs", "d", "code").removeprefix("file://"), f"{record.code}.zip")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(MAX_CODE_FILES + 1):
            archive.writestr(str(number), b"")
    with pytest.raises(BadInput, match=r"it has 10,001 files, more than 10,000"):
        read_code(store, record)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", bytes(MAX_CODE_BYTES + 2))
    size = (MAX_CODE_BYTES + 2).to_bytes(4, "little")
    file.write_bytes(file.read_bytes().replace(size, (1).to_bytes(4, "little")))
    with pytest.raises(BadInput, match=r"the code of the run is damaged|is larger than"):
        read_code(store, record)


def test_damaged_code_is_refused(dags: Path) -> None:
    store, record = ArtifactStore(str(dags.parent / "store")), kept(dags, train="a.train:train")
    file = Path(store.internal("_runs", "d", "code").removeprefix("file://"), f"{record.code}.zip")
    good = file.read_bytes()
    for place in range(0, len(good), 3):
        file.write_bytes(good[:place] + bytes([good[place] ^ 0x5A]) + good[place + 1 :])
        try:
            assert read_code(store, record)  # what only an archive has, such as its date
        except BadInput as error:
            assert file.name in str(error)  # noqa: PT017
