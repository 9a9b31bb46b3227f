"""A Spark cluster of two hosts on this machine: each has a network namespace and a temporary folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from waiting import wait_for

from airflow_hops.environments.java import find_java

_OWN_FOLDER = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "worker")
"""Hides the temporary folder of this machine, with all that tests write there."""


@dataclass
class SparkCluster:
    """The cluster.

    Attributes:
        address: IPv4 address of this machine, which the workers reach.
        master: URL of the master.
        workers: Processes of the workers.
        folder: Folder of their logs.
    """

    address: str
    master: str
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> dict[str, str]:
        """Properties of an application whose driver runs on this machine."""
        return {
            "spark.driver.bindAddress": self.address,
            "spark.driver.host": self.address,
            "spark.executor.memory": "600m",
            "spark.sql.shuffle.partitions": "2",
        }

    def executors(self) -> list[psutil.Process]:
        """Returns the running executors."""
        executors = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        executors.append(child)
        return executors


def why_not() -> str:
    """Returns why there cannot be a cluster here; empty if there can."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need iproute2 and util-linux"
    bridge = ["unshare", "--net", "--mount", "ip", "link", "add", "bridge", "type", "bridge"]
    tried = subprocess.run(bridge, capture_output=True, text=True)
    return f"no rights to namespaces and bridges: {tried.stderr.strip()}" if tried.returncode else ""


@contextlib.contextmanager
def spark_cluster(runtime: Path) -> Iterator[SparkCluster]:
    """Starts a master and two workers with a core each; ends them, and removes the namespaces."""
    java = find_java(runtime)
    assert java is not None, "Spark needs a Java"
    (home,) = runtime.glob("lib/python3*/site-packages/pyspark")
    number = os.getpid() % 200
    bridge, subnet = f"hopsb{number}", f"10.203.{number}"
    environment = {
        "JAVA_HOME": str(java.home),
        "PATH": f"{java.home}/bin:{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_WORKER_DIR": "/tmp/work",
        "HOME": "/tmp",
    }
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="cluster-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)

        def start(program: str, name: str, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
            command = [*prefix, f"{home}/bin/spark-class", f"org.apache.spark.deploy.{program}", *arguments]
            with (folder / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, cwd="/", stdout=log, stderr=log))

        def log_of(name: str, pattern: str) -> re.Match[str]:
            path = folder / f"{name}.log"
            wait_for(lambda: re.search(pattern, path.read_text()), f"{name} to say {pattern}", 60)
            match = re.search(pattern, path.read_text())
            assert match
            return match

        def ip(*arguments: str) -> None:
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

        try:
            ip("link", "add", bridge, "type", "bridge")
            stack.callback(ip, "link", "del", bridge)
            ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
            ip("link", "set", bridge, "up")
            master = ("--host", f"{subnet}.1", "--port", "0", "--webui-port", "0")
            start("master.Master", "master", *master)
            url = log_of("master", r"Starting Spark master at (spark://\S+)")[1]
            for index in range(2):
                space, address = f"{bridge}-{index}", f"{subnet}.{index + 2}"
                ip("netns", "add", space)
                stack.callback(ip, "netns", "del", space)
                ip("link", "add", f"{bridge}v{index}", "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("link", "set", f"{bridge}v{index}", "master", bridge, "up")
                for arguments in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                    ip("-n", space, *arguments.split())
                worker = ("--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g", url)
                start("worker.Worker", f"worker-{index}", *worker, prefix=("ip", "netns", "exec", space, *_OWN_FOLDER))
            for index in range(2):
                log_of(f"worker-{index}", "Successfully registered with master")
            yield SparkCluster(f"{subnet}.1", url, folder, started[1:])
        finally:
            for process in started:
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.wait()
