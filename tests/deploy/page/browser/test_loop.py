"""The whole loop in a browser, from unknown items to a live release: by mouse, by keys alone, without script.

The updater's own code takes the run, sends the candidate and ends the run. The training between takes minutes
and is left out: the artifact is one that no one could run.
"""

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import expect
from pydantic import SecretStr

from deploy.access.roles import Person, TokenRequest
from deploy.releases.standing import replay
from memory.labels import history
from updater.deploy_client import DeployClient
from updater.settings import UpdaterSettings

pytestmark = pytest.mark.slow


class ByMouse:
    """Whoever clicks. Needs no script."""

    script = True

    def __init__(self, page):
        self.page = page

    def press(self, wanted):
        wanted.click()

    def write(self, field, text):
        field.click()
        self.page.keyboard.type(text)

    def select(self, tiles):
        """Select the first tiles of a cluster."""
        for number in range(tiles):
            self.page.locator(".tiles input[name=ids]").nth(number).click()

    def split_off(self):
        self.press(self.page.get_by_role("button", name="Split off", exact=True))

    def call(self, family):
        """Give the cluster its name."""
        self.write(self.page.get_by_label("Apply label to"), family)
        self.press(self.page.get_by_role("button", name="Label", exact=True))


class WithoutScript(ByMouse):
    """Whoever clicks, in a browser that runs no script."""

    script = False


class ByKeys(ByMouse):
    """Whoever has no mouse: Tab, Enter, and the page's own keys."""

    def press(self, wanted):
        self._tab_to(wanted)
        self.page.keyboard.press("Enter")

    def write(self, field, text):
        self._tab_to(field)
        self.page.keyboard.type(text)

    def select(self, tiles):
        self.page.wait_for_load_state()  # the page's script has run
        for _ in range(tiles):
            self.page.keyboard.press("ArrowRight")
            self.page.keyboard.press("x")

    def split_off(self):
        self.page.keyboard.press("s")

    def call(self, family):
        self.page.keyboard.press("f")
        self.page.keyboard.type(family)
        self.page.keyboard.press("Enter")

    def _tab_to(self, wanted):
        expect(wanted).to_be_visible()
        for _ in range(200):
            if wanted.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {wanted}")


@pytest.mark.parametrize("way", [ByMouse, ByKeys, WithoutScript])
def test_unknown_items_become_a_live_release_that_a_second_person_approved(
    way, open_page, served, services, fill, make_artifact, candidate_of, monkeypatch
):
    root = Person("root", frozenset({"admin"}), "token")

    def token_of(name, role):
        return services.access.tokens.add(TokenRequest(name=name, role=role, days=1), root).token

    monkeypatch.setattr("memory.index.shared_index._PATIENCE_S", 60)  # a busy machine
    fill("two-families", 9)
    updater = UpdaterSettings(deploy_url=served, deploy_token=SecretStr(token_of("updater", "updater")))
    artifact = make_artifact()
    ann, bea = (way(open_page(java_script_enabled=way.script)) for _ in range(2))

    _enter(ann, token_of("ann", "approver"))
    _go(ann, "Review queue")
    ann.press(ann.page.locator(".cards a"))
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("9 items")
    ann.select(4)
    ann.split_off()
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("5 items")
    ann.call("resampled")
    ann.press(ann.page.locator(".cards a"))
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("4 items")
    ann.call("blended")
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("0 items need a label")
    assert sorted((entry.what, entry.exemplars, entry.actor) for entry in history(services.memory)) == [
        ("blended", 4, "ann"),
        ("resampled", 5, "ann"),
    ]

    _go(ann, "Updates")
    ann.press(ann.page.get_by_role("button", name="Train a new model"))
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("Update 1 queued")
    _carry_out(services, updater, artifact, candidate_of(artifact))
    _look_at_release(ann, artifact)
    expect(ann.page.locator("main")).to_contain_text("ann asked for the update that made release")
    expect(ann.page.get_by_role("button", name="Approve")).to_have_count(0)

    _enter(bea, token_of("bea", "approver"))
    _look_at_release(bea, artifact)
    expect(bea.page.get_by_role("heading", name="Checks", exact=True)).to_be_visible()
    bea.press(bea.page.get_by_role("button", name="Approve and take live"))
    expect(bea.page.get_by_role("heading", level=1)).to_contain_text("live")
    live = replay(services.ledger.events()).live
    assert (live.digest, live.actor, live.requested_by) == (artifact.digest, "bea", "ann")


def _enter(visitor, token):
    visitor.page.goto("/")
    visitor.write(visitor.page.get_by_label("Your token"), token)
    visitor.press(visitor.page.get_by_role("button", name="Sign in"))
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Overview")


def _go(visitor, view):
    visitor.press(visitor.page.get_by_role("navigation", name="Views").get_by_role("link", name=view))


def _look_at_release(visitor, artifact):
    _go(visitor, "Releases")
    visitor.press(visitor.page.get_by_role("link", name=artifact.version))


def _carry_out(services, settings, artifact, made):
    """Take the run, send the candidate, and end the run, as the updater does."""
    lease = services.runs.claim("runner")
    assert lease is not None
    with DeployClient(settings) as deploy:
        deploy.put(artifact)
        deploy.propose(made)
    services.runs.finish(lease, "proposed", candidate=artifact.digest)
