import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ingest.records import CropPlan
from ingest.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory import rows
from memory.crop_store import CropStore
from memory.import_folder import Imported, ImportFolderError, import_folder
from memory.labels import undo
from memory.settings import MemorySettings
from memory.store import Store, StoreUnavailableError

PLAN = CropPlan(crop_px=64, patches=2, face_patches=0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(IngestSettings(decode_processes=1)) as opened:
        yield opened


def picture(number: int) -> bytes:
    rng = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {f"0_real/scene-{i // 2}/{i}.png": picture(i) for i in range(6)}
    files |= {f"gan/scene-{i // 2}/{i}.png": picture(100 + i) for i in range(6)}
    files |= {f"blend/{i}.png": picture(200 + i) for i in range(3)}
    return lay(tmp_path / "data", files)


def take(
    folder: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> Imported:
    seen: list[tuple[int, int]] = []
    done = import_folder(
        folder,
        store,
        crops,
        sandbox,
        PLAN,
        settings,
        actor="ada",
        max_file_bytes=100_000,
        progress=lambda n, total: seen.append((n, total)),
    )
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(done.new.values()) + done.already + len(done.skipped)
    return done


def test_folders_become_labelled_exemplars_with_their_groups(
    folder: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> None:
    done = take(folder, store, crops, sandbox, settings)
    assert done.new == Counter(real=6, gan=6, blend=3)
    assert done.skipped == []
    with store.read() as connection:
        exemplars = rows.select_exemplars(connection)
    assert Counter(str(e.family) for e in exemplars) == done.new
    splits: dict[str, set[str | None]] = {}
    for e in exemplars:
        splits.setdefault(e.group, set()).add(e.split)
        assert crops.load(str(e.crops_digest)).shape == (2, 64, 64, 3)
        assert e.source == "import:data"
    assert {f"scene-{i}" for i in range(3)} < splits.keys()
    assert all(len(sides) == 1 for sides in splits.values())


def test_to_import_again_adds_only_what_is_new(
    folder: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> None:
    take(folder, store, crops, sandbox, settings)
    again = take(folder, store, crops, sandbox, settings)
    assert (again.new, again.already, again.labels) == (Counter(), 15, {})
    lay(folder, {"gan/late.png": picture(300)})
    assert take(folder, store, crops, sandbox, settings).new == Counter(gan=1)


def test_bad_files_are_named_with_the_reason_and_the_others_come_in(
    folder: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> None:
    lay(
        folder,
        {
            "gan/empty.png": b"",
            "gan/text.png": b"no picture",
            "gan/cut.png": picture(400)[:300],
            "gan/huge.png": b"x" * 100_001,
            "gan/twin.png": picture(200),
            "Bad Name/a.png": picture(401),
            "ignore/a.png": picture(402),
            "stray.png": picture(403),
            ".hidden/a.png": picture(404),
        },
    )
    done = take(folder, store, crops, sandbox, settings)
    assert done.new == Counter(real=6, gan=6, blend=3)
    reasons = {s.path: s.reason for s in done.skipped}
    assert reasons.keys() == {
        "gan/empty.png",
        "gan/text.png",
        "gan/cut.png",
        "gan/huge.png",
        "gan/twin.png",
        "Bad Name/a.png",
        "ignore/a.png",
        "stray.png",
    }
    assert "the same bytes are in the memory as blend" in reasons["gan/twin.png"]
    assert "is no family name" in reasons["Bad Name/a.png"]
    assert "too_large" in reasons["gan/huge.png"]
    assert not any("\n" in reason for reason in reasons.values())


def test_an_import_is_undone_class_by_class(
    folder: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> None:
    done = take(folder, store, crops, sandbox, settings)
    undo(store, done.labels["gan"], "ada")
    with store.read() as connection:
        assert rows.counts(connection)[("unknown", None)] == 6


def test_an_interrupted_import_goes_on_where_it_stopped(
    tmp_path: Path,
    store: Store,
    crops: CropStore,
    sandbox: Sandbox,
    settings: MemorySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = lay(tmp_path / "data", {f"gan/{i:03}.png": picture(i) for i in range(70)})
    written = 0
    put = CropStore.put

    def break_off(self: CropStore, array: np.ndarray) -> str:
        nonlocal written
        written += 1
        if written > 40:
            raise StoreUnavailableError("the disk went away")
        return put(self, array)

    monkeypatch.setattr(CropStore, "put", break_off)
    with pytest.raises(StoreUnavailableError):
        take(folder, store, crops, sandbox, settings)
    monkeypatch.undo()
    done = take(folder, store, crops, sandbox, settings)
    assert (done.new, done.already) == (Counter(gan=38), 32)


def test_a_folder_without_files_is_refused(
    tmp_path: Path, store: Store, crops: CropStore, sandbox: Sandbox, settings: MemorySettings
) -> None:
    for wrong in (tmp_path / "nowhere", lay(tmp_path / "empty", {".keep": b""})):
        with pytest.raises(ImportFolderError):
            take(wrong, store, crops, sandbox, settings)
