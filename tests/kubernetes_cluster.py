"""A real Kubernetes 1.20 of one node, in namespaces of its own, from Debian 12's packages and its source package.

Its API is relayed to a port of this machine. Pods see its folders by hostPath, and reach its ports by
:meth:`KubernetesCluster.reachable`. Images are not pulled: :meth:`~KubernetesCluster.import_image` makes them of files.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import yaml
from waiting import wait_for

from airflow_hops.core.processes.files import locked

REPOSITORY = Path(__file__).resolve().parents[1]
NODE = Path(__file__).with_name("kubernetes_node")
PARTS = REPOSITORY / ".hops" / "kubernetes"
BINARIES = Path(os.environ.get("HOPS_TEST_KUBERNETES", REPOSITORY / ".." / "shared" / "kubernetes")) / "binaries.tar.xz"
BUSYBOX = "docker.io/library/busybox:test"
_PACKAGES = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static", "iptables", "libip4tc2"),
    *("libip6tc2", "libxtables12", "libnftnl11", "libnfnetlink0", "libnetfilter-conntrack3", "libmnl0", "conntrack"),
    *("kubernetes-client", "libseccomp2"),
)
_BUILD_PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
_NEEDED = ("apt-get", "dpkg", "gcc", "ip", "nsenter", "openssl", "python3", "unshare")


def why_not() -> str:
    """Returns why there cannot be a cluster here; empty if there can."""
    if os.getuid():
        return "it needs root"
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)} in PATH"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "it needs cgroup v1"
    tried = subprocess.run(
        ["unshare", "-mnCup", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/sys"], capture_output=True
    )
    if tried.returncode:
        return f"no rights to namespaces: {tried.stderr.decode().strip()}"
    if not BINARIES.exists() and not (PARTS / "bin" / "kubelet").exists():
        return f"there is no {BINARIES}; 'make test-all PART=kubernetes' compiles it, in five minutes"
    return ""


def make_parts() -> Path:
    """Returns the folder of the programs, which it downloads and, without binaries, compiles."""
    with locked(PARTS.with_name("kubernetes.lock")):
        if not ((PARTS / "bin" / "pause").exists() and (PARTS / "debian").exists()):
            _unpack(_PACKAGES)
            if BINARIES.exists():
                (PARTS / "bin").mkdir(exist_ok=True)
                subprocess.run(["tar", "-xJf", BINARIES, "-C", PARTS / "bin"], check=True)
            else:
                _unpack(_BUILD_PACKAGES)
                subprocess.run(["bash", NODE / "build.sh", PARTS], check=True)
    return PARTS


def _unpack(packages: Sequence[str]) -> None:
    """Unpacks Debian's packages into the folder of parts; installs none."""
    debs = PARTS / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "download", "-q", *packages]
    if subprocess.run(download, cwd=debs, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(download, cwd=debs, check=True, capture_output=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, PARTS / "debian"], check=True)
    shutil.rmtree(debs)


