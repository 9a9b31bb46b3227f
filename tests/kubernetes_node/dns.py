"""DNS of the test's Kubernetes: services, and pods behind headless services, asked from the API at each query."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import urllib.request


def addresses(name: str, context: ssl.SSLContext) -> list[str]:
    """Returns the IPv4 addresses of SERVICE.NAMESPACE.svc.cluster.local or HOST.SERVICE.NAMESPACE.svc.cluster.local."""
    *labels, namespace, svc, cluster, local = ("", "", *name.lower().rstrip(".").split("."))
    labels = [label for label in labels if label]
    if (svc, cluster, local) != ("svc", "cluster", "local") or len(labels) not in (1, 2):
        return []

    def get(kind: str) -> dict:
        url = f"https://127.0.0.1:16443/api/v1/namespaces/{namespace}/{kind}/{labels[-1]}"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer admin-token"})
        return json.load(urllib.request.urlopen(request, context=context, timeout=3))

    try:
        host = labels[0] if len(labels) == 2 else None
        cluster_ip = get("services")["spec"].get("clusterIP")
        if cluster_ip not in (None, "None"):
            return [] if host else [cluster_ip]
        each = [a for subset in get("endpoints").get("subsets") or [] for a in subset.get("addresses", [])]
        return [address["ip"] for address in each if host in (None, address.get("hostname"))]
    except OSError:  # there is no such service
        return []


def main(ca: str) -> None:
    """Answers queries for ever."""
    context = ssl.create_default_context(cafile=ca)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("10.88.0.1", 53))
    while True:
        query, peer = server.recvfrom(512)
        position, labels = 12, []
        while length := query[position]:
            labels.append(query[position + 1 : position + 1 + length].decode())
            position += length + 1
        (kind,) = struct.unpack(">H", query[position + 1 : position + 3])
        present = addresses(".".join(labels), context)
        answers = present if kind == 1 else []
        answer = query[:2] + struct.pack(">HHHHH", 0x8580 | (0 if present else 3), 1, len(answers), 0, 0)
        answer += query[12 : position + 5]
        for address in answers:
            answer += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 2, 4) + socket.inet_aton(address)
        server.sendto(answer, peer)


if __name__ == "__main__":
    main(sys.argv[1])
