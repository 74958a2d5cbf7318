"""`forgewatch demo`: the whole loop on real parts, told step by step and counted at the end."""

import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice, takewhile, tee
from pathlib import Path

from rich.console import Console

from deploy.demo import claims, pictures, plan, tables
from deploy.demo.claims import DemoReport
from deploy.demo.located import Answered, AnsweredClip
from deploy.demo.operator import Operator, Story, StoryError, name_clusters
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.traffic import Traffic, seconds_spent, totals
from deploy.local.commands import down
from deploy.local.stack import Stack
from ingest.durable import file_aside
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.in_part import ClipSample, make_clip, make_locals
from updater.benchmark.synthetic.stream import PHOTOGRAPH_SHARE, MediaSample, make, make_many, making

HOME = Path(".forgewatch/demo")
MAPS, TIMELINES = Path(".forgewatch/demo-maps.png"), Path(".forgewatch/demo-timelines.png")
"""Where the demonstration leaves its maps and its time lines to look at."""


def main(seed: int, unseen: str | None, report: Path | None) -> bool:
    """Run the demonstration; write its report as JSON where asked. False when a claim does not hold.

    Raises StoryError for an unknown family, OperatorError and TrafficError when a step cannot go on,
    and the local stack's errors.
    """
    story = Story(seed, unseen or plan.DEFAULT_UNSEEN)
    if story.unseen not in FAMILIES:
        raise StoryError(f"--unseen {story.unseen}: the families are {', '.join(FAMILIES)}")
    story.console.print(
        f"Release 0 learns {len(FAMILIES) - 1} forgery families and never sees [bold]{story.unseen}[/bold] "
        f"(seed {seed})."
    )
    with alone(HOME):
        result = _tell(story)
    if report is not None:
        report.write_text(result.model_dump_json(indent=2) + "\n")
    tables.show(story.console, result)
    for title, path in (("Maps over pictures", MAPS), ("Time lines under clips", TIMELINES)):
        story.console.print(f"{title}, beside what was forged: {path.absolute()}", soft_wrap=True)
    story.console.print("Its stack is gone. `make up` leaves one running, and says where its page is.")
    return all(result.claims.values())


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """End an interrupted run's processes in `home`, and leave nothing there, also when told to end."""
    down(home, Console(quiet=True), purge=True)
    try:
        yield
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _tell(story: Story) -> DemoReport:
    seed, unseen = story.seed, story.unseen
    stack = Stack(HOME, console=story.console, tuning=plan.training_settings(seed, unseen))
    before = [(seed, "stream", *job) for job in plan.before(seed, unseen)]
    after = [(seed, "after", *job) for job in plan.after(seed, unseen)]
    clip_jobs = [(seed, "after", *job) for job in plan.clips()]
    with ExitStack() as parts:

        @cache
        def start_media() -> tuple[Iterator[MediaSample], Iterator[ClipSample]]:
            # Begun beside the making of release 0, which leaves a core idle now and then.
            started = parts.enter_context
            return started(making(make, before + after, 1, 16)), started(making(make_clip, clip_jobs, 1, 1))

        library = plan.Library(seed, unseen)
        with story.step("start", "Start Kafka, TorchServe, deploy, memory, updater and detector"):
            restored = restore(library, stack.run)
            rendering = None if restored else parts.enter_context(render(library, stack.run / "library"))
            parts.enter_context(stack)
        operator = Operator(story.console, stack.settings)
        if rendering is not None:
            make_release_zero(story, operator, library, rendering, beside=start_media)
        with story.step("release 0", "The operator approves release 0"):
            first = operator.approve_newest()
        servers = stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]
        traffic = parts.enter_context(Traffic(IngestSettings(bootstrap_servers=servers)))
        media_made, clips_made = start_media()
        known = _stream_before(story, traffic, islice(media_made, len(before)))
        _learn(story, operator, traffic)
        with story.step("swap", "Media streams on while the operator approves: hot swap"):
            samples = make_many(seed, "stream", plan.swap(seed, unseen), processes=1)
            metrics = f"http://127.0.0.1:{stack.ports.detector_metrics}/metrics"
            _, failed = swap(story, traffic, operator, samples, metrics)
        _stream_after(story, traffic, media_made, known)
        forged = _stream_in_part(story, traffic)
        with file_aside(MAPS) as aside:
            pictures.map_sheet(pictures.to_look_at(forged)).save(aside, "PNG")
        clips = _stream_clips(story, traffic, clips_made)
        with file_aside(TIMELINES) as aside:
            pictures.timeline_sheet(pictures.to_look_at(clips)).save(aside, "PNG")
        return claims.report(
            seed,
            unseen,
            story.seconds,
            traffic.sent,
            traffic.verdicts,
            traffic.answers(),
            first,
            failed,
            [picture.answered for picture in forged],
            [clip.answered for clip in clips],
            seconds_spent(metrics)["forgewatch_detector_second_look"],
        )


