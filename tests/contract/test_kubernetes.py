"""deploy/kubernetes: what kustomize makes of it is valid, and fits the service and its image."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Final

import jsonschema
import pytest
import yaml

from service.processes.envoy_server import STOP_SECONDS
from service.settings import PREFIX, Settings
from tests.in_process import in_process
from tests.integration.conftest import RUL
from tests.manifests import FOLDER, OVERLAYS, PAGE, Document, named, of_kind, render, validate
from tests.observability import recording_rules, selectors
from tests.programs import ROOT, output_of, program

DOCKERFILE: Final = (ROOT / "service" / "Dockerfile").read_text("utf-8")
ADAPTER: Final = FOLDER / "components" / "hpa" / "prometheus-adapter.yaml"
VERSIONS: Final = ("1.30", "1.37")
"""The oldest and the newest Kubernetes that docs/kubernetes.md names."""
KSERVES_OWN: Final = {"PROTOCOL"}
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
SPARE_SECONDS: Final = STOP_SECONDS + 1

pytestmark = pytest.mark.system
every_rendering = pytest.mark.parametrize("name", [*OVERLAYS, "kserve", "docs"])
every_deployment = pytest.mark.parametrize("name", [*OVERLAYS, "docs"])


@pytest.fixture(scope="module")
def renderings(tmp_path_factory) -> dict[str, list[Document]]:
    return render(tmp_path_factory.mktemp("manifests"))


def block_with(words: str) -> str:
    """The commands of the page that have these words."""
    (block,) = (text for text in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if words in text)
    return block


@pytest.fixture(scope="module")
def secrets(tmp_path_factory) -> dict[str, Document]:
    """The data of the Secrets that the commands of the page make, by name."""
    dry = f'{program("kubectl")} "$@" --dry-run=client -o yaml'
    kubectl = f"kubectl() {{ [ $3 != create ] || {dry}; echo ---; }}"
    text = f'{kubectl}\nrul() {{ {quote(RUL)} "$@"; }}\n{block_with("create namespace")}'
    made = yaml.safe_load_all(output_of("bash", "-euc", text, cwd=tmp_path_factory.mktemp("keys")))
    return {one["metadata"]["name"]: one["data"] for one in made if one}


@pytest.fixture(scope="module")
def rules(tmp_path_factory) -> list[Document]:
    """Manifests that the commands of the page apply for the Prometheus Operator."""
    out = tmp_path_factory.mktemp("rules") / "rules.yaml"
    kubectl = f'kubectl() {{ if [ "$3" = apply ]; then cat; echo ---; fi >> {out}; }}'
    output_of("bash", "-euc", f"{kubectl}\n{block_with('PrometheusRule')}", cwd=ROOT)
    return [one for one in yaml.safe_load_all(out.read_text("utf-8")) if one]


@pytest.fixture
def documents(name, renderings) -> list[Document]:
    """The documents of one rendering."""
    return renderings[name]


@pytest.fixture
def pod(documents) -> Document:
    """The pod that a rendering runs: of its Deployment, or of KServe's."""
    for document in documents:
        if document["kind"] == "Deployment":
            return document["spec"]["template"]["spec"]
        if document["kind"] == "InferenceService":
            return document["spec"]["predictor"]
    raise AssertionError("no pod")


@pytest.fixture
def container(pod) -> Document:
    (only,) = pod["containers"]
    return only


@pytest.fixture
def environment(documents, container) -> dict[str, str]:
    """The environment of the container; a value from a Secret is empty."""
    found = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
    names = {source["configMapRef"]["name"] for source in container.get("envFrom", [])}
    for config in of_kind(documents, "ConfigMap"):
        if config["metadata"]["name"] in names:
            names.remove(config["metadata"]["name"])
            found = config["data"] | found
    assert not names, "a ConfigMap is named that is not rendered"
    return found


@pytest.fixture
def settings(environment, no_settings, monkeypatch) -> Settings:
    """The settings as the service in the container reads them."""
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return Settings.read()


@pytest.mark.parametrize("version", VERSIONS)
@every_rendering
def test_every_document_is_valid(documents, version):
    for document in documents:
        validate(document, version)


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("cpu", "Deployment", ["spec", "template", "spec", "containers", 0]),
        ("cpu", "Service", ["spec"]),
        ("cpu", "NetworkPolicy", ["spec", "ingress", 0]),
        ("cpu", "PodDisruptionBudget", ["spec"]),
        ("hpa", "HorizontalPodAutoscaler", ["spec", "metrics", 0, "pods"]),
        ("hpa", "ServiceMonitor", ["spec", "endpoints", 0, "authorization", "credentials"]),
        ("keda", "ScaledObject", ["spec", "triggers", 0, "metadata"]),
        ("kserve", "InferenceService", ["spec", "predictor"]),
        ("kserve", "InferenceService", ["spec", "predictor", "containers", 0, "startupProbe"]),
    ],
)
def test_a_field_with_a_typo_is_refused(documents, kind, place):
    document = yaml.safe_load(yaml.safe_dump(of_kind(documents, kind)[0]))
    part = document
    for step in place:
        part = part[step]
    part["tpyo"] = "1"

    with pytest.raises(jsonschema.ValidationError, match="'tpyo' was unexpected"):
        validate(document, VERSIONS[-1])


