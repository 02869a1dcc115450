"""The Helm chart with helm itself: `make test-chart`.

`helm lint --strict`, and `helm template` for each case below; the rendered manifests are checked
here, and against Kubernetes' own schemas, which kubernetes-validate brings. Then its pods run as
containers (containers.py): with the engine that responds, else one is started if that can be done.
helm is taken from the PATH, or built once with Go into .cache. Exit code 0 if all pass, 1 when not,
2 with neither helm nor Go, or without an engine ("not run").
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.chart import containers
from tests.compose import image
from tests.compose.base_images import provide_images
from tests.compose.wrong import Wrong

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "ottla"
TOOLS = ROOT / ".cache" / "go"
HELM = "helm.sh/helm/v3/cmd/helm@v3.17.3"
# A helm that Go built knows of none, and takes an old one.
KUBERNETES = "1.31"
VERSION = ("--kube-version", f"{KUBERNETES}.0")
BUILD_SECONDS = 1800
CLIENT_PORT = 9092  # of values.yaml
EXIT_WRONG, EXIT_NOT_RUN = 1, 2

Manifests = Mapping[tuple[str, str], Mapping[str, Any]]


def find_helm() -> str | None:
    found = shutil.which("helm") or shutil.which("helm", path=str(TOOLS))
    if found is None and shutil.which("go") is not None:
        print("building helm with Go, once", flush=True)
        subprocess.run(
            ["go", "install", HELM],
            env={**os.environ, "GOBIN": str(TOOLS), "GOFLAGS": "-mod=mod"},
            check=True,
            timeout=BUILD_SECONDS,
        )
        found = shutil.which("helm", path=str(TOOLS))
    return found


def run(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )


def rendered(helm: str, *settings: str) -> Manifests:
    # JSON has the types of a values file, --set others.
    flags = [
        word
        for setting in settings
        for word in ("--set-json" if setting.startswith("config=") else "--set", setting)
    ]
    done = run(helm, "template", "demo", str(CHART), "--namespace", "apps", *VERSION, *flags)
    if done.returncode:
        raise Wrong(f"helm template {settings} failed: {done.stderr}")
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def properties(manifests: Manifests) -> dict[str, str]:
    text = manifests["ConfigMap", "demo"]["data"]["server.properties"]
    return dict(line.split("=", 1) for line in text.splitlines() if line)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def default_case(manifests: Manifests) -> None:
    settings = properties(manifests)
    expect(
        settings["zookeeper.connect"]
        == ",".join(f"demo-zookeeper-{i}.demo-zookeeper:2181" for i in range(3)),
        f"zookeeper.connect is {settings['zookeeper.connect']}",
    )
    expect(settings["min.insync.replicas"] == "2", "two replicas must be in sync")
    brokers = manifests["StatefulSet", "demo"]["spec"]
    pod = brokers["template"]["spec"]
    container = pod["containers"][0]
    expect(pod["securityContext"]["runAsUser"] == 10001, "the user is that of the image")
    expect(container["securityContext"]["readOnlyRootFilesystem"], "the root must be read-only")
    for probe, path in (("readinessProbe", "/readyz"), ("startupProbe", "/healthz")):
        expect(container[probe]["httpGet"]["path"] == path, f"{probe} must read {path}")
    allowed = (
        container["startupProbe"]["periodSeconds"] * (container["startupProbe"]["failureThreshold"])
    )
    expect(allowed >= 1800, f"a start may take {allowed} s only")
    headless = manifests["Service", "demo-brokers"]["spec"]
    expect(headless["clusterIP"] == "None", "the brokers' service must be headless")
    expect(headless["publishNotReadyAddresses"], "a broker registers before it is ready")
    expect(("PodDisruptionBudget", "demo") in manifests, "there is no disruption budget")
    expect(("StatefulSet", "demo-zookeeper") in manifests, "there is no ZooKeeper")


def alone_case(manifests: Manifests) -> None:
    settings = properties(manifests)
    expect("zookeeper.connect" not in settings, "one broker keeps its own znodes")
    for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        expect(settings[f"{name}.replication.factor"] == "1", f"{name}: there is one replica")
    expect(("PodDisruptionBudget", "demo") not in manifests, "a budget would block the node")
    expect(("StatefulSet", "demo-zookeeper") not in manifests, "ZooKeeper was not wanted")


def secured_case(manifests: Manifests) -> None:
    settings = properties(manifests)
    expect(
        settings["listener.security.protocol.map"] == "CLIENT:SASL_SSL,BROKER:SSL",
        settings["listener.security.protocol.map"],
    )
    expect(settings["ssl.client.auth"] == "required", "client certificates were required")
    script = manifests["ConfigMap", "demo"]["data"]["start.sh"]
    expect("/etc/ottla/secret/*.properties" in script, "the secret settings are not appended")
    expect("tls.key" in script, "the key is not put into the keystore")
    volumes = manifests["StatefulSet", "demo"]["spec"]["template"]["spec"]["volumes"]
    secrets = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    expect(secrets == {"passwords", "certificates"}, f"mounted secrets: {secrets}")
    run_volume = next(each for each in volumes if each["name"] == "run")
    expect(run_volume["emptyDir"]["medium"] == "Memory", "secrets would be on the node's disk")


def external_case(manifests: Manifests) -> None:
    for number in range(3):
        service = manifests["Service", f"demo-external-{number}"]["spec"]
        expect(service["ports"][0]["nodePort"] == 31090 + number, "node ports count up")
        expect(
            service["selector"]["statefulset.kubernetes.io/pod-name"] == f"demo-{number}",
            "a service must select one broker",
        )
    script = manifests["ConfigMap", "demo"]["data"]["start.sh"]
    expect('2) external="node.example:31092" ;;' in script, "broker 2 advertises another address")


def workers_case(manifests: Manifests) -> None:
    settings = properties(manifests)
    expect(settings["ottla.workers"] == "3", "three workers were wanted")
    ports = "CLIENT:9102,BROKER:9103,CLIENT:9112,BROKER:9113"
    expect(settings["ottla.workers.ports"] == ports, settings["ottla.workers.ports"])
    expect(settings["ottla.workers.bootstrap.ports"] == "CLIENT:9192", "clients need one port")
    port = manifests["Service", "demo"]["spec"]["ports"][0]
    expect(port == {"name": "client", "port": 9092, "targetPort": "bootstrap"}, f"{port}")
    template = manifests["StatefulSet", "demo"]["spec"]["template"]["spec"]
    names = [each["name"] for each in template["containers"][0]["ports"]]
    expect({"client-2", "broker-2", "bootstrap"} <= set(names), f"ports of the pod: {names}")
    script = manifests["ConfigMap", "demo"]["data"]["start.sh"]
    begin = script.index('ids=""')
    loop = script[begin : script.index("echo", begin)]
    done = run("sh", text=f"set -eu\nid=2\n{loop}\necho ${{ids#,}}\n")
    expect(done.stdout.strip() == "102,202", f"broker ids of pod 2: {done.stdout}{done.stderr}")


CASES: dict[str, tuple[tuple[str, ...], Callable[[Manifests], None]]] = {
    "default": ((), default_case),
    "one broker": (("replicas=1", "zookeeper.enabled=false"), alone_case),
    "TLS and SASL": (
        (
            *("client.protocol=SASL_SSL", "interBroker.protocol=SSL", "tls.clientAuth=required"),
            *("tls.secretName=certificates", "existingSecret=passwords"),
        ),
        secured_case,
    ),
    "workers": (("workers=3",), workers_case),
    "outside clients": (
        ("external.enabled=true", "external.hosts={node.example}"),
        external_case,
    ),
    "metrics": (
        ("metrics.serviceMonitor.enabled=true", "zookeeper.connect=zk:2181/ottla"),
        lambda manifests: expect(
            properties(manifests)["zookeeper.connect"] == "zk:2181/ottla"
            and ("ServiceMonitor", "demo") in manifests,
            "an ensemble that exists is used",
        ),
    ),
}
NUMBERS = {"log.retention.bytes": 1073741824, "log.cleaner.min.cleanable.ratio": 0.25}
CASES["numbers"] = (
    (f"config={json.dumps(NUMBERS)}",),
    lambda manifests: expect(
        {name: properties(manifests)[name] for name in NUMBERS}
        == {name: str(value) for name, value in NUMBERS.items()},
        f"numbers are written as {properties(manifests)}",
    ),
)
REFUSED = {
    ("zookeeper.enabled=false",): "replicas > 1 needs zookeeper.enabled=true or zookeeper.connect",
    ("client.protocol=SSL",): "a listener with SSL or SASL_SSL needs tls.secretName",
    ("external.enabled=true",): "external.hosts needs one host, or one for each broker",
    ("client.protocol=TLS",): "client.protocol",
    ("zookeeper.replicas=2",): "zookeeper.replicas",
    ("replicas=0",): "replicas",
    (
        "workers=2",
        "external.enabled=true",
        "external.hosts={a}",
    ): "external.enabled needs workers=1",
}


def validate(manifest: Mapping[str, Any]) -> None:
    from kubernetes_validate import ValidationError
    from kubernetes_validate import validate as against_schema

    try:
        against_schema(dict(manifest), KUBERNETES, strict=True)
    except ValidationError as error:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        raise Wrong(f"{kind} {name}: {error.message} at {list(error.path)}") from None


def check(helm: str) -> None:
    done = run(helm, "lint", "--strict", *VERSION, str(CHART))
    expect(done.returncode == 0, f"helm lint failed:\n{done.stdout}{done.stderr}")
    for name, (settings, holds) in CASES.items():
        manifests = rendered(helm, *settings)
        holds(manifests)
        script = manifests["ConfigMap", "demo"]["data"]["start.sh"]
        syntax = run("sh", "-n", text=script)
        expect(syntax.returncode == 0, f"start.sh of {name}: {syntax.stderr}")
        for manifest in manifests.values():
            if not manifest["apiVersion"].startswith("monitoring."):  # of an operator
                validate(manifest)
        print(f"  {name}: {len(manifests)} manifests")
    for settings, reason in REFUSED.items():
        flags = [word for setting in settings for word in ("--set", setting)]
        done = run(helm, "template", "demo", str(CHART), *VERSION, *flags)
        expect(
            done.returncode != 0 and re.sub(r"\s+", " ", reason) in done.stderr.replace("/", "."),
            f"{settings} is not refused with {reason!r}: {done.stderr}",
        )
    print(f"  {len(REFUSED)} wrong values are refused with a reason")


def main() -> int:
    helm = find_helm()
    if helm is None:
        print("not run: there is neither helm nor Go on this machine")
        return EXIT_NOT_RUN
    try:
        check(helm)
        reason = image.why_not() or provide_images(["zookeeper"])
        if not reason:
            pods = rendered(helm, "zookeeper.replicas=1")
            containers.check(pods, f"demo:{CLIENT_PORT}")
    except Wrong as wrong:
        print(f"failed: {wrong}")
        return EXIT_WRONG
    if reason:
        print(f"The manifests hold. The pods were not run: {reason}")
        return EXIT_NOT_RUN
    print("The chart holds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
