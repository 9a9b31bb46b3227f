"""Profiles of the runtime environment: which one a machine gets, and what happens where two of them meet."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin
from world import write_artifact

from airflow_hops.cli.doctor import check_profile
from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, PROFILE_NAMES, Artifact, Manifest, Producer
from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.core.profiles import BASE, BASE_NAME, CURRENT, PROFILES, Profile, profile_named, profile_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.newer_profile import written_by_newer
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.environments.named import named_state
from airflow_hops.runner.environments.runtime import (
    create_environment,
    fingerprint,
    machine_profile,
    old_compiler,
    pins_file,
    pins_of,
    write_stamp,
)


def made_of(profile: Profile, folder: Path) -> Path:
    """Returns a folder that passes for an environment of a profile."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "pyvenv.cfg").write_text("version_info = 3.99\n")
    pins = pins_file(profile.pins)
    write_stamp(folder, pins, fingerprint(pins))
    return folder


@pytest.fixture
def old_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))


@pytest.fixture
def new_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.41"))


@pytest.mark.parametrize(
    ("libc", "profile"),
    [
        (("glibc", "2.36"), BASE),
        (("glibc", "2.38"), BASE),
        (("glibc", "2.39"), CURRENT),
        (("glibc", "3.0"), CURRENT),
        (("", ""), BASE),
    ],
)
def test_c_library_selects_the_profile(
    libc: tuple[str, str], profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert machine_profile() is profile
    assert pins_file().name == profile.pins


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_states_the_versions_of_its_pins(profile: Profile) -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", pins_file(profile.pins).read_text(), re.MULTILINE))
    versions = {"tensorflow": profile.tensorflow, "pyspark": profile.spark, "protobuf": profile.protobuf}
    assert [name for name, version in versions.items() if not pins[name].startswith(f"{version}.")] == []
    assert pins_file(profile.cuda_pins).read_text().startswith(f"-r {profile.pins}\n")
    assert ("pyarrow-hotfix" in pins) == (profile is BASE)


def test_unsupported_profile_is_refused_before_creation(old_machine: None, tmp_path: Path) -> None:
    message = r"profile 'current': .* need glibc 2\.39 or newer, .* this machine has glibc 2\.36: use --profile base"
    with pytest.raises(BadInput, match=message):
        create_environment(tmp_path / "runtime", pins_file(CURRENT.pins), uv=find_uv_bin())
    assert not (tmp_path / "runtime").exists()
    check = check_profile(made_of(CURRENT, tmp_path / "copied"))
    assert check.status == "fail" and re.search(message, check.found)
    assert check.advice == f"airflow hops runtime create --force --profile base {tmp_path / 'copied'}"


def test_environment_keeps_its_profile_on_another_machine(new_machine: None, tmp_path: Path) -> None:
    folder = made_of(BASE, tmp_path / "runtime")
    assert profile_of(folder) is BASE and pins_of(folder).name == BASE.pins
    check = check_profile(folder)
    assert check.found == "base; this machine's is current, because glibc 2.41 is at least 2.39"
    assert (check.status, check.advice.split()[-1]) == ("ok", str(folder))
    assert check_profile(made_of(CURRENT, tmp_path / "new")).advice == ""


def test_foreign_environment_has_the_profile_of_its_python(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.13.5\n")
    assert profile_of(tmp_path) is None, "Airflow's has one of these Pythons, too"
    (tmp_path / "lib/python3.13/site-packages/tensorflow_data_validation").mkdir(parents=True)
    assert profile_of(tmp_path) is CURRENT


def test_each_profile_has_its_java_versions(tmp_path: Path) -> None:
    for version in (8, 11, 17, 21, 24):
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch()
        (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
        supported = []
        for profile in PROFILES:
            folder = tmp_path / f"{profile.name}-{version}"
            java = find_java(made_of(profile, folder), {"JAVA_HOME": str(home), "PATH": ""})
            assert java is not None
            supported.append(java.supported)
        assert supported == [version in (8, 11, 17), version in (17, 21)]


def test_an_old_compiler_is_named(tmp_path: Path) -> None:
    old = tmp_path / "g++-8"
    old.write_text('#!/bin/sh\ncase "$*" in *c++20*) exit 1; esac\n')
    old.chmod(0o755)
    message = old_compiler(CURRENT, {"CXX": str(old)})
    assert message is not None and "does not compile C++20, which Horovod needs with TensorFlow 2.21" in message
    assert old_compiler(BASE, {"CXX": str(old)}) is None and old_compiler(CURRENT, {}) is None


def test_a_named_environment_of_the_other_profile_is_named(tmp_path: Path) -> None:
    base = made_of(CURRENT, tmp_path / "runtime")
    named = made_of(BASE, tmp_path / "runtime-churn")
    (named / BASE_NAME).write_text(f"{base}\n")
    state = named_state(named)
    assert state.name == "stale"
    assert state.detail == f"{named} is of the profile 'base', its base {base} of 'current'"


def written_under(profile: Profile, store: ArtifactStore) -> Artifact:
    """Returns an artifact with an empty file, as an environment of the profile would write it."""
    artifact = write_artifact(store, "statistics", {"empty": ""})
    file = store.local(artifact) / MANIFEST_NAME
    file.write_text(json.dumps({**json.loads(file.read_text()), "profile": profile.name}))
    return artifact


@pytest.mark.runtime
def test_a_failure_names_the_newer_profile_of_an_input(
    run_step: Any, warm_launcher: Any, store: ArtifactStore, runtime: Path
) -> None:
    artifact = written_under(CURRENT, store)
    with pytest.raises(StepFailed) as failed:
        run_step(
            "airflow_hops.ml.schema.stage:run", kind="schema", inputs={"statistics": artifact}, launcher=warm_launcher
        )
    named = f"{artifact.uri} was written under the profile 'current', and the runtime environment here is of 'base'"
    assert (named in str(failed.value)) == (profile_of(runtime) is BASE)
    assert written_by_newer(store, [artifact.uri], BASE).startswith(f"\n{named}: if that is the reason, use one")
    assert written_by_newer(store, [artifact.uri, "file:///nowhere"], CURRENT) == ""


def test_an_artifact_of_a_newer_profile_is_refused_by_name() -> None:
    manifest = Manifest("model", Producer(), {}, (), "2026-11-25T00:00:00+00:00", profile="current")
    assert Manifest.from_json(manifest.to_json(), "m").profile == "current"
    newer = json.dumps({**json.loads(manifest.to_json()), "profile": "next"})
    message = "m: written by the profile 'next' of the runtime environment, this version has base and current; upgrade"
    with pytest.raises(BadInput, match=message):
        Manifest.from_json(newer, "m")
    with pytest.raises(BadInput, match="profile 'next': expected 'base' or 'current'; if a newer airflow-hops has it"):
        profile_named("next")
    assert tuple(profile.name for profile in PROFILES) == PROFILE_NAMES
