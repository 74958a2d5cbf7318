"""The release that ships: two classes, learnt from pictures of many makers, whose terms let it be passed on.

`make default-release DATA=DIR` makes it of DIR/manifest.tsv, whose rows name each file's class, source, group
and licence. Of the same files and code it is the same to the bit on one machine. Graphs are kept without the
weights of others (`strip_weights`), and nothing in it shows a picture: what it proves itself by is rendered.
"""

import argparse
import csv
import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jinja2 import Template
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays

from detector.features.texture_weights import strip_weights
from detector.model.feature_graph import STORED_PX
from detector.release.artifact import MODEL, MODEL_CARD, PROBE, STATISTICS, Artifact, seal
from detector.release.tensors import Request, write_probe
from detector.serving.session import Session
from memory.records import REAL
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.candidate.builder import PROBE_ITEMS, build
from updater.candidate.draft import Draft, identity_of
from updater.candidate.plan import make_plan
from updater.data.training_data import LabelledCrops, Splits
from updater.progress import Progress, terminal
from updater.settings import UpdaterSettings
from updater.training.sums import statistics_of

GENERATED = "generated"
"""the one class of all forgeries: a class for each maker tells strangers' forgeries worse"""
SOURCE = "release-0"
"""the source that all sums go by: single pictures cannot be taken out of what ships"""
OPEN = ("Apache-2.0", "BSD", "CC BY-SA", "CC0", "MIT", "unrestricted")
"""what terms say, beside others, that let a derived work be passed on"""
_TERMS = Path(__file__).with_name("terms.md.j2")
_REFERENCE_ROWS = 400
_REALS_LOST = 0.08
"""by sources that were left out; sources whose terms kept them out of all of it lose less than half of it"""
_TRAINED_ON, _CALIBRATED_ON = 0.86, 0.08


def is_open(licence: str) -> bool:
    """Whether terms, as a manifest states them, let a release that was learnt from the file be passed on."""
    words = licence.replace(";", " ").replace("(", " ").replace(")", " ")
    return any(f" {name} " in f" {words} " or words.endswith(name) for name in OPEN) and "NC" not in words


def rows_of(folder: Path, *, everything: bool) -> list[dict[str, str]]:
    """Return the manifest's rows whose files are there and may be learnt from, by source and path."""
    with (folder / "manifest.tsv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t") if row["cls"] in (REAL, "fake")]
    may = [row for row in rows if everything or is_open(row["licence"])]
    return sorted(
        (row for row in may if (folder / row["path"]).is_file()), key=lambda row: (row["source"], row["path"])
    )


def read(folder: Path, rows: Sequence[Mapping[str, str]], reader: CropReader) -> LabelledCrops:
    """Decode the files of rows in the order of their sources, as the stream's media are."""
    classes = {REAL: REAL, "fake": GENERATED}
    parts = []
    for source, own in groupby(rows, itemgetter("source")):
        files = [
            MediaFile(folder / row["path"], row["path"], classes[row["cls"]], row["group"] or None)
            for row in own
        ]
        parts.append(reader.read(f"read {source}", source, files))
    return LabelledCrops.join(parts)


def deal(items: LabelledCrops, seed: int) -> Splits:
    """Share items out by their groups: most are learnt from, for the fewer the surer it is of strangers."""
    digests = (hashlib.sha256(f"{seed}/{group}".encode()).digest() for group in items.groups)
    share = np.array([int.from_bytes(digest[:8]) / 2**64 for digest in digests])
    sides = np.digitize(share, [_TRAINED_ON, _TRAINED_ON + _CALIBRATED_ON])
    train, held, test = (items.take(np.flatnonzero(sides == side)) for side in range(3))
    return Splits(train, held, test)


def make(
    folder: Path, rows: Sequence[Mapping[str, str]], work: Path, seed: int, progress: Progress
) -> Artifact:
    """Learn, calibrate, export and evaluate as an update does, and seal the parts that may be passed on.

    Raises what `make_plan`, `build` and `CropReader.read` raise.
    """
    settings = UpdaterSettings(work_dir=work, seed=seed, device="cpu", threads=1)
    with CropReader(progress=progress) as reader:
        items = read(folder, rows, reader)
    plan = replace(
        make_plan(settings, None, deal(items, seed)), reference_rows=_REFERENCE_ROWS, reals_lost=_REALS_LOST
    )
    draft = Draft(work / "draft", identity_of(plan, 0), progress)
    manifest = build(draft, plan, settings)
    sums = draft.artifact / STATISTICS
    save_arrays(dict(statistics_of(load_file(sums)).collapse(SOURCE).tensors()), sums)
    request = render_probe(seed)
    session = Session(draft.artifact / MODEL, manifest.contract, threads=1)
    write_probe(draft.artifact / PROBE, request, session.score(request))
    card = draft.artifact / MODEL_CARD
    card.write_text(card.read_text() + terms(rows))
    return seal(draft.artifact, manifest)


def render_probe(seed: int) -> Request:
    """Return two crops of noise an item, from smooth to grainy, which show nothing and nobody."""
    rng = np.random.default_rng(seed)
    walks = rng.normal(0, 1, (2 * PROBE_ITEMS, STORED_PX, STORED_PX, 3)).cumsum(1).cumsum(2)
    walks = 128 + 100 * walks / np.abs(walks).max((1, 2, 3), keepdims=True)
    grain = rng.normal(0, 1, walks.shape) * np.linspace(0, 12, 2 * PROBE_ITEMS)[:, None, None, None]
    pooling = np.kron(np.eye(PROBE_ITEMS), [[0.5, 0.5]]).astype(np.float32)
    return {"crops": np.clip(walks + grain, 0, 255).astype(np.uint8), "pooling": pooling}


def terms(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the card's part on the release's training data, and on the weights that it needs."""
    counts = Counter((row["source"], row["source_repository"], row["licence"], row["cls"]) for row in rows)
    page = Template(_TERMS.read_text(), trim_blocks=True, keep_trailing_newline=True)
    return str(page.render(counts=sorted(counts.items())))


def ship(release: Artifact, out: Path) -> int:
    """Write a release without the weights of others, in place of an older one; return its bytes."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(release.folder, out)
    (out / MODEL).write_bytes(strip_weights((out / MODEL).read_bytes()))
    return sum(path.stat().st_size for path in out.iterdir())


def main() -> None:
    """Make it, and print its digest, which the code that serves it has to name."""
    parser = argparse.ArgumentParser(description="make the release that ships")
    parser.add_argument("data", type=Path, help="folder with manifest.tsv and its files")
    parser.add_argument("out", type=Path, help="folder of the release; what lies there is replaced")
    parser.add_argument("--all", action="store_true", help="of all sources: not to be passed on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = rows_of(args.data, everything=args.all)
    with TemporaryDirectory() as folder, terminal() as progress:
        release = make(args.data, rows, Path(folder), args.seed, progress)
        size = ship(release, args.out)
    sys.stdout.write(f"{release.digest} {size} bytes, {len(rows)} files\n")


if __name__ == "__main__":
    main()
