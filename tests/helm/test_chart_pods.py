"""What every pod of the chart is held to, and what each component's pod must have."""

import copy
import re
from pathlib import Path

import pytest

from detector.serving.torchserve import SCORES_TIMEOUT_S
from ingest.kafka.sink import COMMIT_TIMEOUT_S
from ingest.sandbox.child import DECODE_TIMEOUT_S, MAX_DECODE_MEMORY_BYTES
from ingest.settings import IngestSettings

CHART = Path(__file__).parents[2] / "helm" / "forgewatch"
LONG_RUNNING = ("detector", "memory", "updater", "deploy")


def unrestricted(template):
    """What the profile "restricted" of the Pod Security Standards (Kubernetes 1.34) has against a pod."""
    spec, found = template["spec"], []
    pod = spec.get("securityContext", {})
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir"}
    allowed |= {"ephemeral", "persistentVolumeClaim", "projected", "secret"}
    found += [
        f"volume {each['name']}" for each in spec.get("volumes", []) if not set(each) - {"name"} <= allowed
    ]
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for each in [*spec.get("initContainers", []), *spec["containers"]]:
        own = each.get("securityContext", {})
        as_whole = pod | own
        wrong = {
            "privileged": own.get("privileged", False),
            "escalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities": own.get("capabilities") != {"drop": ["ALL"]},
            "root": as_whole.get("runAsNonRoot") is not True or as_whole.get("runAsUser") == 0,
            "seccomp": as_whole.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "ports": any("hostPort" in port for port in each.get("ports", [])),
            "proc": as_whole.get("procMount", "Default") != "Default",
            "sysctls": bool(pod.get("sysctls")),
        }
        found += [f"{each['name']}: {what}" for what, is_wrong in wrong.items() if is_wrong]
    return found


def test_each_pod_is_restricted(render, scenario):
    pods = render(scenario).pods()
    assert set(pods) == {*LONG_RUNNING, "run", "setup"}
    assert {component: unrestricted(template) for component, template in pods.items()} == {
        each: [] for each in pods
    }


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("securityContext", "runAsUser"), 0, "worker: root"),
        (("securityContext", "seccompProfile"), {}, "worker: seccomp"),
        (("hostNetwork",), True, "hostNetwork"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "worker: escalation"),
        (
            ("containers", 0, "securityContext", "capabilities"),
            {"drop": ["ALL"], "add": ["NET_RAW"]},
            "worker: capabilities",
        ),
        (("initContainers", 0, "securityContext"), {}, "torchserve: capabilities"),
        (("volumes", 0), {"name": "tmp", "hostPath": {"path": "/"}}, "volume tmp"),
    ],
)
def test_what_is_not_restricted_is_seen(render, path, value, complaint):
    template = copy.deepcopy(render().pods()["detector"])
    at = template["spec"]
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    assert complaint in unrestricted(template)


def test_each_container_has_an_unprivileged_user_a_read_only_root_and_a_temporary_folder(render, scenario):
    found = render(scenario)
    for component, template in found.pods().items():
        security = template["spec"]["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (65532,) * 3, component
        assert template["spec"]["enableServiceLinks"] is False, component
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        claims = found.one("StatefulSet", "memory")["spec"]["volumeClaimTemplates"]
        volumes |= {each["metadata"]["name"]: each for each in claims}
        for each in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
            assert each["securityContext"]["readOnlyRootFilesystem"] is True, each["name"]
            mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in each["volumeMounts"]}
            assert mounts["/tmp"]["emptyDir"]["sizeLimit"], each["name"]
            assert each["terminationMessagePolicy"] == "FallbackToLogsOnError"
        mounted = {mount["name"] for _, each in found.containers() for mount in each["volumeMounts"]}
        assert set(volumes) <= mounted


ANYBODY = {"runAsUser": 1000770000, "runAsGroup": 0, "fsGroup": 1000770000}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "user"),
    [
        (None, {}),
        ({"runAsUser": None, "runAsGroup": None, "fsGroup": None}, {"fsGroupChangePolicy": "OnRootMismatch"}),
        (ANYBODY, ANYBODY | {"fsGroupChangePolicy": "OnRootMismatch"}),
    ],
)
def test_the_user_may_be_left_to_the_cluster_and_each_pod_stays_restricted(render, scenario, given, user):
    for template in render(scenario, over={"podSecurityContext": given}).pods().values():
        has = template["spec"]["securityContext"]
        assert {key: has[key] for key in has if key not in ("runAsNonRoot", "seccompProfile")} == user
        assert unrestricted(template) == []


