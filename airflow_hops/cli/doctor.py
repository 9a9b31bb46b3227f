"""``airflow hops doctor``: checks the installation and suggests fixes."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from airflow_hops.airflow_internals.cli import (
    AirflowConsole,
    ProvidersManager,
    plugins_manager,
    suppress_logs_and_warning,
)
from airflow_hops.cli.check import Check, check_cluster, probe_step
from airflow_hops.core.errors import BadInput, HopsError, StoreAway
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.profiles import BASE, Profile, base_of, profile_of
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.training.options import HOROVOD_MISSING
from airflow_hops.hooks.hops import HopsHook
from airflow_hops.runner.connections import SPARK_CONN_ID, find_connection
from airflow_hops.runner.environments.cuda import cuda_of
from airflow_hops.runner.environments.java import find_java, supported_javas
from airflow_hops.runner.environments.named import installed_packages, list_named
from airflow_hops.runner.environments.runtime import (
    AIRFLOW_PYTHON_VERSIONS,
    check_machine,
    environment_state,
    machine_profile,
    pins_fingerprint,
    pins_of,
    reason_for_profile,
)
from airflow_hops.runner.launchers.local import step_variables
from airflow_hops.runner.launchers.spark import THIS_MACHINE
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.settings import Settings

TESTED_AIRFLOW = ("3.3", "3.4")
_PROBE_TIMEOUT_S = 900  # imports take ten seconds of a core, of which a busy machine gives little
_PATIENCE = timedelta(minutes=2)
"""Time in which a triggerer that runs takes a trigger."""


def run_checks(hops_conn_id: str) -> Iterator[Check]:
    """Runs all checks, in the order in which problems should be fixed."""
    yield check_python()
    yield check_airflow()
    yield check_provider()
    yield check_plugin()
    yield from check_triggerers()
    try:
        hook = HopsHook(hops_conn_id)
        settings = hook.settings
    except Exception as error:
        advice = f"airflow connections add {hops_conn_id} --conn-type hops, or use --hops-conn-id to check another one"
        yield Check(f"connection {hops_conn_id}", "fail", f"{type(error).__name__}: {error}", advice)
        return
    yield Check(f"connection {hops_conn_id}", "ok", f"store {settings.store}, from {settings.source}")
    yield check_store(hook)
    yield check_spark_connection(settings.spark_conn_id)
    base = base_of(settings.runtime)
    if settings.launcher in ("", "local"):
        yield check_java(base, settings.spark_conn_id)
        runtime = check_runtime(base)
        yield runtime
        yield check_profile(base)
        yield from check_named(base)
        if runtime.status != "fail":
            yield from check_libraries(settings.runtime)
            yield from check_cluster(RuntimeHook(hops_conn_id))
    else:
        yield Check("runtime environment", "ok", f"not needed here: the launcher {settings.launcher!r} runs the steps")
        yield from check_step(hook)
        yield from check_cluster(RuntimeHook(hops_conn_id))  # its driver runs here with each launcher
    yield from check_serving(settings)


def check_python() -> Check:
    """Checks the version of Python."""
    result = f"{sys.version.split()[0]} at {sys.executable}"
    good = sys.version_info[:2] in AIRFLOW_PYTHON_VERSIONS
    tested = ", ".join(f"{major}.{minor}" for major, minor in AIRFLOW_PYTHON_VERSIONS)
    return Check("Python", "ok" if good else "warn", result, "" if good else f"this package is tested on {tested}")


def check_airflow() -> Check:
    """Checks the version of Airflow."""
    version = metadata.version("apache-airflow-core")
    good = version.startswith(tuple(f"{tested}." for tested in TESTED_AIRFLOW))
    tested = " and ".join(TESTED_AIRFLOW)
    return Check("Airflow", "ok" if good else "warn", version, "" if good else f"this package is tested on {tested}")


def check_provider() -> Check:
    """Checks whether Airflow has found the provider, its connection type and its decorator."""
    manager = ProvidersManager()
    provider = manager.providers.get("airflow-hops")
    advice = "install the package into the environment that runs Airflow: pip install airflow-hops"
    if provider is None:
        return Check("provider", "fail", "Airflow does not know airflow-hops", advice)
    missing = [] if manager.hooks.get("hops") else ["connection type hops"]
    try:
        manager.taskflow_decorators["hops"]
    except (KeyError, ImportError) as error:
        missing.append(f"@task.hops ({error})")
    if missing:
        return Check("provider", "fail", f"{provider.version}, without {' and '.join(missing)}", advice)
    return Check("provider", "ok", provider.version)


def check_plugin() -> Check:
    """Checks whether Airflow has loaded the plugin."""
    for source, error in plugins_manager.get_import_errors().items():
        if "hops" in source:
            return Check("plugin", "fail", f"{source}: {error}", "airflow plugins shows the whole error")
    if any(plugin["name"] == "hops" for plugin in plugins_manager.get_plugin_info(["name"])):
        return Check("plugin", "ok", "loaded")
    return Check("plugin", "fail", "not loaded", "is [core] plugins or the entry point airflow.plugins overridden?")


def check_triggerers() -> Iterator[Check]:
    """Checks whether a triggerer takes the triggers of each team, where this machine reaches Airflow's database."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_hops.airflow_internals.database import waiting_triggers

    try:
        waiting = waiting_triggers(_PATIENCE)
    except SQLAlchemyError:  # a worker need not reach the database
        return
    for team, number in waiting.items():
        of_team = f" of team {team!r}" if team else ""
        advice = f"start one: airflow triggerer{f' --team-name {shlex.quote(team)}' if team else ''}"
        yield Check("triggerer", "fail", f"none takes the triggers{of_team}: {number} deferred tasks wait", advice)
    if not waiting:
        yield Check("triggerer", "ok", "no trigger waits for one")


