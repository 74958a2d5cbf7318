"""The hot swap under traffic: approve while media streams, and count what failed."""

import threading
from collections.abc import Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.demo import plan
from deploy.demo.operator import Operator
from deploy.demo.story import Story
from deploy.demo.traffic import Traffic
from updater.synthetic.stream import MediaSample

_FAILURES = "forgewatch_detector_model_retries_total"


def swap(
    story: Story, traffic: Traffic, operator: Operator, samples: Sequence[MediaSample], metrics_url: str
) -> tuple[str, int]:
    """Stream the samples at a steady rate and approve the newest proposal meanwhile.

    Returns the new release's digest and how many requests to TorchServe failed from before the
    approval until the last answer.
    """
    failed_before = _failures(metrics_url)
    sender = threading.Thread(
        target=traffic.send,
        args=(samples, "swap"),
        kwargs={"per_second": plan.SWAP_PER_SECOND},
        name="sender",
    )
    sender.start()
    digest = operator.approve_newest()
    with story.bar("answers") as bar:
        sender.join()
        traffic.wait([sent for sent in traffic.sent if sent.phase == "swap"], bar)
    spoke = [traffic.verdicts[sent.id].release for sent in traffic.sent if sent.phase == "swap"]
    story.say(f"{len(spoke)} verdicts during the swap, {spoke.count(digest)} of them by the new release")
    return digest, _failures(metrics_url) - failed_before


def _failures(metrics_url: str) -> int:
    text = httpx.get(metrics_url, trust_env=False).raise_for_status().text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name == _FAILURES))
