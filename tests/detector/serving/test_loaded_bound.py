"""However fast releases follow one another, TorchServe has few of them loaded.

The loader here only keeps what it was told; `tests/system/rollout` has the real one on a real TorchServe.
"""

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detector.records import Rollout
from detector.release.artifact import version_of
from detector.serving import rollout as rollout_module
from detector.serving.loading import DesiredState
from detector.serving.rollout import Serving
from detector.settings import DetectorSettings


class Loads:
    """Brings whatever is asked for, and keeps what is to be loaded in the end."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.loaded: frozenset[str] = frozenset()

    def bring(self, digest: str, held: Collection[str]) -> Any:
        manifest = SimpleNamespace(classes=("real", "gan"))
        return SimpleNamespace(digest=digest, version=version_of(digest), manifest=manifest)

    def reconcile(self, end: DesiredState) -> None:
        self.loaded = end.loaded


def swapped(digests: list[str], folder: Path, in_use: Collection[str] = ()) -> frozenset[str]:
    """What stays loaded after one release after another went live, all within the rollback window."""
    loads = Loads(folder)
    wanted: Any = SimpleNamespace(rollout=None, kept=None, due=lambda newest: False)
    loader: Any = loads
    follower: Any = SimpleNamespace(poll=lambda: None)
    with Serving(DetectorSettings(model_store_dir=folder), loader, follower, wanted) as serving:
        serving.in_use = in_use
        for sequence, digest in enumerate(digests):
            wanted.rollout = Rollout(ledger="0" * 32, epoch=0, sequence=sequence, stable=digest)
            serving.tick()
            while serving._step is not None:
                serving._step[0].result()
                serving.tick()
            assert serving.route is not None
            assert serving.route.stable.digest == digest
    return loads.loaded


DIGESTS = [f"{number:02x}" * 32 for number in range(20)]


def test_of_twenty_swaps_within_the_window_the_last_three_releases_stay_loaded(tmp_path: Path) -> None:
    assert swapped(DIGESTS, tmp_path) == set(DIGESTS[-3:])


def test_what_scores_still_is_not_unloaded_for_it(tmp_path: Path) -> None:
    assert swapped(DIGESTS, tmp_path, in_use=DIGESTS[:1]) == {DIGESTS[0], *DIGESTS[-3:]}


def test_without_the_bound_all_of_them_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(rollout_module, "_MOST_LEAVING", 100)
    assert swapped(DIGESTS, tmp_path) == set(DIGESTS)
