"""An archive of the classes that Spark loads at every start, so that its JVM maps them instead of reading them anew.

Java 13 and later (JEP 350, dynamic class-data sharing) can write one at the end of a program. With it a Spark step on
this machine takes two thirds of the CPU time. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from airflow_hops.java import find_java
from airflow_hops.processes.files import staged
from airflow_hops.processes.programs import PATH_ENTRY
from airflow_hops.processes.temporary_folders import temporary_folder

ARCHIVE_NAME = "spark-classes.jsa"
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:NewSize=16m")
"""A step lives for seconds: the second compiler would cost more than it earns, and threads for collecting garbage would
take the cores from the work. By default the room for new objects grows with the machine's memory, and a step fills all
of it before garbage is first collected. The archive is good for JVMs with these options."""
_FIRST_JAVA = 13
_TIMEOUT_S = 300.0


def jvm_options(runtime: Path) -> list[str]:
    """Options for Spark's JVM on this machine, with the archive where there is one."""
    archive = runtime / ARCHIVE_NAME
    if not archive.exists() or not archive.stat().st_size:
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


def lacks_archive(runtime: Path) -> bool:
    """Whether an archive could be made for a runtime environment, and nobody has tried."""
    java = find_java(runtime)
    return java is not None and java.supported and java.version >= _FIRST_JAVA and not (runtime / ARCHIVE_NAME).exists()


def make_archive(runtime: Path, say: Callable[[str], None] = print) -> bool:
    """Makes the archive, by a rehearsal of what Spark steps do; an empty file tells that it could not be made.

    Args:
        runtime: Folder of the runtime environment.
        say: Called with why it could not be made.

    Returns:
        Whether there is an archive now.
    """
    java = find_java(runtime)
    if java is None:
        return False
    archive = runtime / ARCHIVE_NAME
    with temporary_folder("classes") as folder:
        made = folder / ARCHIVE_NAME
        options = " ".join([*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"])
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
        rehearsal = folder / "rehearsal.py"
        rehearsal.write_text("from airflow_hops.runtime.spark.rehearsal import rehearse\n\nrehearse()\n")
        try:
            done = subprocess.run(
                [*command, str(rehearsal)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
            why = done.stdout[-2000:] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why or not made.exists():
            say(f"could not make an archive of Spark's classes; Spark steps work, but start more slowly: {why}")
            archive.touch()
            return False
        with staged(archive) as staging:
            shutil.copyfile(made, staging)
        return True
