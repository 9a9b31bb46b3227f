"""A Spark cluster of two hosts on this machine, each with a network, name, user and temporary folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from waiting import wait_for

from airflow_hops.runner.environments.java import find_java

_SYSTEM = {
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "mnt",
    "opt",
    "proc",
    "run",
    "sbin",
    "sys",
    "usr",
    "var",
}
"""Folders of a host's operating system; the workers do not see others."""
_USER_ID = 60001
_NUMBERS = itertools.count(os.getpid())


@dataclass
class SparkCluster:
    """The cluster.

    Attributes:
        address: IPv4 address of this machine, which the workers reach.
        master: URL of the master.
        workers: Processes of the workers.
        folder: Folder of their logs.
        shared: Folder that the workers see as well.
    """

    address: str
    master: str
    folder: Path
    shared: Path
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
    if missing := [name for name in ("ip", "setpriv", "unshare") if shutil.which(name) is None]:
        return f"namespaces need iproute2 and util-linux, whose {missing[0]} is missing"
    bridge = ["unshare", "--net", "--mount", "ip", "link", "add", "bridge", "type", "bridge"]
    tried = subprocess.run(bridge, capture_output=True, text=True)
    return f"no rights to namespaces and bridges: {tried.stderr.strip()}" if tried.returncode else ""


def python_of(runtime: Path) -> list[Path]:
    """Folders that a host needs to use a runtime environment at its path."""
    return [runtime, (runtime / "bin" / "python").resolve().parents[1]]


def _host(name: str, address: str, user: int, temporary: Path, shared: Iterable[Path]) -> tuple[str, ...]:
    """Command that runs another as a user of a host, which shares only system folders and those in ``shared``."""
    places = [path for path in shared if path.parts[1] not in _SYSTEM]
    lines = ["set -e", f"echo {name} >/proc/sys/kernel/hostname", "mount -t tmpfs tmpfs /mnt", "mkdir /mnt/tmp"]
    lines += [f"mount --bind {shlex.quote(str(temporary))} /mnt/tmp"]
    files = {"passwd": f"{name}:x:{user}:{user}::/tmp:/bin/sh", "hosts": f"{address} {name}", "resolv.conf": ""}
    for file, line in files.items():
        copy = f"cp /etc/{file} /mnt" if line else "true"  # a name server out of reach would be waited for
        lines += [copy, f"echo {line} >>/mnt/{file}", f"mount --bind /mnt/{file} /etc/{file}"]
    for index, path in enumerate(places):
        lines += [f"mkdir /mnt/{index}", f"mount --bind {shlex.quote(str(path))} /mnt/{index}"]
    others = (path for path in Path("/").iterdir() if path.is_dir() and not path.is_symlink())
    lines += [f"mount -t tmpfs tmpfs {path}" for path in others if path.name not in {*_SYSTEM, "tmp"}]
    lines += ["mount --bind /mnt/tmp /tmp"]
    for index, path in enumerate(places):
        lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind /mnt/{index} {shlex.quote(str(path))}"]
    lines += [f'exec setpriv --reuid={user} --regid={user} --clear-groups "$@"']
    return "unshare", "--mount", "--uts", "sh", "-c", "\n".join(lines), "host"


@contextlib.contextmanager
def spark_cluster(runtime: Path, shared: Iterable[Path], *, own_users: bool = True) -> Iterator[SparkCluster]:
    """Starts a master and two workers with a core each; ends them, and removes the namespaces.

    ``shared`` are folders that the workers have at the same paths, besides Spark and Java. With ``own_users``, each
    worker has a user of its own, who may only read them.
    """
    java = find_java(runtime)
    assert java is not None, "Spark needs a Java"
    (home,) = runtime.glob("lib/python3*/site-packages/pyspark")
    # A killed test leaves its bridge behind.
    number = next(n % 200 for n in _NUMBERS if not Path(f"/sys/class/net/hopsb{n % 200}").exists())
    bridge, subnet = f"hopsb{number}", f"10.203.{number}"
    environment = {
        "JAVA_HOME": str(java.home),
        "PATH": f"{java.home}/bin:{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_WORKER_DIR": "/tmp/work",
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=5"
        " -Dspark.worker.cleanup.appDataTtl=1",
        "HOME": "/tmp",
    }
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="cluster-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        seen = folder / "shared"
        seen.mkdir()

        def start(program: str, name: str, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
            command = [*prefix, f"{home}/bin/spark-class", f"org.apache.spark.deploy.{program}", *arguments]
            with (folder / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, cwd="/", stdout=log, stderr=log))

        def log_of(name: str, pattern: str) -> re.Match[str]:
            path = folder / f"{name}.log"
            wait_for(lambda: re.search(pattern, path.read_text()), path.read_text, 180)  # on a busy machine
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
                own = folder / f"tmp-{index}"
                own.mkdir()
                own.chmod(0o1777)
                user = _USER_ID + index if own_users else 0
                host = _host(f"spark{index}", address, user, own, [home, java.home, seen, *shared])
                start("worker.Worker", f"worker-{index}", *worker, prefix=("ip", "netns", "exec", space, *host))
            for index in range(2):
                log_of(f"worker-{index}", "Successfully registered with master")
            yield SparkCluster(f"{subnet}.1", url, folder, seen, started[1:])
        finally:
            for process in started:
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.wait()