def check_spark_connection(conn_id: str) -> Check:
    """Checks whether the Spark connection exists; ``spark_default`` is optional."""
    name = f"connection {conn_id}"
    advice = (
        f"for Spark on this machine: airflow connections add {conn_id} "
        """--conn-json '{"conn_type": "spark", "host": "local[*]"}'"""
    )
    try:
        connection = find_connection(conn_id, "spark")
    except Exception as error:
        return Check(name, "fail", str(error), advice)
    if connection is not None:
        return Check(name, "ok", f"master {connection[0].host or 'yarn'}, from {connection[1]}")
    if conn_id == SPARK_CONN_ID:
        return Check(name, "ok", f"none: Spark runs on this machine ({THIS_MACHINE})")
    return Check(name, "warn", "none; the operators that name it fail", advice)


def check_java(runtime: Path, spark_conn_id: str) -> Check:
    """Checks for a Java version that Spark supports; without a Spark connection, none may be needed."""
    java = find_java(runtime)
    wanted = " or ".join(map(str, supported_javas(runtime)))
    advice = f"install Java {wanted}, or run 'airflow hops runtime create --java'"
    if java is None and find_connection(spark_conn_id, "spark") is None:
        return Check("Java", "ok", f"none: only steps on Spark need one; for those, {advice}")
    if java is None:
        return Check("Java", "fail", "none", advice)
    result = f"{java.version} in {java.home} ({java.source})"
    return Check("Java", "ok" if java.supported else "fail", result, "" if java.supported else advice)


def check_runtime(runtime: Path) -> Check:
    """Checks whether the runtime environment is complete and matches this package's pins."""
    state = environment_state(runtime, pins_fingerprint(runtime))
    if state.good:
        return Check("runtime environment", "ok", f"{runtime}, {state.detail}")
    advice = f"airflow hops runtime create {runtime}"
    if state.name == "unmanaged":
        return Check("runtime environment", "warn", state.detail, f"to get the tested pins: {_create_again(runtime)}")
    if state.name == "moved":
        return Check("runtime environment", "warn", state.detail, f"its scripts point there: {advice}")
    return Check("runtime environment", "fail", state.detail, advice)


def check_profile(runtime: Path) -> Check:
    """Checks whether the profile of the runtime environment runs on this machine, and names the machine's own."""
    profile, reason = profile_of(runtime), reason_for_profile()
    if profile is None:
        return Check("profile", "warn", "none", f"this machine's is {reason}: airflow hops runtime create {runtime}")
    result = f"{profile.name}; this machine's is {reason}"
    try:
        check_machine(profile)
    except BadInput as error:
        return Check("profile", "fail", str(error), f"airflow hops runtime create --force --profile base {runtime}")
    if profile is machine_profile():
        return Check("profile", "ok", result)
    advice = f"to change it on all machines: airflow hops runtime create --force --profile {machine_profile().name}"
    return Check("profile", "ok", result, f"{advice} {runtime}")


