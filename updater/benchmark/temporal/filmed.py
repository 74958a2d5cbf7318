"""`python -m updater.benchmark.temporal.filmed TREE FILMS`: stretches in pieces of films, by film, as JSON.

TREE holds videos in ForgeryNet's layout to train on, FILMS are one's own. Of each film as many real as forged
pieces are cut, and forged by all families of the synthetic stream. No film is ever trained on.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from updater.benchmark.data.forgerynet import load_forgerynet
from updater.benchmark.data.listed import Tally
from updater.benchmark.synthetic.clips import FRAMES, SIDE_PX, film_clip
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.films import MAX_PIXELS, Film, films_in
from updater.benchmark.synthetic.stream import REAL
from updater.benchmark.temporal.figures import Told, figures
from updater.benchmark.temporal.method import Localizer
from updater.benchmark.temporal.methods import METHODS
from updater.benchmark.temporal.videos import videos
from updater.scan.clips import ScannedClip, scanned
from updater.scan.features import SeenFrames
from updater.scan.reading import CROP_PX, frame_features

SEEDS = 3
Seen = list[tuple[str, ScannedClip]]
"""family and clip of each piece"""


def pieces_of(film: Film, features: SeenFrames) -> Seen:
    """Cut one real and one forged piece for each family, and look at them. Raises ClipError."""
    wanted = [one for index, family in enumerate(FAMILIES) for one in ((REAL, index), (family, 0))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "piece.mp4"
        for family, index in wanted:
            sample = film_clip(0, film, family, index)
            path.write_bytes(sample.data)
            rows = frame_features(path, features, 0, None, MAX_PIXELS)
            found.append((family, scanned(rows, sample.segments)))
    return found


def by_film(seen: dict[str, Seen], localize: Localizer) -> dict[str, dict[str, float]]:
    """Return the figures of each film's pieces, and under "all" those of all films together."""
    told = {
        film: [Told(family, clip, localize(clip.features)) for family, clip in pieces]
        for film, pieces in seen.items()
    }
    together = [one for of_film in told.values() for one in of_film]
    return {name: figures(of) for name, of in (*told.items(), ("all", together))}


def measure(tree: Path, films: Path, say: Callable[[str], None]) -> None:
    """Train each fast method on the tree and say, a line each, what it finds: a mean over seeds by film."""
    features = SeenFrames(CROP_PX)
    found, left_out = films_in(films, FRAMES, SIDE_PX)
    for reason in left_out:
        say(json.dumps({"left out": reason}))
    seen = {film.path.name: pieces_of(film, features) for film in found}
    entries = [entry for entry in load_forgerynet(tree, "video").entries if entry.split == "train"]
    clips = [video.clip for video in videos(entries, tree / "frame-features", Tally())]
    for name in ("convolutions", "frames"):
        each = [by_film(seen, METHODS[name](clips, seed, lambda done, total: None)) for seed in range(SEEDS)]
        for film in each[0]:
            mean = {
                figure: round(float(np.mean([one[film][figure] for one in each])), 3)
                for figure in ("ap_0.5", "ap", "frame_auc", "clip_auc_mean", "clip_auc_best")
            }
            say(json.dumps({"method": name, "film": film, "seeds": SEEDS, **mean}))


if __name__ == "__main__":
    measure(Path(sys.argv[1]), Path(sys.argv[2]), print)
