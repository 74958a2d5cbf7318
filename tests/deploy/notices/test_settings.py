"""A webhook that may not be is refused as the server starts, in one line that shows no URL."""

import json

import pytest

from deploy.settings import DeploySettings
from ingest.process.frame import find_problems

SECRET = "whsec_" + "A" * 43 + "="
URL = "https://hooks.example.com/services/T0/B0/topsecret"


def problems(
    monkeypatch: pytest.MonkeyPatch, webhooks: object, hosts: list[str], secret: str | None
) -> list[str]:
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOKS", json.dumps(webhooks))
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_HOSTS", json.dumps(hosts))
    if secret is not None:
        monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_SECRET", secret)
    return [str(problem) for problem in find_problems([DeploySettings])]


def test_webhooks_to_listed_hosts_are_taken_by_any_spelling(monkeypatch):
    webhooks = [{"url": URL.replace("hooks", "Hooks")}, {"url": "http://127.0.0.1:1/x", "form": "slack"}]
    assert problems(monkeypatch, webhooks, ["HOOKS.example.com", "127.0.0.1"], SECRET) == []
    settings = DeploySettings()
    assert [webhook.host for webhook in settings.webhooks] == ["hooks.example.com", "127.0.0.1"]
    assert "topsecret" not in repr(settings)
    assert "topsecret" not in str(settings.model_dump())


@pytest.mark.parametrize(
    ("webhooks", "hosts", "secret", "said"),
    [
        ([{"url": URL}], [], SECRET, "webhook 1 goes to hooks.example.com, which"),
        (
            [{"url": URL, "form": "slack"}],
            ["example.com"],
            None,
            "webhook 1 goes to hooks.example.com, which",
        ),
        (
            [{"url": "https://hooks.example.com@evil.test/topsecret"}],
            ["hooks.example.com"],
            SECRET,
            "to evil.test",
        ),
        ([{"url": "http://169.254.169.254/topsecret"}], ["hooks.example.com"], SECRET, "to 169.254.169.254"),
        ([{"url": "http://localhost/topsecret"}], ["hooks.example.com"], SECRET, "goes to localhost"),
        ([{"url": "http://[::1]/topsecret"}], ["hooks.example.com"], SECRET, "goes to ::1"),
        ([{"url": URL}], ["hooks.example.com"], None, "FORGEWATCH_DEPLOY_WEBHOOK_SECRET is needed"),
        ([{"url": URL}], ["hooks.example.com"], "whsec_dG9wc2VjcmV0", "of 24 to 64 random bytes"),
        ([{"url": URL}, {"url": URL}], ["hooks.example.com"], SECRET, "webhook 2 is there twice"),
        ([{"url": "file:///topsecret"}], [], SECRET, "at 0.url: a webhook's URL begins with"),
        ([{"url": "https://topsecret:x/"}], [], SECRET, "at 0.url: it is no URL"),
        ([{"url": URL, "form": "topsecret"}], ["hooks.example.com"], SECRET, "at 0.form: Input should be"),
        ([{"url": URL, "follow": True}], ["hooks.example.com"], SECRET, "at 0: Extra inputs"),
    ],
)
def test_what_may_not_be_is_refused_in_one_line(monkeypatch, webhooks, hosts, secret, said):
    (problem,) = problems(monkeypatch, webhooks, hosts, secret)
    assert said in problem
    assert "\n" not in problem
    assert not {"topsecret", "dG9wc2VjcmV0"} & set(problem.replace("/", " ").split())
    assert "topsecret" not in problem.replace("https://topsecret", "")