def test_the_page_says_what_the_pods_ask_for(render):
    found = render()
    asked = {name: each["resources"]["requests"] for name, each in found.containers()}
    copies = {"detector": 2, "memory": 1, "updater": 1, "deploy": 1}
    cores = memory = 0.0
    for name, requests in asked.items():
        count = copies.get(name.split("/")[0], 0)
        cores += count * (float(requests["cpu"].removesuffix("m")) / (1000 if "m" in requests["cpu"] else 1))
        unit = 1 if requests["memory"].endswith("Gi") else 1024
        memory += count * float(requests["memory"][:-2]) / unit
    run = asked["run/run"]
    page = " ".join((CHART / "README.md").read_text().split())
    assert f"{cores:.2f} cores and {memory:g} GiB" in page
    assert f"{run['cpu']} cores and {run['memory'][:-2]} GiB more" in page


def test_only_the_updater_gets_a_token_and_may_no_more_than_make_its_jobs(render, scenario):
    found = render(scenario)
    tokens = {
        name: template["spec"]["automountServiceAccountToken"] for name, template in found.pods().items()
    }
    assert tokens == dict.fromkeys(tokens, False) | {"updater": True}
    (role,) = found.of("Role")
    (bound,) = found.of("RoleBinding")
    account = found.pods()["updater"]["spec"]["serviceAccountName"]
    assert [subject["name"] for subject in bound["subjects"]] == [account]
    assert account not in [
        t["spec"]["serviceAccountName"] for name, t in found.pods().items() if name != "updater"
    ]
    allowed = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {("cronjobs", "get"), ("jobs", "create"), ("jobs", "list"), ("pods", "list")}
    assert role["rules"][0]["resourceNames"] == [found.one("CronJob", "run")["metadata"]["name"]]
    assert found.of("ClusterRole") == []


def test_each_image_has_a_tag_and_the_digest_where_one_is_given(render, scenario):
    digest = re.compile(r"@sha256:[0-9a-f]{64}$")
    for name, each in render(scenario).containers():
        image, has_digest = digest.subn("", each["image"])
        assert image.rpartition(":")[2] == "0.1.0", name
        assert bool(has_digest) == (scenario == "production"), name
        assert re.match(r"registry\.example(:5000)?/media/forgewatch/", image), name


@pytest.mark.parametrize("name", ["detector/worker", "memory/memory", "updater/updater", "deploy/deploy"])
def test_each_process_is_started_restarted_and_held_back_by_its_own_probes(render, name):
    container = render().container(name)
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "metrics"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/livez", "port": "metrics"}
    # A command, since the kubelet shows what that says.
    assert container["readinessProbe"]["exec"]["command"][-1] == f"http://127.0.0.1:{port}/readyz"


def test_each_process_and_run_has_requests_and_a_limit_of_memory(render, scenario):
    for name, each in render(scenario).containers():
        assert {"cpu", "memory", "ephemeral-storage"} <= set(each["resources"]["requests"]), name
        assert {"memory", "ephemeral-storage"} <= set(each["resources"]["limits"]), name