@every_rendering
def test_each_object_has_a_name_of_its_own_in_one_namespace(documents):
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]

    assert len(set(names)) == len(names)
    assert {document["metadata"]["namespace"] for document in documents} == {"rulserve"}


@every_rendering
def test_every_variable_is_a_setting_with_a_value_that_it_takes(environment, settings):
    known = {PREFIX + field.upper() for field in Settings.model_fields}

    assert environment.keys() - KSERVES_OWN <= known


@every_rendering
async def test_probes_ask_routes_that_need_no_key(container):
    paths = {container[probe]["httpGet"]["path"] for probe in PROBES}

    async with in_process(keys=["k"]) as service:
        answers = {path: (await service.http.get(path)).status_code for path in paths}

    assert set(answers.values()) == {200}
    assert len(answers) == 2


@every_rendering
def test_probes_and_services_lead_to_the_port_that_the_image_serves(documents, container):
    (port,) = container["ports"]
    asked = {container[probe]["httpGet"]["port"] for probe in PROBES}
    services = {
        entry["targetPort"] for one in of_kind(documents, "Service") for entry in one["spec"]["ports"]
    }

    assert f"\nEXPOSE {port['containerPort']}\n" in DOCKERFILE
    assert asked | services <= {port["name"], port["containerPort"]}


@every_rendering
def test_a_pod_has_no_rights_to_spare(pod, container):
    user = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}

    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in DOCKERFILE
    assert user.items() <= pod["securityContext"].items()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@every_rendering
def test_a_pod_gets_no_token_and_no_variables_of_other_services(documents, pod):
    key = "automountServiceAccountToken"
    deciding = [pod] if key in pod else of_kind(documents, "ServiceAccount")  # the pod overrides its account

    assert [one.get(key) for one in deciding] == [False]
    assert pod["enableServiceLinks"] is False


@every_rendering
def test_the_folder_that_the_image_writes_to_is_writable(pod, container):
    (mount,) = (one for one in container["volumeMounts"] if not one.get("readOnly"))
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])

    assert f" HOME={mount['mountPath']} " in DOCKERFILE
    assert "emptyDir" in volume