def _stream_before(story: Story, traffic: Traffic, samples: Iterable[MediaSample]) -> list[MediaSample]:
    """Return the samples of the families that release 0 knows."""
    title = f"Stream reals, known fakes and bad files; then {story.unseen} arrives"
    with story.step("stream", title), story.bar("answers") as bar:
        made, streamed = tee(samples)
        sent = traffic.send_hostile(plan.HOSTILE) + traffic.send(made, "before")
        traffic.wait(sent, bar)
    return [sample for sample in streamed if sample.family != story.unseen]


def _learn(story: Story, operator: Operator, traffic: Traffic) -> None:
    truth = {sent.id: sent.family for sent in traffic.sent if sent.family is not None}
    unknown = sum(verdict.label == "unknown" for verdict in traffic.verdicts.values())
    with story.step("review", "The operator looks at the clusters of unknowns and names the new family"):
        operator.await_clustered(unknown)
        story.say(f"{name_clusters(story, operator, truth, HOME)} items are now called {story.unseen}")
    with story.step("update", "Train a candidate on the rehearsal shelf and the new family; evaluate it"):
        operator.update()


def _stream_after(story: Story, traffic: Traffic, new: Iterable[MediaSample], old: list[MediaSample]) -> None:
    title = "Stream fresh media of every family, and again of release 0's families"
    with story.step("after", title), story.bar("answers") as bar:
        traffic.wait(traffic.send(new, "after") + traffic.send(old, "again"), bar)


def _stream_in_part(story: Story, traffic: Traffic) -> list[pictures.ShownPicture]:
    title = "Stream pictures that are forged in a part: the verdicts say where"
    with story.step("place", title), story.bar("answers") as bar:
        wanted, photographs = plan.in_part(), PHOTOGRAPH_SHARE["after"]
        samples = list(
            make_locals(story.seed, "after", wanted, processes=plan.CORES, photographs=photographs)
        )
        sent = traffic.send(samples, "place")
        traffic.wait(sent, bar)
    return [
        pictures.ShownPicture(sample.data, sample.family, Answered(traffic.verdicts[message.id], sample.mask))
        for sample, message in zip(samples, sent, strict=True)
    ]


def _stream_clips(story: Story, traffic: Traffic, clips: Iterable[ClipSample]) -> list[pictures.ShownClip]:
    title = "Stream clips that are forged in stretches: the verdicts say when"
    with story.step("when", title), story.bar("answers") as bar:
        made, samples = tee(clips)
        sent = traffic.send(made, "when")
        traffic.wait(sent, bar)
    return [
        pictures.ShownClip(
            sample.data, AnsweredClip(traffic.verdicts[message.id], sample.family, sample.segments)
        )
        for sample, message in zip(samples, sent, strict=True)
    ]


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
    streaming = takewhile(lambda _: not spoken.is_set(), samples)
    sender = threading.Thread(
        target=lambda: traffic.send(streaming, "swap", per_second=plan.SWAP_PER_SECOND), name="sender"
    )
    sender.start()
    try:
        digest = operator.approve_newest()
        while sender.is_alive() and not spoken.is_set():
            sender.join(plan.SWAP_LOOK_S)
            if any(verdict.release == digest for verdict in list(traffic.verdicts.values())):
                spoken.set()
    finally:
        spoken.set()  # also where no new release will speak
        sender.join()
    with story.bar("answers") as bar:
        traffic.wait([sent for sent in traffic.sent if sent.phase == "swap"], bar)
    spoke = [traffic.verdicts[sent.id].release for sent in traffic.sent if sent.phase == "swap"]
    story.say(f"{len(spoke)} verdicts during the swap, {spoke.count(digest)} of them by the new release")
    return digest, _failures(metrics_url) - failed_before


def _failures(metrics_url: str) -> int:
    return int(totals(metrics_url).get(_FAILURES, 0))
