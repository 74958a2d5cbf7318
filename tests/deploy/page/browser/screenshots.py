"""`make screenshots`: the page's views of a stack with the demonstration's media, as PNGs for the READMEs.

Nothing is posed. Release 0 answers a part of the demonstration's stream, its operator names the new family,
and an update proposes a release. Until that is live, fresh media of the same family wait for a name. Half of
that family's media are signed by a test key and declare a generator. What is cut from photographs is left
out: they are other people's, and the pictures lie in the repository.
"""

import io
import mimetypes
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

from deploy.client.http import Client
from deploy.demo import plan
from deploy.demo.operator import ACTOR, Operator, Story, name_clusters
from deploy.demo.release_zero import SEED, updater_by
from deploy.demo.run import alone
from deploy.demo.traffic import Traffic
from deploy.environment import read_environment
from deploy.local import commands
from deploy.settings import DeploySettings
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample, make_many, write_folders

sys.path.append("tests/plugins")
from credentials import TRAINED, action, signed

HOME = Path(".forgewatch/screenshots")
PICTURES = Path(__file__).with_name("pictures")
_SIZE = {"width": 1280, "height": 720}
_COLOURS = 96
_BEFORE, _AFTER = 420, 260
"""media before the update and after it"""


def begin(home: Path) -> None:
    """Start a stack, and let it learn release 0 from scenes alone."""
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    commands.up(home, story.console)
    settings = read_environment(home / "stack.env")
    operator = Operator(story.console, settings)
    library, folder = plan.Library(SEED, story.unseen), home / "library"
    write_folders(folder, SEED, "train", library.counts, processes=plan.CORES)
    for group in folder.glob("*/*"):
        if not _is_scene(group.name):
            shutil.rmtree(group)
    operator.run("import", str(folder))
    with updater_by(home, plan.release_zero_settings(SEED, story.unseen)):
        operator.update()
    operator.approve_newest()
    commands.await_verdicts(settings, story.console)


def stream(home: Path) -> None:
    """Bring the stack to where a release waits for an approval, and unknown items for a name."""
    story = Story(SEED, plan.DEFAULT_UNSEEN)
    settings = read_environment(home / "stack.env")
    operator = Operator(story.console, settings)
    kafka = IngestSettings(bootstrap_servers=settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
    with Traffic(kafka) as traffic:
        for phase, split, wanted in (
            ("before", "stream", plan.before(SEED, story.unseen)[-_BEFORE:]),
            ("after", "after", plan.after(SEED, story.unseen)[:_AFTER]),
        ):
            made = make_many(SEED, split, wanted, processes=plan.CORES)
            samples = (_declare(n, sample) for n, sample in enumerate(made) if _is_scene(sample.group))
            sent = traffic.send_hostile(plan.HOSTILE) + traffic.send(samples, phase)
            traffic.wait(sent, lambda done, of: None)
            operator.await_clustered(1)
            if phase == "before":
                truth = {message.id: message.family for message in traffic.sent if message.family}
                name_clusters(story, operator, truth, home)
                operator.update()


def _declare(number: int, sample: MediaSample) -> MediaSample:
    """Sign every other medium of the new family."""
    kind = mimetypes.guess_type(sample.name)[0]
    if number % 2 or sample.family != plan.DEFAULT_UNSEEN or kind is None:
        return sample
    created = action("created", TRAINED, softwareAgent="Image Model 2")
    return replace(sample, data=signed(sample.data, kind, created))


def _is_scene(group: str) -> bool:
    return group.startswith("scene-")


def shoot(url: str) -> None:
    """Write a picture of each view of the server there."""
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(base_url=url, viewport=_SIZE, color_scheme="light")
        for name, path in views(url).items():
            page.goto(path)
            page.wait_for_load_state("networkidle")
            for passing in ("The index is being read", "not known: asking"):  # the view renews itself
                page.get_by_text(passing).wait_for(state="detached")
            if name == "try":
                (sample,) = make_many(SEED, "after", [(plan.DEFAULT_UNSEEN, _AFTER)], processes=1)
                tried = {"name": sample.name, "mimeType": "image/*", "buffer": sample.data}
                page.get_by_label("Pictures or videos").set_input_files(tried)
                page.get_by_role("button", name="Check").click()
                page.get_by_role("status").wait_for()
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.quantize(_COLOURS).save(PICTURES / f"{name}.png", optimize=True)
        browser.close()


def views(url: str) -> dict[str, str]:
    """Each view's path by its name; of items, the one that shows most."""
    with Client(DeploySettings(url=url), ACTOR) as api:
        cluster = max(api.clusters(), key=lambda listed: listed.size)
        release = api.releases()[0]
        members = api.cluster(cluster.id).members
        item = next((member for member in members if member.declares), members[0]).id
    return {
        "now": "/",
        "clusters": "/page/clusters",
        "cluster": f"/page/clusters/{cluster.id}",
        "updates": "/page/updates",
        "release": f"/page/releases/{release.digest}",
        "verdict": f"/page/verdicts/{quote(item, safe='')}",
        "sources": "/page/sources",
        "dead-letters": "/page/dead-letters",
        "record": "/page/record",
        "try": "/page/try",
    }


if __name__ == "__main__":
    with alone(HOME):
        try:
            begin(HOME)
            stream(HOME)
            shoot(read_environment(HOME / "stack.env")["FORGEWATCH_DEPLOY_URL"])
        finally:
            commands.down(HOME, purge=True)
