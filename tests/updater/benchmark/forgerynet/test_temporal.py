"""The temporal task: stretches are found in videos of the layout, told by family, and with one left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from updater.benchmark.forgerynet.choices import ChoiceError, Choices
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.report.run_folder import Run
from updater.data.layouts.entries import LayoutError
from updater.distortions.clip_writing import to_h264

FRAMES, SIDE = 48, 64
FIGURES = {"ap_0.5", "ap_0.75", "ap_0.9", "ap", "ar_2", "ar_5", "ar_share_2", "ar_share_5", "frame_auc"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of noise, of which forged stretches are smoother or flatter; the first four unlabelled."""
    root, rng = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for part, top, count in (("Training", "train_video_release", 18), ("Validation", "val_video_release", 9)):
        rows = []
        for number in range(count):
            frames = rng.normal(128, rng.uniform(15, 40), (FRAMES, SIDE, SIDE, 3))
            directory = (17, 3, 7)[number % 3]
            stretches = [(4, FRAMES - 4, 0)]
            if directory != 17:
                first = int(rng.integers(10, 20))
                forged = frames[first : first + 15]
                if directory == 3:
                    forged[:, 1::2] = forged[:, ::2]
                else:
                    forged[:] = 128 + 0.2 * (forged - 128)
                end = first + 15
                stretches = [(4, first - 4, 0), (first, 15, 1), (end, FRAMES - end, 0)]
            group = f"{count}{number:030x}"
            listed = f"{top}/{directory}/{group}/{group}/video.mp4"
            path = root / part / "video" / listed
            path.parent.mkdir(parents=True)
            path.write_bytes(to_h264(np.clip(frames, 0, 255).astype(np.uint8), 12, "mp4"))
            told = " ".join(str(one) for stretch in stretches for one in stretch)
            labels = {17: "0 0 0", 3: "1 2 3", 7: "1 1 7"}[directory]
            rows.append(f"{len(stretches)} {listed} {told} {labels}\n")
        (root / part / "video_list.txt").write_text("".join(rows))
    return root


@pytest.fixture
def measure(tree: Path, tmp_path: Path, run_task: Callable[..., list[Run]]) -> Callable[..., Outcome]:
    def go(place: Path = tree, **choices: Any) -> Outcome:
        chosen = Choices("temporal", **{"model": "convolutions", "synthetic": False, **choices})
        (run,) = run_task(chosen, place, tmp_path / "run")
        return run.outcome

    return go


@pytest.mark.slow
def test_stretches_are_found_and_told_by_family(measure: Callable[..., Outcome]) -> None:
    outcome = measure()
    assert outcome.figures.keys() >= FIGURES
    assert (outcome.figures["ap_0.5"].value or 0) > 0.5
    assert outcome.figures["ap"].n == 9
    assert set(outcome.families) == {"DeepFakes", "Talking-head Video"}
    assert outcome.families["DeepFakes"]["ap"].n == 6
    assert outcome.about["stretches"] == 6


@pytest.mark.slow
def test_cross_leaves_each_family_out_in_turn(measure: Callable[..., Outcome]) -> None:
    outcome = measure(model="frames", protocol="cross")
    assert {name: set(of) for name, of in outcome.table.items()} == {
        "all but DeepFakes": {"DeepFakes"},
        "all but Talking-head Video": {"Talking-head Video"},
    }


@pytest.mark.slow
def test_a_group_may_be_trained_on_alone(measure: Callable[..., Outcome]) -> None:
    outcome = measure(model="frames", train_on=("remained",))
    assert outcome.about["trained_on"] == 12
    assert set(outcome.families) == {"DeepFakes", "Talking-head Video"}


def test_a_method_that_is_none_is_refused(measure: Callable[..., Outcome]) -> None:
    with pytest.raises(ChoiceError, match="choose of convolutions, frames, bsn, bmn"):
        measure(model="resnet18")


def test_a_tree_without_stretches_is_refused(
    tree: Path, tmp_path: Path, measure: Callable[..., Outcome]
) -> None:
    for part in ("Training", "Validation"):
        found = (tree / part / "video_list.txt").read_text().splitlines()
        place = tmp_path / "data" / part
        place.mkdir(parents=True)
        (place / "video").symlink_to(tree / part / "video")
        (place / "video_list.txt").write_text("\n".join(row for row in found if "/17/" in row) + "\n")
    with pytest.raises(LayoutError, match="no video with a forged stretch"):
        measure(tmp_path / "data")
