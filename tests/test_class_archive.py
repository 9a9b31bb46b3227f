"""The archives of Spark's classes: made by rehearsals, used by local Spark steps, and never in the way."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.profiles import STAMP_NAME
from airflow_hops.runner.environments.class_archive import ARCHIVE, JVM_OPTIONS, jvm_options, make_archive
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.launchers.spark import SparkLauncher

pytestmark = pytest.mark.runtime


def test_jvm_uses_class_archives_of_the_set_up(runtime: Path) -> None:
    java = find_java(runtime)
    if java is None or java.version < 13:
        pytest.skip("dynamic class-data sharing needs Java 13")
    assert not make_archive(runtime), "the set-up makes it"
    assert (runtime / ARCHIVE).stat().st_size > 40 << 20
    options = jvm_options(runtime)
    assert f"-XX:SharedArchiveFile={runtime / ARCHIVE}" in options
    # A JVM of other classes passes over it, and says nothing.
    answer = subprocess.run([str(java.home / "bin" / "java"), *options, "-version"], capture_output=True, text=True)
    assert answer.returncode == 0
    assert "cds" not in answer.stdout + answer.stderr
    report = subprocess.run(
        [str(java.home / "bin" / "java"), *options, "-Xlog:cds=info", "-version"], capture_output=True
    )
    assert b"at an alternative address" not in report.stdout + report.stderr


def test_the_jvm_of_a_step_keeps_the_archive(runtime: Path, run_step: Any) -> None:
    launcher = SparkLauncher(runtime, "spark_default")
    mapped = run_step("protocol_steps:files_of_jvm", launcher=launcher, code_paths=(str(Path(__file__).parent),))
    assert str(runtime.resolve() / ARCHIVE) in mapped


def test_failed_class_archive_is_reported_once_and_skipped(runtime: Path, tmp_path: Path) -> None:
    shutil.copy(runtime / STAMP_NAME, tmp_path)
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    program.chmod(0o755)
    lines: list[str] = []
    assert make_archive(tmp_path, lines.append)
    assert "no such luck" in lines[1]
    assert not make_archive(tmp_path, lines.append), "it is tried once"
    assert jvm_options(tmp_path) == list(JVM_OPTIONS)
    assert len(lines) == 2