@every_rendering
def test_the_key_file_is_mounted_for_the_user_of_the_pod(pod, container, settings):
    (mount,) = (one for one in container["volumeMounts"] if one.get("readOnly"))
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])

    assert Path(settings.keys_file).parent == Path(mount["mountPath"])
    assert volume["secret"] == {"secretName": "rulserve-keys", "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


@every_rendering
def test_every_secret_that_is_named_is_made_on_the_page(documents, secrets):
    text = yaml.safe_dump_all(documents)
    named = re.findall(r"secretName: (\S+)|(?:credentials|secretKeyRef):\n +key: (\S+)\n +name: (\S+)", text)

    assert named
    for volume, key, name in named:
        assert (key or "keys.toml") in secrets[volume or name]


@every_rendering
def test_the_grace_period_is_longer_than_lame_duck_and_drain(pod, settings):
    drain = max(settings.drain_seconds, settings.request_timeout_seconds)

    assert pod["terminationGracePeriodSeconds"] >= settings.lame_duck_seconds + drain + SPARE_SECONDS


@every_rendering
def test_a_pod_answers_until_its_failed_readiness_is_noticed(container, settings):
    probe = container["readinessProbe"]

    assert settings.lame_duck_seconds >= probe["periodSeconds"] * probe["failureThreshold"]


@every_rendering
def test_cores_are_limited_to_what_is_requested(container):
    resources = container["resources"]

    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_the_commands_of_the_page_load_every_rule(rules):
    files = {f"rulserve-{path.stem}": path for path in (ROOT / "observability" / "rules").glob("*.yml")}

    assert {one["metadata"]["name"]: one["spec"] for one in rules} == {
        name: yaml.safe_load(path.read_text("utf-8")) for name, path in files.items()
    }
    assert {one["kind"] for one in rules} == {"PrometheusRule"}


@every_deployment
def test_a_rollout_ends_no_pod_before_its_successor_is_ready(documents):
    strategy = named(documents, "Deployment", "rulserve")["spec"]["strategy"]

    assert strategy == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@every_deployment
def test_replicas_are_set_where_no_autoscaler_owns_them(documents):
    scaled = of_kind(documents, "HorizontalPodAutoscaler") + of_kind(documents, "ScaledObject")
    replicas = named(documents, "Deployment", "rulserve")["spec"].get("replicas")

    assert replicas == (None if scaled else 2)
    for one in scaled:
        assert one["spec"]["scaleTargetRef"]["name"] == "rulserve"


@every_deployment
def test_every_selector_selects_the_pods(documents):
    deployment = named(documents, "Deployment", "rulserve")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    found = [deployment["selector"], spread["labelSelector"]]
    found += [one["spec"]["selector"] for one in of_kind(documents, "PodDisruptionBudget")]
    found += [one["spec"]["podSelector"] for one in of_kind(documents, "NetworkPolicy")]

    assert [selector["matchLabels"] for selector in found] == [labels] * len(found)
    assert [one["spec"]["selector"] for one in of_kind(documents, "Service")] == [labels] * 2


@pytest.mark.parametrize("name", ["hpa", "keda", "docs"])
def test_prometheus_scrapes_one_service_as_the_job_of_rules_and_dashboards(documents):
    (monitor,) = of_kind(documents, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["endpoints"]

    (scraped,) = (one for one in of_kind(documents, "Service") if one["metadata"].get("labels") == wanted)

    assert endpoint["port"] in {port["name"] for port in scraped["spec"]["ports"]}
    assert f'job="{scraped["metadata"]["name"]}"' in "".join(recording_rules().values())


@pytest.mark.parametrize("name", ["cpu"])
def test_grpc_clients_see_each_pod(documents):
    headless = named(documents, "Service", "rulserve-grpc")["spec"]

    assert headless["clusterIP"] == "None"
    assert f"dns:///rulserve-grpc.rulserve:{headless['ports'][0]['port']}" in PAGE


def test_both_autoscalers_hold_the_same_requests_in_flight_a_pod(renderings):
    (hpa,) = of_kind(renderings["hpa"], "HorizontalPodAutoscaler")
    (keda,) = of_kind(renderings["keda"], "ScaledObject")
    (metric,) = (one["pods"] for one in hpa["spec"]["metrics"])
    (trigger,) = (one["metadata"] for one in keda["spec"]["triggers"])
    (rule,) = yaml.safe_load(ADAPTER.read_text("utf-8"))["rules"]["custom"]

    assert metric["target"]["averageValue"] == trigger["threshold"]
    assert hpa["spec"]["minReplicas"] == keda["spec"]["minReplicaCount"]
    assert hpa["spec"]["maxReplicas"] == keda["spec"]["maxReplicaCount"]
    read = {text.partition("{")[0] for text in selectors(trigger["query"] + rule["seriesQuery"])}
    assert read == {metric["metric"]["name"]}
    assert f"\n## {metric['metric']['name']}\n" in (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert '{namespace="rulserve",job="rulserve"}' in trigger["query"]


def test_prometheus_can_read_the_queries_of_both_autoscalers(renderings, tmp_path):
    (keda,) = of_kind(renderings["keda"], "ScaledObject")
    (rule,) = yaml.safe_load(ADAPTER.read_text("utf-8"))["rules"]["custom"]
    filled_in = {"Series": "rul_inflight_requests", "LabelMatchers": 'namespace="rulserve"', "GroupBy": "pod"}
    adapters = re.sub(r"<<\.(\w+)>>", lambda found: filled_in[found[1]], rule["metricsQuery"])
    queries = [keda["spec"]["triggers"][0]["metadata"]["query"], rule["seriesQuery"], adapters]
    rules = [{"record": f"a:query:{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")

    assert "SUCCESS: 3 rules found" in output_of(program("promtool"), "check", "rules", file)


@pytest.mark.parametrize("name", ["gpu", "docs"])
def test_a_pod_with_a_gpu_runs_the_image_for_it_and_refuses_to_run_without(container, settings):
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["image"].endswith(":gpu")
    assert settings.provider == "cuda"


@pytest.mark.parametrize("name", ["cpu", "docs"])
def test_replicas_store_nothing_unless_they_share_a_database(documents, container, settings):
    addresses = [one for one in container.get("env", []) if one["name"] == "RUL_STORE_URL"]
    ports = {
        port["port"]
        for policy in of_kind(documents, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for port in rule["ports"]
    }

    assert settings.store is bool(addresses)
    assert (5432 in ports) is bool(addresses)
    assert ports <= {53, 4318, 5432}


@pytest.mark.parametrize("name", ["kserve"])
def test_kserve_serves_the_model_that_it_is_named_for(documents, settings):
    (service,) = of_kind(documents, "InferenceService")

    assert settings.bundles == (service["metadata"]["name"],)
    assert f"/v2/models/{settings.bundles[0]}/infer" in PAGE
