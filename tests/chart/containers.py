"""The StatefulSets of the chart as containers of an engine, without Kubernetes.

Each pod is a container with the name, user, command, environment, security context, memory limit
and volumes of the pod, and the names that its headless Service gives it. So a start script that
fails, a file system that is read-only in the wrong place or an address that no pod reaches is found
on a machine that has no cluster.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compose.wrong import Wrong

PROJECT = "ottla-chart-check"
IMAGE = "ottla:latest"
NAMESPACE = "apps"  # of the rendered manifests
SECONDS = 300
_PROBE = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{}{}', timeout=3)"

Manifests = Mapping[tuple[str, str], Mapping[str, Any]]


def check(manifests: Manifests, client: str) -> None:
    """Start the pods, write and read through the Service, kill a broker, stop. Raises Wrong.

    `client` is the address of the brokers for clients, host:port.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compose.json"
        path.write_text(json.dumps(compose_file(manifests, Path(folder))))
        file = ("compose", "-p", PROJECT, "-f", str(path))
        try:
            _docker(*file, "up", "--detach", "--wait")
            print("  the pods of the chart are ready as containers", flush=True)
            network = (
                "run",
                "--rm",
                "--network",
                f"{PROJECT}_default",
                "--entrypoint",
                "sh",
                IMAGE,
            )
            produce = f"echo one | ottla produce orders -b {client} --acks all"
            create = f"ottla topics create orders --replication-factor 3 -b {client}"
            _docker(*network, "-c", f"{create} && {produce}")
            _docker(*file, "kill", "demo-1")
            _docker(*file, "up", "--detach", "--wait")
            said = _docker(*network, "-c", f"ottla consume orders -b {client}")
            if said.strip() != "one":
                raise Wrong(f"{said!r} is read after a broker was killed, not 'one'")
            print("  a record is kept when a broker is killed", flush=True)
            _docker(*file, "stop")
        finally:
            subprocess.run(["docker", *file, "down", "--volumes"], capture_output=True, check=False)


def compose_file(manifests: Manifests, folder: Path) -> dict[str, Any]:
    """The pods as services; ConfigMaps are written to `folder`."""
    maps = {name: each["data"] for (kind, name), each in manifests.items() if kind == "ConfigMap"}
    services: dict[str, Any] = {}
    volumes: dict[str, Any] = {}
    for (kind, name), manifest in manifests.items():
        if kind != "StatefulSet":
            continue
        for number in range(manifest["spec"]["replicas"]):
            pod = f"{name}-{number}"
            services[pod] = _service(pod, name, manifest["spec"], maps, folder, volumes)
    return {"name": PROJECT, "services": services, "volumes": volumes}


def _service(
    pod: str,
    name: str,
    spec: Mapping[str, Any],
    maps: Mapping[str, Mapping[str, str]],
    folder: Path,
    volumes: dict[str, Any],
) -> dict[str, Any]:
    template = spec["template"]["spec"]
    container = template["containers"][0]
    user, group = (template["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    sources = {volume["name"]: volume for volume in template.get("volumes", [])}
    mounts: list[Any] = []
    tmpfs: list[str] = []
    for mount in container["volumeMounts"]:
        source = sources.get(mount["name"], {})
        if mount["name"] in claims:
            volume = "-".join(filter(None, (pod, mount["name"], mount.get("subPath"))))
            volumes[volume] = {}  # owned as the images have it, which is what fsGroup would do
            mounts.append(f"{volume}:{mount['mountPath']}")
        elif "emptyDir" in source:
            tmpfs.append(f"{mount['mountPath']}:uid={user},gid={group},mode=0770")
        elif "configMap" in source:
            files = folder / source["configMap"]["name"]
            files.mkdir(exist_ok=True)
            for file_name, text in maps[source["configMap"]["name"]].items():
                (files / file_name).write_text(text)
            mounts.append(f"{files}:{mount['mountPath']}:ro")
    security = container["securityContext"]
    names = [f"{pod}.{spec['serviceName']}", f"{pod}.{spec['serviceName']}.{NAMESPACE}.svc", name]
    environment = {each["name"]: each["value"] for each in container.get("env", [])}
    image = container["image"]
    return {
        "image": IMAGE if image.partition(":")[0].endswith("ottla") else image,
        "hostname": pod,
        "user": f"{user}:{group}",
        # Compose replaces variables in its file.
        "entrypoint": [word.replace("$", "$$") for word in container["command"]],
        "command": [],
        "environment": {**environment, "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
        "read_only": bool(security.get("readOnlyRootFilesystem")),
        "cap_drop": security["capabilities"]["drop"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": container["resources"].get("limits", {}).get("memory", "1Gi").rstrip("i"),
        "tmpfs": tmpfs,
        "volumes": mounts,
        "stop_grace_period": f"{template.get('terminationGracePeriodSeconds', 30)}s",
        "restart": "unless-stopped",
        "healthcheck": _healthcheck(container),
        "networks": {"default": {"aliases": names}},
    }


def _healthcheck(container: Mapping[str, Any]) -> dict[str, Any]:
    probe = container["readinessProbe"]
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    if "exec" in probe:
        test = ["CMD", *(word.replace("$", "$$") for word in probe["exec"]["command"])]
    else:
        request = probe["httpGet"]
        port = ports.get(request["port"], request["port"])
        test = ["CMD", "python3", "-c", _PROBE.format(port, request["path"])]
    return {"test": test, "interval": "3s", "timeout": "5s", "start_period": "60s", "retries": 20}


def _docker(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        words = " ".join(arguments[:7])
        raise Wrong(f"docker {words} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
