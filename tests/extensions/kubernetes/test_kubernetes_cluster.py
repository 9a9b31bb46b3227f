"""The Kubernetes of the tests schedules pods, streams their logs, resolves names, and relays ports."""

from __future__ import annotations

import http.server
import threading
from typing import Any

import pytest
from kubernetes_cluster import BUSYBOX, KubernetesCluster
from waiting import wait_for


def pod(name: str, command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "base", "image": BUSYBOX, "command": ["sh", "-c", command], **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "smoke"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


@pytest.fixture
def phase(kubernetes: KubernetesCluster) -> Any:
    def wait(name: str, *phases: str) -> dict[str, Any]:
        def status() -> dict[str, Any]:
            return dict(kubernetes.get(f"/api/v1/namespaces/default/pods/{name}")["status"])

        wait_for(lambda: status()["phase"] in phases, lambda: f"{status()}\n{kubernetes.logs()}", 60)
        return status()

    yield wait
    kubernetes.kubectl("delete", "pods,services", "--selector", "app=smoke", "--wait=false")


def test_memory_kill_of_pod_is_reported(kubernetes: KubernetesCluster, phase: Any) -> None:
    kubernetes.apply(pod("greedy", "tail /dev/zero", container={"resources": {"limits": {"memory": "32Mi"}}}))
    (container,) = phase("greedy", "Failed")["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"


def test_pods_talk_by_name(kubernetes: KubernetesCluster, phase: Any) -> None:
    metadata = {"name": "smoke", "labels": {"app": "smoke"}}
    spec = {"clusterIP": "None", "selector": {"app": "smoke"}, "ports": [{"port": 8080}]}
    kubernetes.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    serve = "mkdir /www; echo hello >/www/x; httpd -f -p 8080 -h /www"
    kubernetes.apply(pod("first", serve, hostname="first", subdomain="smoke"))
    ask = "while ! wget -qO- http://first.smoke.default.svc.cluster.local:8080/x; do sleep 0.5; done"
    kubernetes.apply(pod("second", ask))
    phase("second", "Succeeded")
    assert kubernetes.kubectl("logs", "second").endswith("hello\n")


def test_pods_reach_ports_of_this_machine(kubernetes: KubernetesCluster, phase: Any) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = kubernetes.reachable(server.server_address[1])
    kubernetes.apply(pod("client", f"wget -qO /dev/null http://{address}/"))
    phase("client", "Succeeded")
    server.shutdown()
