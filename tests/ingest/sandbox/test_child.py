import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.forks import command
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow


def test_a_child_imports_nothing_from_the_folder_that_its_parent_works_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ingest", "json", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working folder')")
    buffer = BytesIO()
    Image.new("RGB", (256, 256)).save(buffer, "JPEG")
    monkeypatch.chdir(tmp_path)
    with Sandbox(IngestSettings()) as box:
        assert len(box.submit(buffer.getvalue(), MediaPlan(crops=CropPlan(patches=4))).result(60).crops) == 4
    # The same command in that folder: what keeps a child from it is the folder that it is started in.
    alone = subprocess.run(command(), capture_output=True, text=True, check=False)
    assert "a module of the working folder" in alone.stderr
