"""A published set as a stream: one forgery family after another, each beside reals of its own."""

from collections.abc import Sequence

from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.data.tasks import FAKE, Stream, Task, hold_back
from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.data.layouts.layouts import family_of, pictures_of
from updater.data.layouts.listed import reported_split
from updater.data.training_data import LabelledCrops


def load_families(
    listing: Listing, reader: CropReader, *, calibration_share: float = 0.25, seed: int = 0
) -> Stream:
    """Read a listing's families as tasks, in the order of the listing.

    The reals' groups are dealt out to the tasks in turn, so that no real is in two. What the set reports by
    is the test; of the rest, `hold_back` keeps some for calibration. Raises LayoutError where the set has
    nothing to test on, and what `CropReader.read` raises.
    """
    reported = reported_split(listing)
    if reported is None:
        raise LayoutError(
            f"{listing.name} has no labelled test or validation beside its training: unpack one"
        )
    names = list(dict.fromkeys(family_of(entry) for entry in listing.entries if entry.label))
    real_groups = sorted({entry.group for entry in listing.entries if not entry.label})
    dealt = {group: names[number % len(names)] for number, group in enumerate(real_groups)}

    def read(name: str, part: str, entries: Sequence[Entry]) -> LabelledCrops:
        files = [
            MediaFile(path, str(path), f"{name}/{FAKE if entry.label else 'real'}", entry.group)
            for entry in entries
            if (family_of(entry) if entry.label else dealt[entry.group]) == name
            for path in pictures_of(entry)
        ]
        return reader.read(f"read {name}/{part}", name, files)

    test = [entry for entry in listing.entries if entry.split == reported]
    rest = [entry for entry in listing.entries if entry.split != reported]
    tasks = []
    for name in names:
        kept, held = hold_back(read(name, "train", rest), calibration_share, seed)
        tasks.append(Task(name, kept, held, read(name, "test", test)))
    return Stream(listing.name, tuple(tasks), plan=reader.plan)
