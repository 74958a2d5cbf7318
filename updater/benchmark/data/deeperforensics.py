"""DeeperForensics-1.0's layout: forgeries in variants, lists of splits, and each one's distortions.

Jiang et al. 2020, "DeeperForensics-1.0: A Large-Scale Dataset for Real-World Face Forgery Detection".

    manipulated_videos/VARIANT/TTT_S.mp4        target TTT of FaceForensics++, face of the actor S
    lists/splits/{train,val,test}.txt           names TTT_S.mp4
    lists/manipulated_videos_distortions_meta/manipulated_videos_VARIANT_meta.txt
                                                PATH TYPE:LEVEL [TYPE:LEVEL …], in the order of application

The real beside TTT_S.mp4 is the video TTT of FaceForensics++ at rate c23, in the split of its forgery and
under the same distortions, which are yet to be applied to it (the authors' answer to users of the data).
The recordings of the actors, source_videos, are no reals: no forgery shows what they show.

Table 4 trains on each method of FaceForensics++, too, in the split of the targets: its forgery of TTT is
manipulated_sequences/METHOD/c23/videos/TTT_SSS.mp4, beside the same real.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import get_args

from memory.records import REAL
from updater.data.layouts.entries import Entry, LayoutError, Listing, Split
from updater.data.layouts.listed import (
    MISSING,
    Tally,
    group_items,
    kept_apart,
    lines_of,
    media_in,
    refuse_another_release,
    subfolders,
)
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import LEVELS, DistortionError, Step
from updater.distortions.files import parse_line

FAMILY = "DF-VAE"
VARIANTS = {
    "std": "end_to_end",
    "sing": "end_to_end_level_5",
    "rand": "end_to_end_random_level",
    "mix2": "end_to_end_mix_2_distortions",
    "mix3": "end_to_end_mix_3_distortions",
    "mix4": "end_to_end_mix_4_distortions",
    **{f"level{level}": f"end_to_end_level_{level}" for level in LEVELS},
    "reenact": "reenact_postprocess",
}
"""the folder of each variant; the paper's "sing" is level 5 alone, and its "mix" is mix3"""
FACEFORENSICS = {"df": "Deepfakes", "f2f": "Face2Face", "fs": "FaceSwap", "nt": "NeuralTextures"}
"""methods of FaceForensics++ by the names of table 4"""
_PLAIN = ("std", "reenact", *FACEFORENSICS)

_OF_PAIR = "[0-9][0-9][0-9]_[0-9][0-9][0-9].mp4"
_NAME = re.compile(r"(\d{3})_([MW]\d{3})\.mp4")
_ACTOR = re.compile(r"[MW]\d{3}(?:_.*)?")
# DeeperForensics' own, and those that FaceForensics++ has beside its originals.
_ACTORS = re.compile(r"(?:^|/)(?:source_videos|original_sequences/actors)/")
_OTHER_RATE = re.compile(r"/(raw|c40)/videos$")
ORIGINALS = Path("original_sequences/youtube/c23/videos")


def load_deeperforensics(folder: Path, reals: Path, variant: str = "std") -> Listing:
    """List the forgeries of a variant, or of a method of FaceForensics++, and after them their reals.

    reals: FaceForensics++, or its folder of original videos at c23. Raises LayoutError for an unknown
    variant, for lists that are missing or say no distortion, for actors given as reals, and where fewer
    than half of the listed forgeries, or of their reals, are there.
    """
    if variant not in (known := (*VARIANTS, *FACEFORENSICS)):
        raise LayoutError(f"{variant!r} is no variant of DeeperForensics: name one of {', '.join(known)}")
    originals, family = _originals(reals), FACEFORENSICS.get(variant, FAMILY)
    of_target: dict[str, Path] = {}
    if variant in VARIANTS:
        videos = folder / "manipulated_videos" / VARIANTS[variant]
    else:
        videos = reals / "manipulated_sequences" / family / "c23/videos"
        of_target = {path.name[:3]: path for path in sorted(videos.glob(_OF_PAIR))}
    if not videos.is_dir():
        raise LayoutError(f"{videos} is missing: unpack it there")
    tally = Tally()
    meta = None if variant in _PLAIN else _meta(folder, VARIANTS[variant])
    names = list(_names(folder, tally))
    groups = group_items([(f"actor {actor}", f"target {target}") for _, target, actor, _ in names])
    forged: list[Entry] = []
    real: dict[Path, Entry] = {}
    missing: set[Path] = set()
    for (name, target, _, split), group in zip(names, groups, strict=True):
        path, original = of_target.get(target, videos / name), originals / f"{target}.mp4"
        if not path.is_file():
            tally.add(MISSING, path)
        elif meta is not None and name not in meta:
            tally.add("videos have no line in the list of distortions, and are left out", path)
        else:
            distortions = meta[name] if meta is not None else ()
            forged.append(
                Entry(path, 1, family, group, split, distortions=distortions, distorted=bool(distortions))
            )
            if original.is_file():
                real.setdefault(original, Entry(original, 0, REAL, group, split, distortions=distortions))
            elif original not in missing:
                missing.add(original)
                tally.add("originals of FaceForensics++ are missing", original)
    refuse_another_release(folder / "lists/splits", len(names) - tally[MISSING], len(names))
    refuse_another_release(f"{folder / 'lists/splits'}, by its targets,", len(real), len(real) + len(missing))
    entries = kept_apart([*forged, *real.values()], tally)
    return Listing(f"deeperforensics-{variant}", entries, tally.notes())


