"""An archive of the classes that Spark loads at every start, which its JVM maps instead of reading them again.

Java 13 and later (JEP 350, dynamic class-data sharing) can write it at the end of a program. With it a Spark step on
this machine takes two thirds of the CPU time. Standard library only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.programs import PATH_ENTRY
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.runner.environments.java import Java, find_java

ARCHIVE = "spark-classes.jsa"
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:NewSize=16m")
"""Options for steps that run for seconds: the C2 compiler would not pay off, and parallel garbage collection would take
cores from the work. By default the young generation grows with the machine's memory, and a step fills all of it before
garbage is first collected. The archive is only valid for JVMs with these options.
"""
_FIRST_JAVA = 13
_TIMEOUT_S = 300.0


def jvm_options(runtime: Path) -> list[str]:
    """Returns the options of Spark's JVM on this machine, with the runtime environment's archive if it exists."""
    archive = runtime / ARCHIVE
    if not archive.exists() or not archive.stat().st_size:
        return list(JVM_OPTIONS)
    return [
        *JVM_OPTIONS,
        f"-XX:SharedArchiveFile={archive}",
        # By default the archive is relocated to a random address, which reads and copies all 80 MiB.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+IgnoreUnrecognizedVMOptions",  # for Java 11, which does not have the next option
        "-XX:ArchiveRelocationMode=0",
        # An archive of another Java is ignored, without a warning at every step.
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]


def driver_conf(runtime: Path, options: Sequence[str]) -> dict[str, str]:
    """Returns the Spark properties of a driver whose JVM writes or takes an archive: these options, and its class path.

    The class path begins with all of Spark's jars: Spark 4 names the jar of slf4j again before the folder of all,
    and the JVM only takes an archive if such a second name comes last.
    """
    folder = next(runtime.glob("lib/python3*/site-packages/pyspark/jars"), None)
    path = f"{folder.resolve()}/*" if folder else ""
    return {"spark.driver.extraClassPath": path, "spark.driver.extraJavaOptions": shlex.join(options)}


def make_archive(runtime: Path, say: Callable[[str], None] = print) -> bool:
    """Makes the archive by a rehearsal of Spark's work, unless this was tried before or Java is too old.

    An empty file marks a failure, whose reason goes to ``say``. Returns whether it was tried.
    """
    java = find_java(runtime)
    if java is None or not java.supported or java.version < _FIRST_JAVA or (runtime / ARCHIVE).exists():
        return False
    say("an archive of the classes that Spark loads: its steps then start in two thirds of the time")
    with temporary_folder("classes") as folder:
        archive = folder / ARCHIVE
        failure = _rehearse(runtime, java, archive)
        if not failure and not archive.exists():
            failure = "the JVM ended without writing it"
        if failure:
            say(f"could not make an archive of Spark's classes; Spark steps work, but start more slowly: {failure}")
            (runtime / ARCHIVE).touch()
        else:
            with staged(runtime / ARCHIVE) as staging:
                shutil.copyfile(archive, staging)
    return True


def _rehearse(runtime: Path, java: Java, archive: Path) -> str:
    """Runs a rehearsal whose JVM writes the archive; returns the error, or an empty string."""
    options = [*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    inherited = {
        n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
    }
    env = {
        **inherited,
        "PATH": f"{runtime / 'bin'}:{inherited.get('PATH', os.defpath)}",
        "JAVA_HOME": str(java.home),
        "PYTHONPATH": PATH_ENTRY,
        "PYSPARK_PYTHON": str(runtime / "bin" / "python"),
    }
    command = [str(runtime / "bin" / "spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.log.level=WARN"]
    command += ["--conf", "spark.driver.host=127.0.0.1"]
    command += [f"--conf={name}={value}" for name, value in driver_conf(runtime, options).items()]
    program = archive.with_name("rehearsal.py")
    program.write_text("from airflow_hops.ml.prepare.rehearsal import rehearse\n\nrehearse()\n")
    try:
        done = subprocess.run(
            [*command, str(program)],
            env=env,
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