def check_named(base: Path) -> Iterator[Check]:
    """Checks whether the named environments are complete and match this package's pins."""
    for named in list_named(base):
        added = f"{', '.join(named.requirements) or 'nothing'} over {base.name}"
        advice = "" if named.state.good else f"airflow hops runtime create {base} --name {named.name}"
        result = added if named.state.good else named.state.detail
        yield Check(f"runtime {named.name}", "ok" if named.state.good else "warn", result, advice)


def check_libraries(runtime: Path) -> Iterator[Check]:
    """Imports the libraries of the runtime environment in a subprocess, and checks Horovod's build."""
    advice, last_line, profile = _create_again(runtime), list[str](), profile_of(runtime) or BASE
    command = module_command(runtime / "bin" / "python", "airflow_hops.ml.step.probe")
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _PROBE_TIMEOUT_S}
    try:
        result = subprocess.run(command, env=step_variables(runtime), cwd="/", **options)
        last_line = result.stderr.strip().splitlines()[-1:]
        answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        late = f"no answer within {_PROBE_TIMEOUT_S} s"
        yield Check("libraries", "fail", late, "try again when the machine is less busy")
        return
    except (OSError, ValueError, IndexError) as error:
        yield Check("libraries", "fail", " ".join([f"{type(error).__name__}: {error}", *last_line]), advice)
        return
    yield from _check_modules(answer, advice, profile)
    if "gpus" in answer:
        yield check_cuda(base_of(runtime), answer, nvidia_gpus())


def check_store(hook: HopsHook) -> Check:
    """Checks that this machine reaches the artifact store."""
    try:
        hook.check_store()
    except StoreAway as error:
        return Check("store", "warn", str(error))
    except HopsError as error:
        return Check("store", "fail", str(error))
    return Check("store", "ok", f"{hook.settings.store} can be reached")


def check_step(hook: RuntimeHook) -> Iterator[Check]:
    """Runs a step by the connection's launcher: checks cluster, rights, image and store from where steps run."""
    launcher = hook.settings.launcher
    name = f"step by {launcher}"
    try:
        answer = probe_step(hook)
    except Exception as error:  # also those of the launcher's client
        advice = f"correct the connection's launcher_options, or what they name for {launcher!r}"
        yield Check(name, "fail", f"{type(error).__name__}: {error}", advice)
        return
    memory = f"{answer['memory_bytes'] / 2**30:.1f} GiB"
    gpus = f", {len(answer['gpus'])} GPUs" if answer.get("gpus") else ""
    yield Check(name, "ok", f"on {answer['host']}, {answer['cores']} cores, {memory}{gpus}; reads and writes the store")
    yield from _check_modules(answer, "build the image with the runtime environment of this version", None)


def _check_modules(answer: Mapping[str, Any], advice: str, profile: Profile | None) -> Iterator[Check]:
    """Checks the libraries that a probe has imported; ``profile`` is that of its environment, if it is known."""
    for module, facts in answer["modules"].items():
        name = module.partition(".")[0] if module != "google.protobuf" else "protobuf"
        if facts["error"]:
            hint = "protobuf is newer than TensorFlow supports: " if "GetPrototype" in facts["error"] else ""
            yield Check(name, "fail", facts["error"], f"{hint}{advice}")
        elif profile and module == "google.protobuf" and not str(facts["version"]).startswith(f"{profile.protobuf}."):
            needs = f"TensorFlow {profile.tensorflow} needs protobuf {profile.protobuf}"
            yield Check(name, "fail", facts["version"], f"{needs}: {advice}")
        elif module == "horovod.tensorflow":
            if not facts["version"]:
                optional = HOROVOD_MISSING.format(runtime="the runtime environment")
                yield Check("horovod", "ok", f"trainings on several ranks need it: {optional}")
                continue
            version, built = facts["version"], answer["horovod"]
            if not built["gloo"]:
                yield Check("horovod", "fail", f"{version}, built without Gloo", advice)
                continue
            nccl = int(built["nccl"])  # 2.19.3 is 21903
            extras = ["MPI"] * built["mpi"] + [f"NCCL {nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}"] * bool(nccl)
            yield Check("horovod", "ok", f"{version}, built with TensorFlow and {', '.join(['Gloo', *extras])}")
        else:
            seconds = f", imported in {facts['seconds']:.1f} s" if facts["seconds"] >= 0.1 else ""
            yield Check(name, "ok", f"{facts['version']}{seconds}")


