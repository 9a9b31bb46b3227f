"""Starts steps with spark-submit and the Spark connection, through the Spark provider's hook."""

from __future__ import annotations

import getpass
import json
import logging
import os
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_hops
from airflow_hops.core.errors import BadInput, ConnectionFieldError, ConnectionNotFound, HopsError
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.profiles import BASE, base_of, profile_of
from airflow_hops.core.steps.protocol import StepSpec, is_local_master
from airflow_hops.runner.connections import SPARK_CONN_ID, find_connection, similar_connections
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.environments.packed import PackedRuntime
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.local import LocalLauncher, runtime_python, step_variables
from airflow_hops.runner.launchers.process import Deferral, StepProcess
from airflow_hops.runner.launchers.warm import WarmStart

if TYPE_CHECKING:
    from airflow_hops.airflow_internals.triggers import BaseTrigger

log = logging.getLogger(__name__)

THIS_MACHINE = "local[*]"
"""The master if the connection does not exist."""

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    # Spark 4's default, where Spark 3 wraps an overflow around, and makes null of text that is no number.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_ON_THIS_MACHINE = {
    # The host's name need not resolve, and other hosts cannot connect.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default of 200 is for clusters; stages split large data further themselves.
    "spark.sql.shuffle.partitions": "8",
}
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:NewSize=16m")
"""Options for steps that run for seconds: the C2 compiler would not pay off, and parallel garbage collection would take
cores from the work. By default the young generation grows with the machine's memory, and a step fills all of it before
garbage is first collected.
"""
_FETCHED = ("", "file", "hdfs", "http", "https")
"""Protocols of archives that Spark fetches itself."""
_ADDRESS_S = 24 * 3600
"""Validity of a signed address, by which executors fetch an archive from an object store."""
_OF_EXECUTORS = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
"""Environment variables of a step that executors get, to compute the same to the last bit."""

_PACKED = (".py", ".binpb", ".ini")
"""Endings of files for executors: sources, the messages of the model server's API, and registered implementations."""
_DRIVER = """import sys

# The archive is for other hosts; the sources on this one have their bytecode and the files beside them.
sys.path.sort(key=lambda path: path.endswith("code.zip"))

from airflow_hops.ml.__main__ import main

sys.exit(main())
"""


