"""The hot swap under traffic: approve while media streams, and count what failed."""

import itertools
import threading
from collections.abc import Iterable

from deploy.demo import plan
from deploy.demo.operator import Operator
from deploy.demo.scrape import totals
from deploy.demo.story import Story
from deploy.demo.traffic import Traffic
from updater.benchmark.synthetic.stream import MediaSample

_FAILURES = "forgewatch_detector_model_retries_total"


def swap(
    story: Story, traffic: Traffic, operator: Operator, samples: Iterable[MediaSample], metrics_url: str
) -> tuple[str, int]:
    """Stream the samples at a steady rate, approve the newest proposal meanwhile, stop once it has spoken.

    Returns the new release's digest and how many requests to TorchServe failed from before the
    approval until the last answer.
    """
    failed_before = _failures(metrics_url)
    spoken = threading.Event()
    streaming = itertools.takewhile(lambda _: not spoken.is_set(), samples)
    sender = threading.Thread(
        target=lambda: traffic.send(streaming, "swap", per_second=plan.SWAP_PER_SECOND), name="sender"
    )
    sender.start()
    digest = operator.approve_newest()
    while sender.is_alive() and not spoken.is_set():
        sender.join(plan.SWAP_LOOK_S)
        if any(verdict.release == digest for verdict in list(traffic.verdicts.values())):
            spoken.set()
    sender.join()
    with story.bar("answers") as bar:
        traffic.wait([sent for sent in traffic.sent if sent.phase == "swap"], bar)
    spoke = [traffic.verdicts[sent.id].release for sent in traffic.sent if sent.phase == "swap"]
    story.say(f"{len(spoke)} verdicts during the swap, {spoke.count(digest)} of them by the new release")
    return digest, _failures(metrics_url) - failed_before


def _failures(metrics_url: str) -> int:
    return int(totals(metrics_url).get(_FAILURES, 0))