def _create_again(runtime: Path) -> str:
    """Returns the command that creates the runtime environment again, with the options that it has."""
    base = base_of(runtime)
    unmanaged = environment_state(base, "").name == "unmanaged"
    cuda = cuda_of(installed_packages(base)) if unmanaged else pins_of(base).name.endswith("-cuda.txt")
    horovod = "--horovod " if "horovod" in installed_packages(base) else ""
    return f"airflow hops runtime create --force {horovod}{'--cuda ' if cuda else ''}{runtime}"


def check_cuda(base: Path, answer: Mapping[str, Any], gpus: Sequence[str]) -> Check:
    """Checks whether the runtime environment has CUDA if there is a GPU, and whether TensorFlow and Horovod can use it.

    ``answer`` is the result of :func:`airflow_hops.ml.step.probe.probe`, ``gpus`` that of :func:`nvidia_gpus`.
    """
    seen = f"TensorFlow sees {len(answer['gpus'])} GPUs" if answer["gpus"] else f"no GPU: {answer['no_gpu']}"
    cuda, create = cuda_of(installed_packages(base)), f"airflow hops runtime create {base} --cuda"
    if cuda is None:
        result = f"not in {base.name}; {seen}"
        return Check("CUDA", "warn", result, create) if gpus and not answer["gpus"] else Check("CUDA", "ok", result)
    if "horovod" in answer and not answer["horovod"]["nccl"]:
        return Check("CUDA", "warn", f"{cuda}; Horovod without NCCL; {seen}", f"{create} --horovod --force")
    if answer["gpus"]:
        return Check("CUDA", "ok", f"{cuda}; {seen}")
    return Check(
        "CUDA", "warn", f"{cuda}; {seen}; training and serving run on the CPU", "check the driver, or continue"
    )


def check_serving(settings: Settings) -> Iterator[Check]:
    """Checks whether a model server answers or its ports are free."""
    try:
        server = ServerAddress.of(settings.services)
    except BadInput as error:
        yield Check("model server", "fail", str(error), "correct it in the connection")
        return
    if not server.has_process:
        yield Check("model server", "ok", f"none runs: models of the kind {server.kind!r} score tables")
        return
    host = server.host
    for name, port in (("gRPC", server.grpc_port), ("REST", server.rest_port)):
        if port is None:
            continue
        where = f"{host}:{port}"
        try:
            with socket.create_connection((host, port), timeout=2):
                yield Check(f"model server, {name}", "ok", f"{where} answers")
        except OSError as error:
            if is_this_machine(host):
                yield Check(f"model server, {name}", "ok", f"not running; {where} is free", "airflow hops serve")
            else:
                advice = "start the model server there, or correct the connection's host and port"
                yield Check(f"model server, {name}", "warn", f"{where}: {error}", advice)


def nvidia_gpus() -> list[str]:
    """Returns the machine's GPUs with memory and driver version, as listed by ``nvidia-smi``."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.strip().splitlines() if result.returncode == 0 else []


def is_this_machine(host: str) -> bool:
    """Returns whether a host name or address belongs to this machine."""
    try:
        with socket.socket() as probe:
            probe.bind((socket.gethostbyname(host), 0))
    except OSError:
        return False
    return True


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@suppress_logs_and_warning
def doctor(args: Namespace) -> None:
    """Runs the checks and prints their results.

    Raises:
        SystemExit: a check failed (exit code 1).
    """
    console = AirflowConsole()
    checks = list(run_checks(args.hops_conn_id))
    if args.output == "table":
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("check", "", "found", "what to do"):
            table.add_column(column, overflow="fold")
        for check in checks:
            status = f"[{_COLOURS[check.status]}]{check.status}[/]"
            table.add_row(check.name, status, escape(check.found), escape(check.advice))
        console.print(table)
    else:
        console.print_as([asdict(check) for check in checks], output=args.output)
    failed = [check.name for check in checks if check.status == "fail"]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
