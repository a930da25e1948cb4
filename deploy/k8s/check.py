#!/usr/bin/env python3
"""Proves that the manifests render, fit the schemas, and agree with the sources and with each other.

Every overlay, and every component on the base alone, is rendered with kubectl. Objects of Kubernetes are
held against its own schemas of two versions, those of others against the schemas in schemas/. What then
has to agree: ports, labels and selectors, names of flags and their values, health services, times of
draining, names of metrics, ConfigMaps and rules, versions of images. Prints one line per fault; exit
status 1 if there is any.

usage: check.py
"""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import facts  # noqa: E402
from render import FOLDER, ROOT, Object, render_all  # noqa: E402

# The oldest that has all that is used without a feature gate (preStop.sleep; image volumes), and the
# newest known. deploy/README.md names the same.
OLDEST, OLDEST_WITH_IMAGE_VOLUMES, NEWEST = "1.30", "1.35", "1.37"
READY = "eddy.v1.GenerationService"
SPARE_SECONDS = 5  # of terminationGracePeriodSeconds, to leave


class Checker:
    """The faults of one rendered set of objects."""

    def __init__(self, where: str, objects: list[Object]) -> None:
        self._where = where
        self._objects = objects
        self.faults: list[str] = []
        self._deployment = self._one("Deployment")
        self._template = self._deployment["spec"]["template"]
        self._pod = self._template["spec"]
        self._container = self._pod["containers"][0]
        self._labels = self._template["metadata"]["labels"]
        self._flags = self._read_flags()

    def _fault(self, what: str) -> None:
        self.faults.append(f"{self._where}: {what}")

    def _all(self, kind: str) -> list[Object]:
        return [o for o in self._objects if o["kind"] == kind]

    def _one(self, kind: str) -> Object:
        found = self._all(kind)
        if len(found) != 1:
            sys.exit(f"{self._where}: {len(found)} objects of kind {kind}, not one")
        return found[0]

    def _read_flags(self) -> dict[str, str]:
        """From the arguments and the ConfigMaps that the container takes its environment from."""
        given = [a.removeprefix("--").split("=", 1) for a in self._container["args"]]
        maps = {m["metadata"]["name"]: m for m in self._all("ConfigMap")}
        for source in self._container["envFrom"]:
            name = source["configMapRef"]["name"]
            if name not in maps:
                self._fault(f"the container's environment comes from {name}, which is not there")
                continue
            for key, value in maps[name]["data"].items():
                if not key.startswith("EDDY_"):
                    self._fault(f"{name}: {key} is no setting of the server")
                given.append([key.removeprefix("EDDY_").lower(), value])
        names = [name for name, _ in given]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self._fault(f"--{name} is given twice, as an argument and in the environment")
        return dict(given)

    def run(self) -> None:
        for check in (self.schemas, self.flags, self.ports, self.ways_out, self.probes, self.selectors,
                      self.times, self.security, self.model, self.image, self.scaling, self.monitoring,
                      self.namespaces):
            check()

    def schemas(self) -> None:
        image = any("image" in volume for volume in self._pod["volumes"])
        oldest = OLDEST_WITH_IMAGE_VOLUMES if image else OLDEST
        for thing in self._objects:
            name = f"{thing['kind']} {thing['metadata']['name']}"
            own = FOLDER / "schemas" / f"{thing['kind']}.json"
            if own.exists():
                validator = jsonschema.Draft202012Validator(json.loads(own.read_text()))
                for error in validator.iter_errors(thing):
                    self._fault(f"{name}: {error.json_path}: {error.message[:200]}")
                continue
            for version in (oldest, NEWEST):
                try:
                    kubernetes_validate.validate(thing, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    path = ".".join(str(p) for p in error.path)
                    self._fault(f"{name}, Kubernetes {version}: {path}: {error.message[:200]}")
                except kubernetes_validate.SchemaNotFoundError:
                    self._fault(f"{name}: no schema of {thing['apiVersion']} in Kubernetes {version}, "
                                f"nor in schemas/")

    def flags(self) -> None:
        for name, value in self._flags.items():
            if wrong := facts.flag_fault(name, value):
                self._fault(wrong)

    def _port(self, flag: str) -> int:
        address = self._flags.get(flag)
        return int(address.rpartition(":")[2]) if address else facts.default_port(flag)

    def ports(self) -> None:
        wanted = {"grpc": self._port("listen"), "metrics": self._port("metrics_listen")}
        ports = {p["name"]: p["containerPort"] for p in self._container["ports"]}
        if ports != wanted:
            self._fault(f"the container's ports are {ports}, those of the flags {wanted}")
        for service in self._all("Service"):
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in wanted or port["port"] != wanted[port["targetPort"]]:
                    self._fault(f"Service {service['metadata']['name']}: {port['port']} to "
                                f"{port['targetPort']} is none of {wanted}")
        if not any(s["spec"].get("clusterIP") == "None" for s in self._all("Service")):
            self._fault("there is no headless Service for clients that balance by themselves")
        for policy in self._all("NetworkPolicy"):
            rules = policy["spec"]
            used = {p["port"] for rule in rules.get("ingress", []) for p in rule["ports"]}
            if "Ingress" in rules["policyTypes"] and used != set(wanted):
                self._fault(f"NetworkPolicy: lets in to {sorted(used)}, not to {sorted(wanted)}")
        for monitor in self._all("PodMonitor"):
            if {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} != {"metrics"}:
                self._fault("PodMonitor: does not scrape the port metrics")
        for pool in self._all("InferencePool"):
            if [p["number"] for p in pool["spec"]["targetPorts"]] != [wanted["grpc"]]:
                self._fault("InferencePool: targetPorts are not the gRPC port")

    def ways_out(self) -> None:
        """Where policies hold the pods, what they let out is names and the collector of traces."""
        policies = [p["spec"] for p in self._all("NetworkPolicy") if "Egress" in p["spec"]["policyTypes"]]
        ports = {port["port"] for policy in policies for rule in policy["egress"] for port in rule["ports"]}
        endpoint = self._flags.get("otlp_endpoint", "")
        wanted = {53, int(endpoint.rstrip("/").rpartition(":")[2])} if endpoint else set()
        if policies and ports != wanted:
            self._fault(f"NetworkPolicy: lets out to {sorted(ports)}, not to {sorted(wanted)}, which "
                        f"--otlp_endpoint={endpoint} needs")

    def probes(self) -> None:
        services = {"startupProbe": READY, "readinessProbe": READY, "livenessProbe": "liveness"}
        for probe, service in services.items():
            grpc = self._container.get(probe, {}).get("grpc", {})
            if grpc.get("port") != self._port("listen"):
                self._fault(f"{probe}: does not ask the port of --listen over gRPC")
            if grpc.get("service") != service or service not in facts.health_names():
                self._fault(f"{probe}: asks for {grpc.get('service')!r}; it should be {service!r}, and "
                            f"the server knows {sorted(facts.health_names())}")

    def _check_selector(self, what: str, selector: dict[str, str]) -> None:
        if not selector or not selector.items() <= self._labels.items():
            self._fault(f"{what}: selects {selector}, the pods have {self._labels}")

    def selectors(self) -> None:
        self._check_selector("Deployment", self._deployment["spec"]["selector"]["matchLabels"])
        for service in self._all("Service"):
            self._check_selector(f"Service {service['metadata']['name']}", service["spec"]["selector"])
        for kind in ("PodDisruptionBudget", "PodMonitor", "InferencePool"):
            for thing in self._all(kind):
                self._check_selector(kind, thing["spec"]["selector"]["matchLabels"])
        for policy in self._all("NetworkPolicy"):
            self._check_selector("NetworkPolicy", policy["spec"]["podSelector"]["matchLabels"])
        for spread in self._pod["topologySpreadConstraints"]:
            self._check_selector("topologySpreadConstraints", spread["labelSelector"]["matchLabels"])

    def _time(self, flag: str) -> float:
        return facts.seconds(self._flags.get(flag) or facts.flags()[flag].default)

    def times(self) -> None:
        pre_stop = self._container["lifecycle"]["preStop"]["sleep"]["seconds"]
        need = pre_stop + self._time("drain_delay") + self._time("drain_timeout") + SPARE_SECONDS
        grace = self._pod.get("terminationGracePeriodSeconds", 30)
        if grace < need:
            self._fault(f"terminationGracePeriodSeconds is {grace}, but preStop + drain_delay + "
                        f"drain_timeout + {SPARE_SECONDS} = {need:.0f}")
        startup = self._container["startupProbe"]
        loading = startup["periodSeconds"] * startup["failureThreshold"]
        if self._deployment["spec"]["progressDeadlineSeconds"] <= loading:
            self._fault(f"progressDeadlineSeconds is not above the {loading} s that loading may take")
        if self._time("max_connection_age_grace") < self._time("max_request_time"):
            self._fault("max_connection_age_grace is under max_request_time: the server will not start")

    def security(self) -> None:
        pod, container = self._pod["securityContext"], self._container["securityContext"]
        wanted = (pod.get("runAsNonRoot") is True, pod.get("runAsUser") == 65532,
                  pod.get("seccompProfile") == {"type": "RuntimeDefault"},
                  container.get("allowPrivilegeEscalation") is False,
                  container.get("readOnlyRootFilesystem") is True,
                  container.get("capabilities") == {"drop": ["ALL"]},
                  self._pod.get("automountServiceAccountToken") is False,
                  self._pod.get("enableServiceLinks") is False)
        if not all(wanted):
            self._fault("the security context is not that of the Pod Security Standard `restricted` "
                        "with a read-only root, or tokens or service links are mounted")
        accounts = {a["metadata"]["name"] for a in self._all("ServiceAccount")}
        if self._pod["serviceAccountName"] not in accounts:
            self._fault(f"there is no ServiceAccount {self._pod['serviceAccountName']}")

    def model(self) -> None:
        mounts = {m["name"]: m for m in self._container["volumeMounts"]}
        volumes = {v["name"]: v for v in self._pod["volumes"]}
        if set(mounts) != set(volumes):
            self._fault(f"mounts {sorted(mounts)}, volumes {sorted(volumes)}")
        mount = mounts["model"]
        if mount["mountPath"] != self._flags.get("model_dir") or not mount.get("readOnly"):
            self._fault("the model is not mounted read-only where --model_dir says")
        claims = {c["metadata"]["name"] for c in self._all("PersistentVolumeClaim")}
        claim = volumes["model"].get("persistentVolumeClaim")
        if claim and claims and claim["claimName"] not in claims:
            self._fault(f"the model's claim {claim['claimName']} is none of {sorted(claims)}")

    def image(self) -> None:
        for reference in [self._container["image"]] + [v["image"]["reference"] for v in
                                                       self._pod["volumes"] if "image" in v]:
            tag = reference.partition(":")[2]
            if not tag or tag == "latest":
                self._fault(f"the image {reference} names no version")
        if not self._where.startswith("overlays/"):
            return
        device = self._flags.get("device")
        wanted = f"{facts.version()}-{device}"
        if self._container["image"].partition(":")[2] != wanted:
            self._fault(f"the image is {self._container['image']}; for this version and --device the "
                        f"tag is {wanted}")
        gpus = [self._container["resources"].get(kind, {}).get("nvidia.com/gpu")
                for kind in ("requests", "limits")]
        if (device == "cuda") != (gpus == [1, 1]):
            self._fault(f"--device={device}, but GPUs in requests and limits are {gpus}")

    def scaling(self) -> None:
        scalers = self._all("ScaledObject") + self._all("HorizontalPodAutoscaler")
        if len(scalers) > 1:
            self._fault("two scalers scale one Deployment")
        if bool(scalers) == ("replicas" in self._deployment["spec"]):
            self._fault("replicas: either the Deployment or a scaler says how many")
        for scaler in scalers:
            if scaler["spec"]["scaleTargetRef"]["name"] != self._deployment["metadata"]["name"]:
                self._fault(f"{scaler['kind']}: scales another Deployment")
        for metric in re.findall(r"\b(?:eddy|grpc_server)_\w+", json.dumps(
                [s["spec"].get("triggers") or s["spec"].get("metrics") for s in scalers])):
            if metric not in facts.metric_names():
                self._fault(f"scales on {metric}, which the server does not register")
        for trigger in (t for s in self._all("ScaledObject") for t in s["spec"]["triggers"]):
            namespace = self._deployment["metadata"].get("namespace")
            if f'namespace="{namespace}"' not in trigger["metadata"]["query"]:
                self._fault(f"ScaledObject: {trigger['metadata']['query']} is not about {namespace}")

    def monitoring(self) -> None:
        monitoring = ROOT / "deploy" / "monitoring"
        for rule in self._all("PrometheusRule"):
            if rule["spec"] != yaml.safe_load((monitoring / "rules.yaml").read_text()):
                self._fault("the PrometheusRule is not deploy/monitoring/rules.yaml; "
                            "make_prometheusrule.py writes it")
        for monitor in self._all("PodMonitor"):
            job = self._labels.get(monitor["spec"]["jobLabel"])
            if job != "eddy":
                self._fault(f"PodMonitor: the job would be {job!r}, the rules ask for eddy")
            dashboards = [m for m in self._all("ConfigMap")
                          if m["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
            text = (monitoring / "dashboard.json").read_text()
            if [m["data"] for m in dashboards] != [{"eddy.json": text}]:
                self._fault("the ConfigMap for Grafana is not deploy/monitoring/dashboard.json")

    def namespaces(self) -> None:
        if self._where.startswith("overlays/"):
            wanted = self._one("Namespace")["metadata"]["name"]
            for thing in self._objects:
                if thing["kind"] != "Namespace" and thing["metadata"].get("namespace") != wanted:
                    self._fault(f"{thing['kind']} {thing['metadata']['name']}: is not in {wanted}")


def check_client_config() -> list[str]:
    where = "client-service-config.json"
    config = json.loads((FOLDER / where).read_text())
    faults = []
    if config["healthCheckConfig"]["serviceName"] not in facts.health_names():
        faults.append(f"{where}: the server has no health service of that name")
    if config["loadBalancingConfig"] != [{"round_robin": {}}]:
        faults.append(f"{where}: the balancer is not round_robin, which health checking needs")
    limit = facts.seconds(facts.flags()["max_request_time"].default)
    protos = (ROOT / "proto/eddy/v1/generation.proto").read_text()
    for method in config["methodConfig"]:
        if facts.seconds(method["timeout"]) != limit:
            faults.append(f"{where}: the timeout {method['timeout']} is not max_request_time, {limit:.0f}s")
        for name in method["name"]:
            if f"service {name['service'].rpartition('.')[2]} {{" not in protos:
                faults.append(f"{where}: there is no service {name['service']}")
    return faults


def check_fill_pod(claim: str) -> list[str]:
    where = "model-fill.yaml"
    pod = yaml.safe_load((FOLDER / where).read_text())
    faults = []
    for version in (OLDEST, NEWEST):
        try:
            kubernetes_validate.validate(pod, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            faults.append(f"{where}, Kubernetes {version}: {error.message[:200]}")
    if pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] != claim:
        faults.append(f"{where}: does not mount the claim {claim}")
    return faults


def main() -> int:
    faults = check_client_config() + check_fill_pod("eddy-model")
    rendered = render_all()
    for where, objects in rendered.items():
        checker = Checker(where, objects)
        checker.run()
        faults += checker.faults
    count = sum(len(o) for o in rendered.values())
    print("\n".join(faults) if faults else
          f"k8s: {len(rendered)} renderings with {count} objects fit schemas, sources and each other")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
