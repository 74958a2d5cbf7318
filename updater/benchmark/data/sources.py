"""Media of one's own by source: DIR/SOURCE/…/{0_real,1_fake}/[GROUP/]FILE. CDDB's layout is one of these."""

from pathlib import Path

from memory.records import REAL
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.data.tasks import FAKE, is_real
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import media_in, subfolders
from updater.data.training_data import LabelledCrops

_KINDS = {"0_real": REAL, "real": REAL, "1_fake": FAKE, "fake": FAKE}
_LAYOUT = "SOURCE/0_real and SOURCE/1_fake with media, of which one source may lack one"


def load_sources(folder: Path, reader: CropReader) -> list[LabelledCrops]:
    """Read each file below a 0_real (or real) or 1_fake (or fake) of a source, as SOURCE/real or SOURCE/fake.

    Each source is a part of its own. The folders between a kind and its file are the file's group, within its
    source; else its own bytes are. Raises LayoutError where there are no reals or no fakes, and what
    `CropReader.read` raises.
    """
    if not folder.is_dir():
        raise LayoutError(f"{folder} is no folder: name one that holds {_LAYOUT}")
    parts = []
    for source in subfolders(folder):
        found_in = (_file(folder, source, path) for path in media_in(source, _LAYOUT))
        files = [file for file in found_in if file is not None]
        if files:
            parts.append(reader.read(f"read {source.name}", source.name, files))
    if len({is_real(name) for part in parts for name in part.families}) < 2:
        raise LayoutError(f"{folder} holds no reals or no fakes: it needs {_LAYOUT}")
    return parts


def _file(folder: Path, source: Path, path: Path) -> MediaFile | None:
    """Return a file with its class and its group; None where no folder above it says its class."""
    above = path.relative_to(source).parts[:-1]
    place = next((place for place, part in enumerate(above) if part in _KINDS), None)
    if place is None:
        return None
    group = "/".join((source.name, *above[place + 1 :])) if above[place + 1 :] else None
    name = path.relative_to(folder).as_posix()
    return MediaFile(path, name, f"{source.name}/{_KINDS[above[place]]}", group)
