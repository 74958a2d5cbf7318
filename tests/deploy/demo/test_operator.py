"""The operator against a real server, and whose settings the updater works by while release 0 is made."""

import io
import os
import shutil
import threading
from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import numpy as np
import psutil
import pytest
from exemplars import make_exemplar
from PIL import Image
from rich.console import Console
from verdicts import make_item, make_verdict

from deploy.access.roles import Person, TokenRequest
from deploy.demo import plan, release_zero, run
from deploy.demo.located import Answered, AnsweredClip
from deploy.demo.operator import Operator, OperatorError
from deploy.demo.pictures import (
    ShownClip,
    ShownPicture,
    map_caption,
    map_sheet,
    timeline_caption,
    timeline_sheet,
    to_look_at,
)
from deploy.demo.release_zero import SEED, updater_by
from deploy.local.processes import free_port, socket_folder
from deploy.local.record import StackRecord, write_environment, write_record
from deploy.local.stack import launch_room
from deploy.local.supervisor import start_supervisor
from deploy.release_records import Approve
from deploy.releases.standing import replay
from deploy.server import releases
from detector.records import Scan, Segment
from detector.second_pass.map_look import PictureMap, forgery_map
from memory.clusters.clustering import keep_clustered
from memory.clusters.review import list_clusters
from memory.rows import NewRow, insert_rows
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import Stretch


def unknown(number):
    return NewRow(
        exemplar=make_exemplar(number),
        crop_count=1,
        features=np.random.default_rng(number).normal(size=9).astype(np.float32),
        feature_version="1",
        embedding=None,
        verdict=None,
    )


def test_the_operator_approves_no_release_with_a_broken_gate_and_says_who_is_to_decide():
    operator = Operator(Console(quiet=True), {})
    gates = [{"state": state} for state in ("holds", "not shown to hold", "broken")]
    waiting = [{"digest": "a" * 64, "state": "proposed with findings", "candidate": {"gates": gates}}]
    with (
        patch.object(Operator, "ask", return_value=waiting),
        patch.object(Operator, "run") as run,
        pytest.raises(OperatorError, match="broken gates, which a person decides on"),
    ):
        operator.approve_newest()
    run.assert_not_called()
    gates.pop()
    with patch.object(Operator, "ask", return_value=waiting), patch.object(Operator, "run") as run:
        operator.approve_newest()
    assert "--because" in run.call_args.args


