"""Each process gets an environment that its settings classes take, in every scenario, with any setting."""

import json
from pathlib import Path

import pytest
import yaml

from deploy.environment import SETTINGS
from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest import NO_TELEMETRY
from ingest.process.frame import ProcessSettings, find_problems
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

READ = {
    "detector/torchserve": (IngestSettings, DetectorSettings),
    "detector/worker": (IngestSettings, DetectorSettings),
    "memory/memory": (IngestSettings, MemorySettings),
    "updater/updater": (MemorySettings, UpdaterSettings),
    "run/run": (MemorySettings, UpdaterSettings),
    "deploy/deploy": SETTINGS,
    "setup/migrate": SETTINGS,
    "setup/topics": (IngestSettings,),
}
SECRET = "postgresql://user:password@host/name"
WEBHOOKS = {
    "FORGEWATCH_DEPLOY_WEBHOOKS": '[{"url": "https://hooks.example/x"}]',
    "FORGEWATCH_DEPLOY_WEBHOOK_SECRET": "whsec_" + "A" * 43 + "=",
}
PROCESSORS = "3"


def environment(container):
    """What the container's variables are, with what a Secret may hold for those that come from one."""
    return {
        each["name"]: PROCESSORS
        if is_resource(each)
        else each.get("value", WEBHOOKS.get(each["name"], SECRET))
        for each in container["env"]
    }


def is_resource(variable):
    """Whether a variable is the container's own share of the node."""
    return "resourceFieldRef" in variable.get("valueFrom", {})


@pytest.fixture
def find(monkeypatch):

    def find(name, container):
        with monkeypatch.context() as patch:
            for variable, value in environment(container).items():
                patch.setenv(variable, value)
            found = find_problems((ProcessSettings, *READ[name]))
            return [str(problem) for problem in found]

    return find


def test_each_process_takes_the_environment_it_gets(render, find, scenario):
    found = dict(render(scenario).containers())
    assert set(found) == set(READ)
    assert {name: find(name, each) for name, each in found.items()} == {name: [] for name in found}


def test_a_variable_that_is_no_setting_would_be_seen(render, find):
    container = render().container("detector/worker")
    wrong = container | {"env": [*container["env"], {"name": "FORGEWATCH_DETECTOR_SPEED", "value": "11"}]}
    assert [problem.partition(":")[0] for problem in find("detector/worker", wrong)] == [
        "FORGEWATCH_DETECTOR_SPEED"
    ]


def test_no_variable_is_given_twice(render, scenario):
    for name, each in render(scenario).containers():
        names = [variable["name"] for variable in each["env"]]
        assert len(names) == len(set(names)), name


def test_no_container_s_libraries_report_to_their_makers(render, scenario):
    for name, each in render(scenario).containers():
        assert NO_TELEMETRY.items() <= environment(each).items(), name


def sample(name, field):
    """A value that a setting takes and that is not its default."""
    if "enum" in field:
        return field["enum"][-1]
    kind = field["type"]
    if kind == "boolean":
        return True
    if kind in ("integer", "number"):
        least = max(field.get("minimum", 0), field.get("exclusiveMinimum", 0))
        return least + (1_048_576 if "bytes" in name else 1 if kind == "integer" else 0.25)
    if kind == "array":
        return ["10.0.0.0/8"] if name.endswith("addresses") else ["upsampled"]
    if kind == "object" and "enum" in field.get("additionalProperties", {}):
        return {"other": field["additionalProperties"]["enum"][-1]}
    if kind == "object":
        return {"other": "http://127.0.0.1:1/metrics"}
    given = {"schedule": "0 3 * * *", "plan": "50,10,100", "schedule_timezone": "Asia/Tokyo"}
    return given.get(name, "http://127.0.0.1:1234" if name.endswith("url") else "other")


def test_each_setting_can_be_given_and_arrives_as_it_was_given(render, chart, find):
    rooms = json.loads((chart.path / "values.schema.json").read_text())["properties"]["settings"][
        "properties"
    ]
    given = {
        room: {name: sample(name, field) for name, field in part["properties"].items()}
        for room, part in rooms.items()
    }
    found = render(over={"settings": given})
    for name, kinds in READ.items():
        container = found.container(name)
        assert find(name, container) == [], name
        has = environment(container)
        # Of the rooms' settings it needs where their databases are, and nothing else.
        for kind in (ProcessSettings, *(() if name == "setup/migrate" else kinds)):
            prefix = str(kind.model_config["env_prefix"])
            room = prefix.removeprefix("FORGEWATCH_").removesuffix("_").lower() or "process"
            for setting, value in given[room].items():
                arrived = has[f"{prefix}{setting.upper()}"]
                assert (arrived if isinstance(value, str) else json.loads(arrived)) == value


