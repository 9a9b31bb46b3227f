"""Archives of the classes that Spark loads at every start, so that its JVM maps them instead of reading them anew.

Java 13 and later (JEP 350, dynamic class-data sharing) can write one at the end of a program. With it a Spark step on
this machine takes two thirds of the CPU time. There are two, since a JVM maps nearly all of its archive, and most steps
need less than half of the classes. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.programs import PATH_ENTRY
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.environments.java import Java, find_java

SQL_ARCHIVE = "spark-classes.jsa"
CORE_ARCHIVE = "spark-core-classes.jsa"
"""The archive for steps that do without Spark SQL."""
_REHEARSALS = {SQL_ARCHIVE: "rehearse_sql", CORE_ARCHIVE: "rehearse_core"}
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:NewSize=16m")
"""A step lives for seconds: the second compiler would cost more than it earns, and threads for collecting garbage would
take the cores from the work. By default the room for new objects grows with the machine's memory, and a step fills all
of it before garbage is first collected. The archive is good for JVMs with these options."""
_FIRST_JAVA = 13
_TIMEOUT_S = 300.0


def jvm_options(runtime: Path, *, sql: bool = True) -> list[str]:
    """Options for Spark's JVM on this machine, with an archive where there is one.

    Args:
        runtime: Folder of the runtime environment.
        sql: Whether the step uses Spark SQL.
    """
    archives = [runtime / name for name in ([] if sql else [CORE_ARCHIVE]) + [SQL_ARCHIVE]]
    archive = next((each for each in archives if each.exists() and each.stat().st_size), None)
    if archive is None:
        return list(JVM_OPTIONS)
    return [
        *JVM_OPTIONS,
        f"-XX:SharedArchiveFile={archive}",
        # By default it is moved to a random address, and so read and copied as a whole, 80 MiB.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+IgnoreUnrecognizedVMOptions",  # which Java 11 does not know, and need not
        "-XX:ArchiveRelocationMode=0",
        # An archive of another Java is passed over; nobody needs to be told at every step.
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]


def lacks_archives(runtime: Path) -> bool:
    """Whether an archive could be made for a runtime environment, and nobody has tried."""
    java = find_java(runtime)
    can_be_made = java is not None and java.supported and java.version >= _FIRST_JAVA
    return can_be_made and not all((runtime / name).exists() for name in _REHEARSALS)


def make_archives(runtime: Path, say: Callable[[str], None] = print) -> bool:
    """Makes the archives, by rehearsals of what Spark steps do; an empty file tells that one could not be made.

    Args:
        runtime: Folder of the runtime environment.
        say: Called with why one could not be made.

    Returns:
        Whether both are there now.
    """
    java = find_java(runtime)
    if java is None:
        return False
    with ThreadPoolExecutor(len(_REHEARSALS)) as side_by_side:
        failures = list(side_by_side.map(partial(_make_archive, runtime, java), _REHEARSALS))
    if failure := next(filter(None, failures), None):
        say(f"could not make an archive of Spark's classes; Spark steps work, but start more slowly: {failure}")
        for name in _REHEARSALS:
            (runtime / name).touch()
    return failure is None


def _make_archive(runtime: Path, java: Java, name: str) -> str | None:
    """Makes one; returns what went wrong."""
    with temporary_folder("classes") as folder:
        why = _rehearse(runtime, java, _REHEARSALS[name], folder / name)
        if why or not (folder / name).exists():
            return why or "the JVM ended without writing it"
        with staged(runtime / name) as staging:
            shutil.copyfile(folder / name, staging)
    return None


def _rehearse(runtime: Path, java: Java, rehearsal: str, archive: Path) -> str:
    """Has the JVM of a rehearsal write an archive; returns what went wrong."""
    options = " ".join([*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"])
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "PYTHON", "SPARK_", "VIRTUAL_ENV"))}
    environment = {
        **kept,
        "PATH": f"{runtime / 'bin'}:{kept.get('PATH', os.defpath)}",
        "JAVA_HOME": str(java.home),
        "PYTHONPATH": PATH_ENTRY,
        "PYSPARK_PYTHON": str(runtime / "bin" / "python"),
    }
    command = [str(runtime / "bin" / "spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.log.level=WARN"]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.driver.extraJavaOptions={options}"]
    program = archive.with_name("rehearsal.py")
    program.write_text(f"from airflow_hops.ml.spark import rehearsal\n\nrehearsal.{rehearsal}()\n")
    try:
        done = subprocess.run(
            [*command, str(program)],
            env=environment,
            cwd=archive.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout[-2000:] if done.returncode else ""