def test_up_asks_for_no_token_where_a_release_is_live(served, services, make_artifact, propose, tmp_path):
    artifact = make_artifact()
    propose(artifact)
    candidate = replay(services.ledger.events()).releases[artifact.digest].candidate
    accept = {finding.name: "known" for finding in candidate.findings}
    wanted = Approve(evaluation_digest=candidate.evaluation_digest, accept=accept, plan="now")
    releases.approve(services, "bea", artifact.digest, wanted)
    root, tokens = Person("root", frozenset({"admin"}), "loopback"), services.access.tokens
    machine = tokens.add(TokenRequest(name="of the stack", role="detector"), root).token
    settings = {
        "FORGEWATCH_DEPLOY_URL": served,
        "FORGEWATCH_DETECTOR_DEPLOY_TOKEN": machine,
        "FORGEWATCH_DETECTOR_METRICS_PORT": "9",
    }
    write_environment(tmp_path / "stack.env", settings)
    with (
        patch("deploy.demo.release_zero.commands.up"),
        patch("deploy.local.commands._scores_by", return_value=True),
    ):
        release_zero.up(tmp_path)
        tokens.add(TokenRequest(name="ada", role="admin"), root)
        release_zero.up(tmp_path)


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_release_0_of_an_earlier_run_comes_back_whole_or_not_at_all(tmp_path, monkeypatch, interrupted):
    for name in ("memory", "updater", "deploy"):
        (tmp_path / "kept" / name).mkdir(parents=True)
        (tmp_path / "kept" / name / "state").touch()
    copied, copy = list[Path](), shutil.copy2

    def interrupt(source, target):
        if interrupted and copied:
            raise KeyboardInterrupt
        copied.append(source)
        copy(source, target)

    monkeypatch.setattr(release_zero, "_cache_path", lambda _: tmp_path / "kept")
    monkeypatch.setattr(shutil, "copy2", interrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        assert release_zero.restore(plan.Library(0, plan.DEFAULT_UNSEEN), tmp_path / "run")
    run = tmp_path / "run"
    assert (run / "deploy" / "state").exists() == run.exists() == (not interrupted)


def test_the_operator_looks_when_every_unknown_is_remembered_and_clustered(served, services):
    operator = Operator(Console(quiet=True), {"FORGEWATCH_DEPLOY_URL": served})
    waiting = threading.Thread(target=partial(operator.await_clustered, 12))
    waiting.start()
    for numbers in (range(4), range(4, 12)):
        waiting.join(0.5)
        assert waiting.is_alive()
        with services.memory.write() as connection:
            insert_rows(connection, [unknown(number) for number in numbers])
    waiting.join(0.5)
    assert waiting.is_alive()
    stop = threading.Event()
    memory = threading.Thread(target=keep_clustered, args=(services.memory_settings, stop))
    memory.start()
    waiting.join(60)
    stop.set()
    memory.join(60)
    assert not waiting.is_alive()
    assert sum(len(cluster.members) for cluster in list_clusters(services.memory)) == 12


def environment(supervisor):
    (updater,) = supervisor.states()
    return psutil.Process(updater.pid).environ()


@pytest.mark.slow
def test_only_the_making_of_release_0_has_the_demos_training_settings(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    settings = {
        "FORGEWATCH_UPDATER_SEED": "77",
        "FORGEWATCH_UPDATER_METRICS_PORT": str(free_port()),
        "FORGEWATCH_UPDATER_WORK_DIR": str(run / "work"),
        "FORGEWATCH_UPDATER_DATABASE_URL": f"sqlite:///{run}/updater.sqlite",
        "FORGEWATCH_MEMORY_DATABASE_URL": f"sqlite:///{run}/memory.sqlite",
        "FORGEWATCH_MEMORY_CROPS_URL": str(run / "crops"),
    }
    write_environment(tmp_path / "stack.env", settings)
    own = {**os.environ, **settings}
    supervisor = start_supervisor(run / "supervisor", socket_folder(run), own, lambda child: None)
    try:
        record = StackRecord.of(supervisor.process, supervisor.folder, supervisor.sockets)
        write_record(tmp_path / "stack.json", record)
        launch_room(supervisor, run, "updater")
        training = plan.release_zero_settings(SEED, plan.DEFAULT_UNSEEN)
        for_release_0 = {
            f"FORGEWATCH_UPDATER_{what}" for what in ("WITHOUT_KINDS", "LOCALIZER_STEPS", "SCANNER_STEPS")
        }
        assert for_release_0 <= training.keys()
        with suppress(InterruptedError), updater_by(tmp_path, training):
            assert training.items() <= environment(supervisor).items()
            raise InterruptedError
        kept = environment(supervisor)
        assert not for_release_0 & kept.keys()
        assert kept["FORGEWATCH_UPDATER_SEED"] == "77"
    finally:
        supervisor.stop()


# The sheets that the demonstration leaves: which pictures and clips, and what is told of each.
SIDE = 64
GREY = np.full((SIDE, SIDE, 3), 100, np.uint8)
MASK = np.zeros((SIDE, SIDE), np.uint8)
MASK[:32, :32] = 255


def shown(number, family, label, *, with_map):
    file = io.BytesIO()
    Image.fromarray(GREY).save(file, "PNG")
    cells = MASK[::8, ::8].astype(np.float32) / 255
    found = forgery_map(PictureMap(cells, (0, 0, SIDE, SIDE)), 0.5, 0) if with_map else None
    verdict = make_verdict(
        make_item(number), label=label, family="blended", map=found, width=SIDE, height=SIDE
    )
    return ShownPicture(file.getvalue(), family, Answered(verdict, MASK))


def test_of_each_family_the_first_with_a_map_is_shown_or_else_the_first():
    sent = [
        shown(0, "blended", "real", with_map=False),
        shown(1, "smoothed", "real", with_map=False),
        shown(2, "blended", "fake", with_map=True),
        shown(3, "smoothed", "real", with_map=False),
        shown(4, "blended", "fake", with_map=True),
    ]
    chosen = to_look_at(sent)
    assert [one.answered.verdict.id for one in chosen] == ["media-0-2", "media-0-1"]


def test_a_caption_says_what_was_forged_and_how_much_of_it_was_found():
    told = map_caption(shown(0, "smoothed", "fake", with_map=True))
    assert told == "smoothed, 25% of the area: called fake (blended), 25% marked, IoU with the truth 1.00"
    assert map_caption(shown(0, "smoothed", "real", with_map=False)).endswith("called real, so not mapped")
    assert map_caption(shown(0, "smoothed", "unknown", with_map=False)).endswith("called unknown, no map")


def test_a_row_has_the_file_and_its_truth_and_its_map_side_by_side():
    drawn = np.asarray(map_sheet([shown(0, "smoothed", "fake", with_map=True)])).astype(int)
    row = drawn[200]  # in the upper left quarter of each tile, where it is forged
    sent, true, said = row[60], row[60 + 264], row[60 + 2 * 264]
    assert sent.tolist() == true.tolist() == [100, 100, 100]
    assert said[0] > 150 > said[1]
    outside = drawn[300]
    assert outside[60 + 264].tolist() == [25, 25, 25]
    assert outside[60 + 2 * 264].tolist() == [100, 100, 100]


FRAMES = 25
GREY_CLIP = to_h264(np.full((FRAMES, 64, 64, 3), 128, np.uint8), 20, "mp4")
SCAN = Scan(
    frames=FRAMES,
    step_s=0.04,
    threshold=0.5,
    times_s=tuple(number / 25 for number in range(FRAMES)),
    scores=(0.1,) * FRAMES,
)


def shown_clip(number, family, label, *told):
    """A clip of one second whose frames 5 to 14 are forged, unless it is real."""
    segments = tuple(
        Segment(start_s=first / 25, end_s=end / 25, frames=(first, end - 1), score=0.9, box=(0, 0, 64, 64))
        for first, end in told
    )
    verdict = make_verdict(
        make_item(number), kind="video", label=label, family="blended", scan=SCAN, segments=segments
    )
    truth = () if family == "real" else (Stretch(5, 15),)
    return ShownClip(GREY_CLIP, AnsweredClip(verdict, family, truth))


def test_of_each_family_the_first_clip_with_a_told_stretch_is_shown_or_else_the_first():
    sent = [
        shown_clip(0, "real", "real"),
        shown_clip(1, "real", "unknown"),
        shown_clip(2, "blended", "real"),
        shown_clip(3, "blended", "real", (5, 15)),
    ]
    assert [one.answered.verdict.id for one in to_look_at(sent)] == ["media-0-0", "media-0-3"]


def test_a_clips_caption_says_what_was_forged_and_how_much_of_it_was_found():
    told = timeline_caption(shown_clip(0, "upsampled", "fake", (5, 15), (18, 24)).answered)
    assert told == "upsampled: called fake (blended); stretches: 1 forged, 2 told, 1 found"
    assert (
        timeline_caption(shown_clip(0, "real", "real").answered) == "a real clip: called real, nothing told"
    )
    assert (
        timeline_caption(shown_clip(0, "real", "unknown", (0, 9)).answered)
        == "a real clip: called unknown, 1 told as forged"
    )
    unscanned = AnsweredClip(make_verdict(make_item(), kind="video"), "blended", ())
    assert timeline_caption(unscanned) == "blended: called unknown, not scanned"


def test_each_clip_has_its_frames_above_what_is_true_and_what_is_told():
    drawn = np.asarray(timeline_sheet([shown_clip(0, "blended", "real", (15, 20))]))
    black, red = ((drawn == colour).all(2) for colour in ([20, 20, 20], [255, 40, 40]))
    grey = np.abs(drawn.astype(int) - 128).max(2) < 4
    # One clip of one second is 888 px wide behind a margin of 36 px and a gap of 8 px.
    true = np.argwhere(black[:, 60:-40] & (black[:, 60:-40].sum(1) > 300)[:, None])
    assert true[:, 1].min() + 60 == pytest.approx(8 + 36 + 888 * 0.2, abs=1)
    assert true[:, 1].max() + 60 == pytest.approx(8 + 36 + 888 * 0.6, abs=1)
    assert np.flatnonzero(red.sum(1) > 150).min() > true[:, 0].max()
    assert true[:, 0].min() > np.flatnonzero(grey.sum(1) > 800).max()


def test_a_clip_that_was_not_scanned_is_shown_by_its_frames_alone():
    bare = AnsweredClip(make_verdict(make_item(), kind="video"), "blended", (Stretch(5, 15),))
    assert (
        timeline_sheet([ShownClip(GREY_CLIP, bare)]).height
        < timeline_sheet([shown_clip(0, "blended", "real")]).height
    )


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit, OperatorError])
def test_however_the_approval_ends_the_stream_beside_it_ends(monkeypatch, ended):
    monkeypatch.setattr(run, "_failures", lambda _: 0)
    traffic = SimpleNamespace(verdicts={}, send=lambda samples, *_, **__: deque(samples, maxlen=0))
    operator = SimpleNamespace(approve_newest=Mock(side_effect=ended))
    with pytest.raises(ended):
        run.swap(None, traffic, operator, repeat(None), "")
    assert not [thread for thread in threading.enumerate() if thread.name == "sender"]