def test_the_hook_that_migrates_has_the_databases_and_the_one_of_topics_the_brokers(render, scenario):
    found = render(scenario)
    names = {name: set(environment(found.container(f"setup/{name}"))) for name in ("migrate", "topics")}
    process = {name for name in environment(found.container("detector/worker")) if is_of_process(name)}
    databases = {f"FORGEWATCH_{room}_DATABASE_URL" for room in ("MEMORY", "UPDATER", "DEPLOY")}
    assert names["migrate"] - process == databases
    assert names["topics"] >= process
    assert all(name.startswith("FORGEWATCH_INGEST_") for name in names["topics"] - process)
    mounts = {
        name: {each["mountPath"] for each in found.container(f"setup/{name}")["volumeMounts"]}
        for name in names
    }
    assert mounts["migrate"] <= {"/tmp", "/etc/forgewatch/database"}
    assert mounts["topics"] <= {"/tmp", "/etc/forgewatch/kafka"}


def is_of_process(name):
    """Whether a variable is every process's: its log and its metrics, and what `env` gives to all."""
    return not name.startswith(("FORGEWATCH_INGEST_", "FORGEWATCH_DETECTOR_", "AWS_", "POD_NAME"))


def test_secrets_come_from_secrets_alone(render, scenario):
    found = render(scenario)
    for name, each in found.containers():
        for variable in each["env"]:
            secret = variable["name"].endswith(
                ("USERNAME", "PASSWORD", "TOKEN", "DATABASE_URL", "ACCESS_KEY", "ACCESS_KEY_ID")
            )
            secret |= variable["name"] in WEBHOOKS
            assert secret == ("secretKeyRef" in variable.get("valueFrom", {})), f"{name}: {variable['name']}"


def test_torchserve_which_runs_what_an_artifact_brings_gets_no_secret(render, scenario):
    sidecar = render(scenario).container("detector/torchserve")
    assert [each["name"] for each in sidecar["env"] if "valueFrom" in each and not is_resource(each)] == []
    assert not any("etc" in mount["mountPath"] for mount in sidecar["volumeMounts"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "place", "setting"),
    [
        ("detector/torchserve", ("detector", "torchserve"), ("detector", "model_threads")),
        ("run/run", ("updater", "run"), ("updater", "threads")),
    ],
)
@pytest.mark.parametrize(
    ("processors", "expected"),
    [
        ({}, "requests.cpu"),
        ({"limits": {"cpu": "3500m"}}, "limits.cpu"),
        ({"limits": {"cpu": "0"}}, "requests.cpu"),  # none, to Kubernetes
        ({"requests": {"cpu": None}}, None),
    ],
)
def test_threads_are_the_containers_processors(render, container, place, setting, processors, expected):
    name = "_".join(("FORGEWATCH", *setting)).upper()
    over = {place[0]: {place[1]: {"resources": processors}}}
    variables = {each["name"]: each for each in render(over=over).container(container)["env"]}
    reference = {"resource": expected, "divisor": "1"}
    assert variables.get(name) == (
        {"name": name, "valueFrom": {"resourceFieldRef": reference}} if expected else None
    )
    over["settings"] = {setting[0]: {setting[1]: 7}}
    assert {"name": name, "value": "7"} in render(over=over).container(container)["env"]


def test_processes_that_share_a_runs_processors_do_not_each_take_all(render):
    assert not any(is_resource(each) for each in render("gpu").container("run/run")["env"])


