"""What stands in for the hidden test set, which was never released: forgeries by methods that nothing learnt.

Each clip, real or forged, is under a mix of two to four of our own 36 distortions, so that neither the method
nor a distortion was in the training.
"""

from dataclasses import replace
from pathlib import Path

from updater.benchmark.data.deeperforensics import load_deeperforensics
from updater.benchmark.data.entries import Entry
from updater.benchmark.data.tasks import LayoutError
from updater.distortions.distortion import Step
from updater.distortions.methods import FORGERYNET, MIXED, drawn
from updater.draws import RandomStream

OTHER_METHOD = "reenact"
"""the variant of the data set that another method made"""


def drawn_others(number: int, seed: int = 0) -> tuple[Step, ...]:
    """Draw a mix of two to four of the 36 for the clip of that number."""
    rng = RandomStream.OTHER_DISTORTIONS.generator(seed, number)
    return drawn(rng, int(rng.choice(MIXED)), names=tuple(FORGERYNET))


def ours(folder: Path, reals: Path) -> tuple[Entry, ...]:
    """Return the other method's test clips and their reals, to be distorted; nothing where there are none."""
    try:
        listing = load_deeperforensics(folder, reals, OTHER_METHOD)
    except LayoutError:
        return ()
    test = [one for one in listing.entries if one.split == "test"]
    return tuple(
        replace(entry, distortions=drawn_others(number), distorted=False) for number, entry in enumerate(test)
    )