def test_torchserve_is_there_before_the_worker_and_until_after_it(render):
    (sidecar,) = render().pods()["detector"]["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("torchserve", "Always")
    assert sidecar["startupProbe"]["exec"]["command"][-1] == "http://127.0.0.1:8080/ping"
    own, worker = (
        {m["mountPath"]: m["name"] for m in each["volumeMounts"]}
        for each in (sidecar, render().container("detector/worker"))
    )
    for shared in ("/run/forgewatch", "/var/lib/forgewatch/model-store"):
        assert own[shared] == worker[shared]


@pytest.mark.parametrize(
    ("settings", "expected_s"),
    [
        ({}, 2 * (DECODE_TIMEOUT_S + SCORES_TIMEOUT_S) + 2 + COMMIT_TIMEOUT_S + 15),
        ({"detector": {"max_batch_duration_s": 7.5}}, 2 * (20 + 30) + 8 + 30 + 15),
    ],
)
def test_a_worker_has_as_long_to_end_as_its_batch_may_take(render, settings, expected_s):
    found = render(over={"settings": settings})
    assert found.pods()["detector"]["spec"]["terminationGracePeriodSeconds"] == expected_s


def test_detectors_are_spread_and_one_at_a_time_may_be_drained(render):
    found = render()
    spread = found.pods()["detector"]["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert found.one("PodDisruptionBudget", "detector")["spec"]["maxUnavailable"] == 1
    strategy = found.one("Deployment", "detector")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
    on_gpus = render("gpu").one("Deployment", "detector")["spec"]["strategy"]["rollingUpdate"]
    assert on_gpus == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }  # else the new pod waits for a GPU that the old one has


def test_gpus_are_asked_for_by_resource_and_runtime_class(render):
    found = render("gpu")
    assert found.container("detector/torchserve")["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert found.container("run/run")["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "nvidia.com/gpu" not in found.container("detector/worker")["resources"]["limits"]
    assert {name: t["spec"].get("runtimeClassName") for name, t in found.pods().items()} == dict.fromkeys(
        found.pods()
    ) | {"detector": "nvidia", "run": "nvidia"}
    (shared,) = [each for each in found.pods()["run"]["spec"]["volumes"] if each["name"] == "shared-memory"]
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_a_run_goes_on_after_an_eviction_and_not_after_a_wrong_setting(render):
    cron = render().one("CronJob", "run")["spec"]
    assert cron["suspend"] is True
    job = cron["jobTemplate"]["spec"]
    assert [(rule["action"], set(rule) - {"action"}) for rule in job["podFailurePolicy"]["rules"]] == [
        ("Ignore", {"onPodConditions"}),
        ("FailJob", {"onExitCodes"}),
    ]
    (work,) = [each for each in job["template"]["spec"]["volumes"] if each["name"] == "work"]
    assert "persistentVolumeClaim" in work
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_hook_migrates_and_creates_topics_before_any_new_pod_and_may_run_again(render):
    found = render("production")
    job = found.one("Job", "setup")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "before-hook-creation" in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert found.container("setup/migrate")["command"] == ["forgewatch", "migrate"]
    topics = "forgewatch topics --partitions 24 --replication 3"
    assert found.container("setup/topics")["command"] == topics.split()
    assert "setup" not in render(over={"setup": {"enabled": False}}).pods()


def mounted(template, path):
    """The volume that a pod's one container has at a path, and whether it may write to it."""
    spec = template["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == path]
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    return volume, not mount.get("readOnly", False)


def test_who_decodes_media_reads_the_folder_of_claim_checks(render):
    found = render(over={"claimCheck": {"existingClaim": "media"}})
    for component in ("detector", "memory"):
        template = found.pods()[component]
        variables = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        volume, writable = mounted(template, variables["FORGEWATCH_INGEST_CLAIM_CHECK_DIR"])
        assert volume["persistentVolumeClaim"] == {"claimName": "media", "readOnly": True}
        assert not writable
    for component in ("detector", "memory"):
        template = render().pods()[component]
        assert all("persistentVolumeClaim" not in volume for volume in template["spec"]["volumes"])


def test_who_decodes_media_has_memory_for_itself_and_a_decoder(render):
    decoders = IngestSettings().decode_processes * MAX_DECODE_MEMORY_BYTES
    for name in ("detector/worker", "memory/memory"):
        limit = render().container(name)["resources"]["limits"]["memory"]
        assert float(limit.removesuffix("Gi")) * 2**30 >= decoders + 3 * 2**30, name
    described = (CHART / "values.yaml").read_text()
    assert re.findall(r"decoders of (\w+ \w+)", described) == [f"{MAX_DECODE_MEMORY_BYTES >> 20} MiB"]


def test_the_temporary_folders_of_the_updater_are_as_large_as_the_values_say(render):
    sizes = {"updater": {"tmpSize": "3Gi", "run": {"tmpSize": "50Gi"}}}
    for found, updater, run in ((render(over=sizes), "3Gi", "50Gi"), (render(), "1Gi", "8Gi")):
        assert mounted(found.pods()["updater"], "/tmp")[0]["emptyDir"] == {"sizeLimit": updater}
        assert mounted(found.pods()["run"], "/tmp")[0]["emptyDir"] == {"sizeLimit": run}
    # What a pod's folders hold counts towards this limit, and a pod above it is evicted.
    limit = render().container("run/run")["resources"]["limits"]["ephemeral-storage"]
    assert int(limit.removesuffix("Gi")) > 8