class SparkLauncher(Launcher):
    """Runs a step as a Spark application in client mode; with a local master, as a step that starts Spark itself.

    Args:
        runtime: Folder of the runtime environment, whose ``spark-submit`` and Python are used.
        conn_id: The Spark connection.
        conf: Spark properties.
        step_launcher: With a local master, the launcher of the step; None for this machine.
        warm: As for :class:`~airflow_hops.runner.launchers.local.LocalLauncher`, with a local master.
    """

    def __init__(
        self,
        runtime: Path,
        conn_id: str,
        conf: dict[str, str] | None = None,
        *,
        step_launcher: Launcher | None = None,
        warm: WarmStart | None = None,
    ) -> None:
        super().__init__(runtime, warm)
        self.conn_id = conn_id
        self.step_launcher = step_launcher if step_launcher is not None and self.is_local else None
        self.environment = self.step_launcher.environment if self.step_launcher is not None else ""
        self.conf = dict(conf or {})

    def start(self, spec_path: Path, code_paths: Sequence[str], *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Starts the step of a spec; arguments as :meth:`airflow_hops.runner.launchers.base.Launcher.start`.

        Raises:
            BadInput: the runtime environment, a Java that Spark supports, or the connection does not exist.
        """
        master, launcher = self._master(), self.step_launcher
        if launcher is None:
            runtime_python(self.runtime)
            base = base_of(self.runtime)
            java = find_java(base)
            if java is None or not java.supported:
                present = f"Java {java.version} in {java.home}" if java else "none"
                profile = profile_of(base) or BASE
                raise BadInput(
                    f"Spark {profile.spark} needs Java {', '.join(map(str, profile.javas))}, found {present}; install "
                    f"one, run 'airflow hops runtime create --java {self.runtime}', or prepare with engine='duckdb'"
                )
        if is_local_master(master):  # the step starts a JVM if it needs one
            properties = {**_DEFAULTS, **_ON_THIS_MACHINE}
            if launcher is None:
                connection = find_connection(self.conn_id, "spark")
                extra = {} if connection is None else connection[0].extra_dejson
                if useless := next((name for name in ("keytab", "principal") if extra.get(name)), None):
                    raise ConnectionFieldError(useless, conn_id=self.conn_id).with_text(
                        f"connection {self.conn_id!r}: field {useless!r} has no effect with the master {master!r}; "
                        f"name it in conf, as spark.kerberos.{useless}"
                    )
                if connection is None:
                    log.info("There is no connection %r: Spark runs on this machine (%s)", self.conn_id, master)
                properties["spark.driver.extraJavaOptions"] = shlex.join(JVM_OPTIONS)
                launcher = LocalLauncher(self.runtime, self.warm)
            flags = [f"--conf={name}={value}" for name, value in {**properties, **self._own_conf()}.items()]
            submitted = shlex.join(["--master", master, *flags, "pyspark-shell"])
            variables = {**variables, "PYSPARK_SUBMIT_ARGS": submitted}
            return launcher.start(spec_path, code_paths, variables=variables)
        # Imported here, because it brings 1,900 modules, the clients of Kubernetes among them.
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        folder = spec_path.parent
        env = {**step_variables(self.runtime, code_paths), **variables}
        conf = {
            **_DEFAULTS,
            **{f"spark.executorEnv.{name}": env[name] for name in _OF_EXECUTORS},
            "spark.pyspark.driver.python": env["PYSPARK_PYTHON"],
            # Spark 3.5: its client would use this user, not the one that runs the executors.
            "spark.executorEnv.HADOOP_USER_NAME": os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
            # A killed JVM leaves files, which are removed with the step's folder.
            "spark.driver.extraJavaOptions": shlex.join(
                [*JVM_OPTIONS, f"-Djava.io.tmpdir={env.get('TMPDIR', '/tmp')}"]
            ),
        }
        spec = StepSpec.from_json(spec_path.read_text(), dict(variables))
        if runtime_archive := self._runtime_archive(spec):
            conf["spark.pyspark.python"] = "./environment/bin/python"
        archive = folder / "code.zip"
        hook = SparkSubmitHook(
            conn_id=self.conn_id,
            conf=conf | self._own_conf(),
            name=f"hops-{folder.name}",
            py_files=str(archive),
            archives=f"{runtime_archive}#environment" if runtime_archive else None,
            application_args=[str(spec_path)],
            env_vars={name: env[name] for name in ("PATH", "PYSPARK_PYTHON")},
        )
        # The stub is outside of the package: Spark puts the script's folder first on the path, and the package's stages
        # have names of the standard library (statistics).
        driver = folder / "driver" / "step.py"
        command = hook._build_spark_submit_command(str(driver))
        _zip_sources([Path(path) for path in code_paths], archive)
        driver.parent.mkdir(exist_ok=True)
        driver.write_text(_DRIVER)
        return StepProcess.start(command, env=env, cwd=folder)

    def follows(self, spec: StepSpec) -> bool:
        """Asks the launcher of the step, with a local master."""
        return self.step_launcher is not None and self.step_launcher.follows(spec)

    def defer(self, process: StepProcess, deferral: Deferral) -> BaseTrigger | None:
        """Leaves a step of another launcher to its trigger, with a local master."""
        return None if self.step_launcher is None else self.step_launcher.defer(process, deferral)

    def resume(self, event: object, spec_path: Path, *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Follows a step of another launcher again, with a local master."""
        if self.step_launcher is None:
            return super().resume(event, spec_path, variables=variables)
        return self.step_launcher.resume(event, spec_path, variables=variables)

    def _own_conf(self) -> dict[str, str]:
        """Returns the properties of the connection's extra ``conf``, and the launcher's, which take precedence.

        Raises:
            BadInput: the connection's are not a JSON object of texts and numbers.
        """
        connection = find_connection(self.conn_id, "spark")
        conf = connection[0].extra_dejson.get("conf") if connection else None
        if conf is not None and not (
            isinstance(conf, dict) and all(isinstance(value, str | int | float) for value in conf.values())
        ):
            raise ConnectionFieldError("conf", conn_id=self.conn_id).with_text(
                f"connection {self.conn_id!r}, field 'conf': expected Spark properties as "
                f'{{"spark.driver.host": "10.0.0.5"}}, found {conf!r}'
            )
        # Spark 3.5: reads true and false, not Python's spelling of them.
        own = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in (conf or {}).items()}
        return {**own, **self.conf}

    def _runtime_archive(self, spec: StepSpec) -> str | None:
        """Returns the address at which Spark fetches the archive that the connection names, if it names one.

        Raises:
            BadInput: there is no such archive, or it has other packages than the runtime environment.
            HopsError: it cannot be read.
        """
        connection = find_connection(self.conn_id, "spark")
        address = connection and connection[0].extra_dejson.get("runtime_archive")
        if not address:
            return None
        field = f"connection {self.conn_id!r}, field 'runtime_archive': {address}"
        again = f"run 'airflow hops runtime pack {address}'"
        protocol, separator, _ = str(address).partition("://")
        try:
            fs, path = open_url(address, archive_options(address, spec.store, spec.storage_options))
            with fs.open(path, "rb") as stream:
                packed = PackedRuntime.read(stream, field)
            result: str = address if not separator or protocol in _FETCHED else fs.sign(path, expiration=_ADDRESS_S)
        except FileNotFoundError:
            raise BadInput(f"{field}: there is no such file; {again}") from None
        except (ImportError, ValueError, NotImplementedError) as error:
            raise BadInput(f"{field}: Spark cannot fetch an archive from there ({error})") from error
        except HopsError:
            raise
        except Exception as error:  # raised by the file system's client
            raise HopsError(f"{field}: it cannot be read ({type(error).__name__}: {error})") from error
        if difference := packed.difference(PackedRuntime.of(self.runtime)):
            raise BadInput(f"{field} has {difference} as in {self.runtime}; {again}")
        return result

    @property
    def is_local(self) -> bool:
        """Returns whether the master is this machine. Raises BadInput if the connection does not exist."""
        return is_local_master(self._master())

    def _master(self) -> str:
        """Returns the connection's master, or this machine if ``spark_default`` does not exist."""
        present = find_connection(self.conn_id, "spark")
        if present is not None:
            return str(present[0].host or "")
        if self.conn_id == SPARK_CONN_ID:
            return THIS_MACHINE
        raise ConnectionNotFound(self.conn_id).with_text(
            f"there is no Spark connection {self.conn_id!r}; for Spark on this machine, set "
            f'AIRFLOW_CONN_{self.conn_id.upper()}=\'{{"conn_type": "spark", "host": "local[*]"}}\''
            + similar_connections(self.conn_id)
        )


def archive_options(address: str, store: str, storage_options: Mapping[str, object]) -> Mapping[str, Any]:
    """Returns fsspec's options for an archive of the runtime environment: the store's if it has the same protocol."""
    return storage_options if address.partition("://")[0] == store.partition("://")[0] else {}


def _zip_sources(folders: Sequence[Path], archive: Path) -> None:
    """Packs this package, and the Python sources below the folders or in archives, for Spark's executors."""
    tops = [Path(airflow_hops.__file__).parent]
    tops += [top for folder in folders if folder.is_dir() for top in sorted(folder.iterdir())]
    with zipfile.ZipFile(archive, "w") as bundle:
        packed: set[str] = set()
        for top in tops:  # rglob does not follow links, and the package may be one
            for path in [top] if top.is_file() else sorted(top.rglob("*.*")):
                name = path.relative_to(top.parent).as_posix()
                if path.suffix in _PACKED and name not in packed:
                    packed.add(name)
                    bundle.write(path, name)
        for packaged in filter(zipfile.is_zipfile, folders):
            with zipfile.ZipFile(packaged) as sources:
                for name in sources.namelist():
                    if name.endswith(_PACKED) and name not in packed:
                        packed.add(name)
                        bundle.writestr(name, sources.read(name))
