"""What scores side by side, and what is taken out when nobody needs it. The server is a real one."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import skimage

from detector.release.artifact import Artifact
from detector.serving.holdings import Holdings
from detector.serving.torchserve import TorchServe

pytestmark = pytest.mark.system


def test_stable_and_canary_score_side_by_side_and_what_no_slot_names_is_removed(
    deploy: Any, releases: list[Artifact]
) -> None:
    first, second, third = releases
    for artifact in releases:
        deploy.publish(artifact)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(first, second, 0.25))
        running.until_scoring(first, second)
        assert running.serving.route is not None
        assert running.serving.route.canary_share == 0.25
        running.read(deploy.say(second, third, 0.5))
        running.until_scoring(second, third)
        both = {second.version, third.version}
        running.until(lambda: deploy.there() == (both, both, {second.digest, third.digest}))
        photograph = Path(skimage.__file__).parent / "data" / "rocket.jpg"
        url = f"{deploy.settings.torchserve_url}/predictions/forgewatch"
        answer = httpx.post(
            url, content=photograph.read_bytes(), headers={"content-type": "image/jpeg"}, timeout=60
        )
        assert answer.json()["release"] == second.digest
        with TorchServe(deploy.settings) as client:
            request = {"crops": np.zeros((1, 64, 64, 3), np.uint8), "pooling": np.ones((1, 1), np.float32)}
            assert client.predict(third, request)["logits"].shape == (1, 3)


def test_no_version_is_unloaded_while_a_batch_is_on_its_way_to_it(
    deploy: Any, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    for artifact in releases:
        deploy.publish(artifact)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.serving.in_use = {first.digest}
        running.read(deploy.say(second))
        running.until_scoring(second)
        over = time.monotonic() + 5 * deploy.settings.rollback_window_s
        running.until(lambda: time.monotonic() > over)
        assert deploy.there()[0] == {first.version, second.version}
        running.serving.in_use = ()
        running.until(lambda: deploy.there()[0] == {second.version})


def test_what_an_earlier_process_left_is_removed_but_not_what_a_neighbour_holds(
    deploy: Any, releases: list[Artifact]
) -> None:
    left, held, wanted = releases
    for artifact in releases:
        deploy.publish(artifact)
        with deploy.worker(deploy.say(artifact)) as running:
            running.serving.in_use = {each.digest for each in releases}  # nothing is removed by this one
            running.until_scoring(artifact)
    mine = deploy.settings.model_store_dir / "somebody-elses.mar"
    mine.write_bytes(b"")
    with closing(Holdings(deploy.settings.model_store_dir)) as neighbour:
        neighbour.hold([held.digest])
        with deploy.worker(deploy.say(wanted)) as running:
            versions = {held.version, wanted.version}
            running.until(lambda: deploy.there()[0] == versions)
            running.until(lambda: left.digest not in deploy.there()[2])
            assert deploy.there()[1] == versions | {"somebody-els"}
    assert mine.exists()