class KubernetesCluster:
    """One node with etcd, API server, controllers, scheduler, kubelet, containerd, kube-proxy and DNS.

    Args:
        folder: For its files and logs; a short path, since sockets lie in it.

    Attributes:
        url: Address of the API on this machine.
        kubeconfig: File with which clients on this machine are its administrator.
        node: Process in the node's namespaces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._parts = folder, make_parts()
        self.kubeconfig = folder / "kubeconfig"
        self.url = "https://127.0.0.1:16443"
        self._processes: list[subprocess.Popen[Any]] = []
        self._cgroups: list[Path] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._processes):  # the first ones are the namespaces, with which all else ends
            process.kill()
            process.wait()
        for cgroup in self._cgroups:
            wait_for(lambda top=cgroup: _remove_cgroup(top), f"the end of the processes in {cgroup}")

    def _start(self) -> None:
        for name in ("pki", "cni/bin", "cni/conf", "run"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._make_certificates()
        self._make_namespaces()
        self.url = f"https://127.0.0.1:{self.relay('127.0.0.1', os.getpid(), 16443, self.node)}"
        self._context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        for name in ("admin", "kcm", "scheduler", "kubelet"):
            self._write_kubeconfig(self.folder / "pki" / f"{name}.kubeconfig", name, "https://127.0.0.1:16443")
        self._write_kubeconfig(self.kubeconfig, "admin", self.url)
        self._start_control_plane()
        self._start_node()
        self._import_own_images()
        wait_for(
            lambda: self._ready_node() and self.get("/api/v1/namespaces/default/serviceaccounts/default"), self.logs, 90
        )

    def get(self, path: str) -> Any:
        """Returns the answer of the API to a GET request, as its administrator; None if it is an error."""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": "Bearer admin-token"})
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        return json.loads(text) if text.startswith("{") else text

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as administrator; returns its output."""
        command = [self._parts / "debian" / "usr" / "bin" / "kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Creates or changes objects."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(each) for each in manifests]))

    def command(self, *command: str | Path) -> list[str]:
        """Returns a command that runs another on the node, in its namespaces and cgroups."""
        return [str(self.folder / "enter"), *map(str, command)]

    def import_image(self, name: str, files: Mapping[str, Path | str], command: Sequence[str]) -> None:
        """Makes an image from files, and imports it on the node.

        Args:
            name: With registry and tag, such as ``docker.io/library/runtime:test``.
            files: Path in the image to a file or folder of this machine, or ``->target`` for a link.
            command: Command of its containers.
        """
        archive = self.folder / "image.tar"
        write_image(archive, name, files, command)
        self.import_archive(archive)
        archive.unlink()

    def import_archive(self, archive: Path) -> None:
        """Imports an image from an OCI archive on the node."""
        ctr = ("ctr", "--address", self.folder / "run" / "containerd.sock", "--namespace", "k8s.io")
        subprocess.run(self.command(*ctr, "images", "import", archive), check=True, capture_output=True)

    def relay(self, host: str, listen_pid: int, port: int, connect_pid: int, listen_port: int = 0) -> int:
        """Relays a port between network namespaces, those of two processes; returns the port that listens."""
        places = (listen_pid, host, listen_port, connect_pid, "127.0.0.1", port)
        process = subprocess.Popen(
            [sys.executable, str(NODE / "relay.py"), *map(str, places)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_end_with_parent,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def reachable(self, port: int) -> str:
        """Returns the address at which pods reach a port of this machine's 127.0.0.1."""
        return f"10.88.0.1:{self.relay('10.88.0.1', self.node, port, os.getpid())}"

    def logs(self) -> str:
        """Returns the last lines of all logs."""
        parts = []
        for path in sorted((self.folder / "run").glob("*.log")):
            parts.append(f"{path.name}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]))
        return "\n\n".join(parts)

    def _ready_node(self) -> bool:
        node = self.get("/api/v1/nodes/test-node") or {"status": {"conditions": []}}
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])

    def _run(self, name: str, *command: str | Path) -> None:
        with (self.folder / "run" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(self.command(*command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes.append(process)

    def _make_certificates(self) -> None:
        pki = self.folder / "pki"

        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)

        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *key, "-days", "30", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.crt")
        names = "DNS:localhost,DNS:test-node,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.88.0.1,IP:10.96.0.1"
        for name, subject in {
            "apiserver": "/CN=kube-apiserver",
            "admin": "/O=system:masters/CN=admin",
            "kcm": "/CN=system:kube-controller-manager",
            "scheduler": "/CN=system:kube-scheduler",
            "kubelet": "/O=system:nodes/CN=system:node:test-node",
        }.items():
            (pki / "extensions").write_text(f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n")
            openssl("req", *key, "-subj", subject, "-keyout", f"{name}.key", "-out", "request")
            signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", "extensions")
            openssl("x509", "-req", "-in", "request", *signed, "-out", f"{name}.crt")
        openssl("genrsa", "-out", "accounts.key", "2048")
        openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
        # The second one has no rights.
        (pki / "tokens.csv").write_text('admin-token,admin,admin,"system:masters"\nguest-token,guest,guest,"guests"\n')

    def _write_kubeconfig(self, path: Path, user: str, url: str) -> None:
        pki = self.folder / "pki"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(pki / "ca.crt")}}],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate": str(pki / f"{user}.crt"), "client-key": str(pki / f"{user}.key")},
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))

    def _make_namespaces(self) -> None:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # the unified hierarchy
                continue
            parent = Path("/sys/fs/cgroup", controllers.removeprefix("name="), path.strip("/"))
            cgroup = parent / f"hops-{self.folder.name}"
            cgroup.mkdir()
            self._cgroups.append(cgroup)
            if controllers == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (cgroup / name).write_text((parent / name).read_text())
                (cgroup / "cgroup.clone_children").write_text("1")
        join = "".join(f"echo $$ >{cgroup}/cgroup.procs\n" for cgroup in self._cgroups)
        holder = f'{join}exec unshare -mnCup --fork --kill-child --mount-proc bash {NODE}/holder.sh "{self.folder}"'
        with (self.folder / "run" / "holder.log").open("wb") as log:
            process = subprocess.Popen(["bash", "-c", holder], stdout=log, stderr=log, preexec_fn=_end_with_parent)
        self._processes.append(process)
        wait_for(lambda: (self.folder / "ready").exists() or process.poll() is not None, self.logs)
        assert process.poll() is None, self.logs()
        self.node = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        root = self._parts / "debian"
        programs = [
            self.folder / "bin",
            self._parts / "bin",
            *(root / name for name in ("usr/bin", "usr/sbin", "bin", "sbin")),
        ]
        libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
        variables = {
            "PATH": f"{':'.join(map(str, programs))}:$PATH",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "XTABLES_LIBDIR": f"{libraries[0]}/xtables",
        }
        enter = self.folder / "enter"
        enter.write_text(
            f"#!/bin/bash\n{join}exec nsenter -t {self.node} -m -n -C -u -p env "
            + " ".join(f"{name}={value}" for name, value in variables.items())
            + ' "$@"\n'
        )
        enter.chmod(0o755)
        (self.folder / "bin").mkdir()
        for name in (f"{kind}{suffix}" for kind in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")):
            (self.folder / "bin" / name).symlink_to(root / "usr" / "sbin" / "xtables-nft-multi")

    def _start_control_plane(self) -> None:
        pki, run = self.folder / "pki", self.folder / "run"
        client, peer = "http://127.0.0.1:12379", "http://127.0.0.1:12380"
        etcd = {
            "data-dir": run / "etcd",
            "unsafe-no-fsync": "true",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self._run("etcd", "etcd", *_flags(etcd))
        apiserver = {
            "bind-address": "127.0.0.1",
            "secure-port": 16443,
            "advertise-address": "10.88.0.1",
            "etcd-servers": client,
            "service-cluster-ip-range": "10.96.0.0/16",
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "client-ca-file": pki / "ca.crt",
            "cert-dir": run / "apiserver",
            "kubelet-client-certificate": pki / "admin.crt",
            "kubelet-client-key": pki / "admin.key",
            "kubelet-certificate-authority": pki / "ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki / "accounts.pub",
            "service-account-signing-key-file": pki / "accounts.key",
            "token-auth-file": pki / "tokens.csv",
            "authorization-mode": "Node,RBAC",
        }
        self._run("apiserver", "kube-apiserver", *_flags(apiserver))
        wait_for(lambda: self.get("/readyz"), self.logs, 90)
        controllers = {
            "kubeconfig": pki / "kcm.kubeconfig",
            "bind-address": "127.0.0.1",
            "port": 0,
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": pki / "accounts.key",
            "root-ca-file": pki / "ca.crt",
            "cluster-signing-cert-file": pki / "ca.crt",
            "cluster-signing-key-file": pki / "ca.key",
            "cert-dir": run / "controllers",
            "node-monitor-grace-period": "12s",  # a node counts as lost sooner than by default
        }
        self._run("controllers", "kube-controller-manager", *_flags(controllers))
        scheduler = {"kubeconfig": pki / "scheduler.kubeconfig", "bind-address": "127.0.0.1", "port": 0}
        self._run(
            "scheduler", "kube-scheduler", *_flags(scheduler | {"leader-elect": "false", "cert-dir": run / "scheduler"})
        )

    def _start_node(self) -> None:
        folder, pki, run = self.folder, self.folder / "pki", self.folder / "run"
        for name in ("bridge", "host-local", "loopback", "portmap"):
            shutil.copy(self._parts / "debian" / "usr" / "lib" / "cni" / name, folder / "cni" / "bin")
        ranges = {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ranges}
        network = {
            "cniVersion": "0.4.0",
            "name": "test",
            "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }
        (folder / "cni" / "conf" / "test.conflist").write_text(json.dumps(network))
        (folder / "containerd.toml").write_text(
            f"""version = 2
root = "{run}/containerd"
state = "{run}/state"
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pause:3.2"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni/bin"
    conf_dir = "{folder}/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""
        )
        self._run("containerd", "containerd", "--config", folder / "containerd.toml")
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "10.88.0.1",
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": f"{pki}/ca.crt"}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet.key",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
            "volumePluginDir": f"{run}/plugins",
            "clusterDomain": "cluster.local",
            "clusterDNS": ["10.88.0.1"],
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "3s",
        }
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        self.start_kubelet()
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": "127.0.0.1",
            "clientConnection": {"kubeconfig": f"{pki}/admin.kubeconfig"},
            "mode": "iptables",
            "hostnameOverride": "test-node",
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
        (folder / "proxy.yaml").write_text(yaml.safe_dump(proxy))
        self._run("proxy", "kube-proxy", "--config", folder / "proxy.yaml")
        self._run("dns", "env", "-u", "LD_LIBRARY_PATH", sys.executable, NODE / "dns.py", pki / "ca.crt")

    def cut_off(self, seconds: float) -> None:
        """Makes the API unreachable for some seconds; connections to it break."""
        relay = self._processes[1]  # started after the namespaces
        relay.kill()
        relay.wait()
        time.sleep(seconds)
        port = int(self.url.rpartition(":")[2])
        self.relay("127.0.0.1", os.getpid(), 16443, self.node, port)
        self._processes[1] = self._processes.pop()

    def start_kubelet(self) -> None:
        """Starts kubelet, also after :meth:`stop_kubelet`."""
        socket = f"unix://{self.folder / 'run' / 'containerd.sock'}"
        flags = {
            "config": self.folder / "kubelet.yaml",
            "kubeconfig": self.folder / "pki" / "kubelet.kubeconfig",
            "hostname-override": "test-node",
            "node-ip": "10.88.0.1",
            "container-runtime": "remote",
            "container-runtime-endpoint": socket,
            "image-service-endpoint": socket,
            "cert-dir": self.folder / "run" / "kubelet",
        }
        self._run("kubelet", "kubelet", *_flags(flags))
        self._kubelet = self._processes[-1]

    def stop_kubelet(self) -> None:
        """Stops kubelet, so that the node is lost while its containers run."""
        for program in psutil.Process(self._kubelet.pid).children(recursive=True):  # of nsenter
            program.kill()
        self._kubelet.wait()

    def _import_own_images(self) -> None:
        wait_for(lambda: (self.folder / "run" / "containerd.sock").exists(), self.logs)
        names = ("sh", "sleep", "cat", "echo", "tail", "wget", "httpd", "nslookup", "true", "false", "kill", "mkdir")
        busybox = {f"bin/{name}": "->busybox" for name in names}
        self.import_image(BUSYBOX, {"bin/busybox": self._parts / "debian" / "bin" / "busybox", **busybox}, ["sh"])
        self.import_image("docker.io/library/pause:3.2", {"pause": self._parts / "bin" / "pause"}, ["/pause"])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _remove_cgroup(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # its processes are about to end
            Path(folder).rmdir()
    return not top.exists()


def write_image(archive: Path, name: str, files: Mapping[str, Path | str], command: Sequence[str]) -> None:
    """Writes an OCI archive with an image of one layer; arguments as :meth:`KubernetesCluster.import_image`."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "var"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, source in files.items():
            if isinstance(source, Path):
                tar.add(source, path)
            else:
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, source.removeprefix("->")
                tar.addfile(entry)
    kind = "application/vnd.oci.image."
    layer_blob = {"mediaType": f"{kind}layer.v1.tar", **blob(layer.getvalue())}
    environment = ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": environment},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    config_blob = {"mediaType": f"{kind}config.v1+json", **blob(json.dumps(config).encode())}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}manifest.v1+json",
        "config": config_blob,
        "layers": [layer_blob],
    }
    reference = {"mediaType": f"{kind}manifest.v1+json", **blob(json.dumps(manifest).encode())}
    reference["annotations"] = {"io.containerd.image.name": name}
    texts = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": [reference]},
    }
    contents = {name: json.dumps(value).encode() for name, value in texts.items()}
    contents |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    with tarfile.open(archive, "w") as tar:
        for path, content in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


@contextlib.contextmanager
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """Starts a cluster in a temporary folder; skips the test if there cannot be one."""
    if reason := why_not():
        pytest.skip(f"no Kubernetes: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="k8s-", dir="/tmp"))
    try:
        with KubernetesCluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[KubernetesCluster]:
    """The cluster of all tests of the session."""
    with kubernetes_cluster() as cluster:
        yield cluster


if __name__ == "__main__":
    print(make_parts())