def load_hidden(folder: Path) -> Listing:
    """List DIR/real and DIR/fake as a test, each file a group. Raises LayoutError where one has no file."""
    entries = [
        Entry(path, label, family, path.relative_to(folder).as_posix(), "test")
        for kind, label, family in (("real", 0, REAL), ("fake", 1, "hidden"))
        for path in media_in(folder / kind, "real and fake, with videos")
    ]
    return Listing("deeperforensics-hidden", tuple(entries), ())


def _meta(folder: Path, variant: str) -> dict[str, tuple[Step, ...]]:
    """Return the distortions of each video's name."""
    path = folder / f"lists/manipulated_videos_distortions_meta/manipulated_videos_{variant}_meta.txt"
    meta = {}
    for number, line in enumerate(lines_of(path), 1):
        try:
            name, steps = parse_line(line)
            if not steps or not {step.name for step in steps}.issubset(DEEPERFORENSICS):
                raise DistortionError(f"it needs TYPE:LEVEL, with a type of {', '.join(DEEPERFORENSICS)}")
        except DistortionError as error:
            raise LayoutError(f"{path}, line {number}: {error}") from None
        meta[PurePosixPath(name.replace("\\", "/")).name] = steps
    return meta


def _names(folder: Path, tally: Tally) -> Iterator[tuple[str, str, str, Split]]:
    """Yield each listed video's name, target, actor and split."""
    seen = set()
    for split in get_args(Split):
        for line in lines_of(folder / "lists" / "splits" / f"{split}.txt"):
            name = PurePosixPath(line.replace("\\", "/")).name
            if (parts := _NAME.fullmatch(name)) is None:
                tally.add("listed names are not TTT_S.mp4, and are left out", line[:100])
            elif (name, split) in seen:
                tally.add("names are listed again, and left out", name)
            else:
                seen.add((name, split))
                yield name, parts[1], parts[2], split


def _originals(reals: Path) -> Path:
    """Return the folder of FaceForensics++'s originals. Raises LayoutError where it has none, or others."""
    place = reals / ORIGINALS if (reals / ORIGINALS).is_dir() else reals
    if _ACTORS.search(f"{place.as_posix()}/ {place.resolve().as_posix()}/") or _has_actors(place):
        raise LayoutError(
            f"{place} holds recordings of actors, which are no reals of these forgeries: name FaceForensics++"
            f" or its {ORIGINALS}"
        )
    if other := _OTHER_RATE.search(place.resolve().as_posix()):
        raise LayoutError(
            f"{place} holds originals at {other[1]}, by which alone they could be told from forgeries made of"
            f" c23: name FaceForensics++ or its {ORIGINALS}"
        )
    if not any(place.glob("[0-9][0-9][0-9].mp4")):
        raise LayoutError(f"{place} holds no TTT.mp4: name FaceForensics++ or its {ORIGINALS}")
    return place


def _has_actors(place: Path) -> bool:
    return (
        (place / "source_videos").is_dir()
        or any(_ACTOR.fullmatch(path.name) for path in subfolders(place))
        or any(_ACTOR.fullmatch(path.stem) for path in place.glob("*.mp4"))
    )
