"""A real HDFS on this machine: nodes of Hadoop 2.7, whose jars are in the source package of Spark 2.4 on PyPI."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from server_process import REPOSITORY
from waiting import wait_for

from airflow_hops.core.processes.files import locked
from airflow_hops.core.store import ArtifactStore

JARS = REPOSITORY / ".hops" / "hdfs" / "pyspark-2.4.8"
_NEEDED = re.compile(
    "/deps/jars/(commons|guava|hadoop|htrace|jackson|javax|jersey|jetty|jsp|leveldb|log4j|netty|protobuf|slf4j|xerces|xml)"
)
_JAVA = [
    *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"),
    *("--add-opens", "java.security.jgss/sun.security.krb5=ALL-UNNAMED"),
    *("--add-exports", "java.security.jgss/sun.security.krb5=ALL-UNNAMED"),
]
_WEB_JARS = [
    *(Path(f"/usr/share/java/jersey1-{name}.jar") for name in ("core", "server", "servlet")),
    *(Path(f"/usr/share/java/{name}.jar") for name in ("httpclient", "httpcore", "jaxb-api", "jsr311-api")),
]
"""Jars for WebHDFS, of Debian's packages libjersey1-servlet-java, libhttpclient-java and libjaxb-api-java."""
HAS_WEBHDFS = all(jar.exists() for jar in _WEB_JARS)
_NODES = {
    "namenode": ("server.namenode.NameNode", "NameNode RPC up"),
    "datanode": ("server.datanode.DataNode", "Successfully sent block report"),
}
"""Program of each node, and the words in its log once it is ready."""


def hadoop_jars() -> Path:
    """The folder of Hadoop's jars, downloaded once; the test is skipped if they cannot be."""
    if shutil.which("java") is None:
        pytest.skip("no HDFS: there is no java in PATH")
    with locked(JARS.with_name("lock")):
        if not JARS.exists():
            folder = JARS.with_name("download")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "constraints.txt").write_text("pypandoc<1.8\nsetuptools<70\n")
            pip = [REPOSITORY / ".venv" / "bin" / "uv", "tool", "run", "pip", "--quiet", "download", "--dest", folder]
            options = ["--no-deps", "--no-binary", ":all:", "--build-constraint", folder / "constraints.txt"]
            result = subprocess.run([*pip, *options, "pyspark==2.4.8"], capture_output=True, text=True)
            if result.returncode:
                pytest.skip(f"no HDFS: pyspark 2.4.8's source package cannot be downloaded: {result.stderr[-500:]}")
            with tarfile.open(folder / "pyspark-2.4.8.tar.gz") as archive:
                for member in archive:
                    if _NEEDED.search(member.name):
                        member.name = Path(member.name).name
                        archive.extract(member, folder / "jars")
            (folder / "jars").rename(JARS)
            shutil.rmtree(folder)
    return JARS


class HdfsCluster:
    """A name node, which also answers WebHDFS if it can, and a data node; this process's user is the superuser.

    Args:
        folder: For their files and logs.
        host: Address of this machine at which they listen.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._jars, self._folder = hadoop_jars(), folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free, socket.socket() as free_for_http:
            free.bind((host, 0))
            free_for_http.bind((host, 0))
            self.url, self.web_address = f"hdfs://{host}:{free.getsockname()[1]}", free_for_http.getsockname()
        for pages in ("hdfs", "datanode"):
            (folder / "webapps" / pages / "WEB-INF").mkdir(parents=True)
            (folder / "webapps" / pages / "WEB-INF" / "web.xml").write_text("<web-app/>")
        (folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.A.target=System.err\nlog4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"
        )
        any_port = f"{host}:0"
        settings = {
            "fs.defaultFS": self.url,
            "dfs.blocksize": "1048576",
            "dfs.datanode.address": any_port,
            "dfs.datanode.data.dir": folder / "data",
            "dfs.datanode.http.address": any_port,
            "dfs.datanode.ipc.address": any_port,
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "500",
            "dfs.namenode.http-address": f"{host}:{self.web_address[1]}",
            "dfs.namenode.name.dir": folder / "names",
            "dfs.replication": "1",
            "dfs.webhdfs.enabled": str(HAS_WEBHDFS).lower(),
        }
        properties = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        for name in ("core", "hdfs"):
            (folder / f"{name}-site.xml").write_text(f"<configuration>{properties}</configuration>")

    def __enter__(self) -> Self:
        self.run(_NODES["namenode"][0], "-format", "-nonInteractive")
        self.start("namenode")
        self.start("datanode")
        return self

    def __exit__(self, *error: object) -> None:
        for node in list(self._processes):
            self.kill(node)

    def _command(self, program: str, *arguments: str) -> list[str]:
        jars = os.pathsep.join(map(str, [self._folder, *(_WEB_JARS if HAS_WEBHDFS else ()), self._jars / "*"]))
        return [*_JAVA, "-cp", jars, f"org.apache.hadoop.hdfs.{program}", *arguments]

    def run(self, program: str, *arguments: str) -> str:
        """Runs a program of Hadoop to its end; returns its output."""
        result = subprocess.run(self._command(program, *arguments), capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def admin(self, *arguments: str) -> str:
        """Runs ``hdfs dfsadmin``; returns its output."""
        return self.run("tools.DFSAdmin", *arguments)

    def start(self, node: str) -> None:
        """Starts ``namenode`` or ``datanode``, and waits until it is ready."""
        path, (program, words) = self._folder / f"{node}.log", _NODES[node]
        with path.open("wb") as log:
            process = subprocess.Popen(self._command(program), stdout=log, stderr=log)
        self._processes[node] = process

        def ready() -> bool:
            assert process.poll() is None, path.read_text()[-3000:]
            return words in path.read_text()

        wait_for(ready, path.read_text, 60)

    def kill(self, node: str) -> None:
        """Kills a node, as a power failure does."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()


def run_as(user: str, code: str) -> str:
    """Runs Python as another user of HDFS, by its environment; returns its output."""
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    environment = {**os.environ, "HADOOP_USER_NAME": user, "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """An HDFS that tests leave in order."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def hdfs_store(hdfs: Any, tmp_path: Path) -> ArtifactStore:
    """An artifact store of the test's own in HDFS."""
    return ArtifactStore(f"{hdfs.url}/{tmp_path.name}/hops", local_cache=str(tmp_path / "cache"))
