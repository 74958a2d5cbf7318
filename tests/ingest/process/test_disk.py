import shutil
from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.process.disk import Disks


def test_a_folder_shows_the_room_of_its_file_system_before_it_is_made(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(Disks({"work": tmp_path / "not" / "yet", "database": None}))
    usage = shutil.disk_usage(tmp_path)
    assert registry.get_sample_value("forgewatch_ingest_disk_size_bytes", {"volume": "work"}) == usage.total
    free = registry.get_sample_value("forgewatch_ingest_disk_free_bytes", {"volume": "work"})
    assert free is not None
    assert abs(free - usage.free) < 2**30
    assert registry.get_sample_value("forgewatch_ingest_disk_free_bytes", {"volume": "database"}) is None


def test_a_folder_that_cannot_be_looked_at_leaves_the_others_their_samples(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    registry = CollectorRegistry()
    registry.register(Disks({"index": tmp_path / "loop" / "index", "tmp": tmp_path}))
    assert registry.get_sample_value("forgewatch_ingest_disk_size_bytes", {"volume": "tmp"}) is not None