def test_a_worker_has_the_transactional_id_of_its_pod(render):
    for settings, group in (
        ({}, DetectorSettings().group_id),
        ({"detector": {"group_id": "other"}}, "other"),
    ):
        variables = render(over={"settings": settings}).container("detector/worker")["env"]
        by_name = {each["name"]: each for each in variables}
        assert by_name["FORGEWATCH_DETECTOR_TRANSACTIONAL_ID"]["value"] == f"{group}-$(POD_NAME)"
        # Kubernetes fills in only what is named before.
        names = list(by_name)
        assert names.index("POD_NAME") < names.index("FORGEWATCH_DETECTOR_TRANSACTIONAL_ID")
        assert by_name["POD_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_addresses_lead_to_services_of_the_release(render):
    found = render(over={"settings": {"memory": {"metrics_port": 9902}, "deploy": {"port": 8800}}})
    ports = {f"{each['metadata']['name']}:{each['spec']['ports'][0]['port']}" for each in found.of("Service")}
    has = environment(found.container("deploy/deploy"))
    health = json.loads(has["FORGEWATCH_DEPLOY_HEALTH_URLS"])
    assert set(health) == set(DeploySettings().health_urls)
    urls = [
        *health.values(),
        environment(found.container("detector/worker"))["FORGEWATCH_DETECTOR_DEPLOY_URL"],
    ]
    urls += [
        environment(found.container("run/run"))["FORGEWATCH_UPDATER_DEPLOY_URL"],
        has["FORGEWATCH_DEPLOY_URL"],
    ]
    assert {url.removeprefix("http://").removesuffix("/metrics") for url in urls} == ports
    assert found.container("memory/memory")["ports"][0]["containerPort"] == 9902


def test_the_job_template_is_the_cron_job_of_the_release(render):
    found = render()
    has = environment(found.container("updater/updater"))
    assert has["FORGEWATCH_UPDATER_JOB_TEMPLATE"] == found.one("CronJob", "run")["metadata"]["name"]
    assert has["FORGEWATCH_UPDATER_WORK_DIR"] in [
        m["mountPath"] for m in found.container("run/run")["volumeMounts"]
    ]


PATHS = """
detector/worker INGEST_SSL_CAFILE INGEST_SSL_CERTFILE INGEST_CLAIM_CHECK_DIR DETECTOR_MODEL_STORE_DIR
detector/worker DETECTOR_TRUSTED_SIGNERS DETECTOR_C2PA_TRUST_FILE
deploy/deploy DETECTOR_TRUSTED_SIGNERS INGEST_SSL_CAFILE DEPLOY_CACHE_DIR DEPLOY_WEBHOOK_CA
run/run DETECTOR_TRUSTED_SIGNERS UPDATER_SIGNING_KEY UPDATER_WORK_DIR
detector/torchserve DETECTOR_MODEL_STORE_DIR
memory/memory INGEST_SSL_KEYFILE MEMORY_INDEX_PATH
updater/updater UPDATER_WORK_DIR
setup/topics INGEST_SSL_CAFILE
"""


@pytest.mark.parametrize(
    ("name", "setting"),
    [(line.split()[0], setting) for line in PATHS.strip().splitlines() for setting in line.split()[1:]],
)
def test_each_path_that_a_process_is_told_of_is_mounted(render, name, setting):
    container = render("production", over={"kafka": {"clientCertificate": True}}).container(name)
    path = Path(environment(container)[f"FORGEWATCH_{setting}"])
    mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    assert any(mount in (path, *path.parents) for mount in mounts)


def test_who_speaks_to_the_store_trusts_the_authority_of_its_secret(render):
    found = render("existing-secrets")
    trusting = set()
    for name, container in found.containers():
        if path := environment(container).get("AWS_CA_BUNDLE"):
            trusting.add(name)
            (mount,) = [m for m in container["volumeMounts"] if Path(path).is_relative_to(m["mountPath"])]
            volumes = {each["name"]: each for each in found.pods()[name.split("/")[0]]["spec"]["volumes"]}
            secret = volumes[mount["name"]]["secret"]
            assert secret["secretName"] == "s3-keys"
            assert secret["items"] == [{"key": "ca.crt", "path": Path(path).name}]
    assert trusting == {"memory/memory", "updater/updater", "run/run", "deploy/deploy"}
    assert not any("AWS_CA_BUNDLE" in environment(each) for _, each in render().containers())


def test_no_pod_of_a_model_holds_the_admin_s_token_and_each_holds_its_own(render, scenario, chart):
    keys = yaml.safe_load(chart.values(scenario).read_text())["deployToken"]
    held = {}
    for name, each in render(scenario).containers():
        for variable in each["env"]:
            ref = variable.get("valueFrom", {}).get("secretKeyRef", {})
            if ref.get("name") == keys["secret"]:
                held.setdefault(ref["key"], set()).add(name)
    admin, detector, updater = (
        held[keys.get(name, "token")] for name in ("key", "detectorKey", "updaterKey")
    )
    assert admin == {"deploy/deploy"}
    assert detector == {"deploy/deploy", "detector/worker"}
    assert updater == {"deploy/deploy", "updater/updater", "run/run"}


def test_deploy_alone_holds_the_webhooks_and_what_notices_are_signed_with(render):
    containers = dict(render("production").containers())
    holding = {
        name for name, each in containers.items() if WEBHOOKS.keys() & {v["name"] for v in each["env"]}
    }
    assert holding == {"deploy/deploy"}
    assert WEBHOOKS.keys() <= {variable["name"] for variable in containers["deploy/deploy"]["env"]}


def test_releases_are_signed_by_default_and_a_training_run_alone_holds_the_key(render, scenario):
    found = render(scenario)
    held = {
        component: {item["key"] for item in volume["secret"]["items"]}
        for component, template in found.pods().items()
        for volume in template["spec"]["volumes"]
        if volume["name"] == "signing"
    }
    assert held == {"run": {"tls.crt", "tls.key"}, "detector": {"tls.crt"}, "deploy": {"tls.crt"}}
    holding = {
        name
        for name, each in found.containers()
        if "FORGEWATCH_UPDATER_SIGNING_KEY" in {variable["name"] for variable in each["env"]}
    }
    assert holding == {"run/run"}


def test_where_signing_is_off_no_process_is_told_of_keys(render):
    found = render(over={"signing": {"enabled": False, "secret": ""}})
    names = {variable["name"] for _, each in found.containers() for variable in each["env"]}
    assert not names & {"FORGEWATCH_UPDATER_SIGNING_KEY", "FORGEWATCH_DETECTOR_TRUSTED_SIGNERS"}
    mounts = {mount["name"] for _, each in found.containers() for mount in each["volumeMounts"]}
    assert "signing" not in mounts
