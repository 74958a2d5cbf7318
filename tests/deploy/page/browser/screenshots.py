"""`make screenshots`: the page's views of a stack with the demonstration's media, as PNGs for the READMEs.

Nothing is posed. Release 0 answers a part of the demonstration's stream, its operator names the new family,
and an update proposes a release. Until that is live, fresh media of the same family wait for a name.
"""

import io
import shutil
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

from deploy.client.http import Client
from deploy.demo import plan
from deploy.demo.operator import ACTOR, Operator, Story, name_clusters
from deploy.demo.release_zero import SEED, up
from deploy.demo.run import alone
from deploy.demo.traffic import Traffic
from deploy.local.record import read_environment
from deploy.settings import DeploySettings
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import make_many

HOME = Path(".forgewatch/screenshots")
PICTURES = Path("deploy/page/pictures")
_SIZE = {"width": 1280, "height": 860}
_COLOURS = 96
_BEFORE, _AFTER = 420, 260
"""media before the update and after it"""


def stream(home: Path) -> None:
    """Bring the stack to where a release waits for an approval, and unknown items for a name."""
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    settings = read_environment(home / "stack.env")
    operator = Operator(story.console, settings)
    with Traffic(
        IngestSettings(bootstrap_servers=settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
    ) as traffic:
        for phase, split, wanted in (
            ("before", "stream", plan.before(SEED, story.unseen)[-_BEFORE:]),
            ("after", "after", plan.after(SEED, story.unseen)[:_AFTER]),
        ):
            samples = make_many(SEED, split, wanted, processes=plan.CORES)
            sent = traffic.send_hostile(plan.HOSTILE) + traffic.send(samples, phase)
            traffic.wait(sent, lambda done, of: None)
            operator.await_clustered(1)
            if phase == "before":
                truth = {message.id: message.family for message in traffic.sent if message.family}
                name_clusters(story, operator, truth, home)
                operator.update()


def shoot(url: str) -> None:
    """Write a picture of each view of the server there."""
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(base_url=url, viewport=_SIZE, color_scheme="light", reduced_motion="reduce")
        for name, path in views(url).items():
            page.goto(path)
            page.wait_for_load_state("networkidle")
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.quantize(_COLOURS).save(PICTURES / f"{name}.png", optimize=True)
        browser.close()


def views(url: str) -> dict[str, str]:
    """Each view's path by its name; of items, the one that shows most."""
    with Client(DeploySettings(url=url), ACTOR) as api:
        cluster = max(api.clusters(), key=lambda listed: listed.size)
        release = api.releases()[0]
        item = api.cluster(cluster.id).members[0].id
    return {
        "now": "/",
        "clusters": "/page/clusters",
        "cluster": f"/page/clusters/{cluster.id}",
        "updates": "/page/updates",
        "release": f"/page/releases/{release.digest}",
        "verdict": f"/page/verdicts/{quote(item, safe='')}",
        "record": "/page/record",
    }


if __name__ == "__main__":
    with alone(HOME):
        up(HOME)
        stream(HOME)
        shoot(read_environment(HOME / "stack.env")["FORGEWATCH_DEPLOY_URL"])
