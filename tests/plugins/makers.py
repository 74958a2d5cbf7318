"""A benchmark's run with nothing but what a test of reports is about."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from updater.benchmark.report.results import Figures, Run, Step


def make_run(seed: int, figures: Figures, **rest: Any) -> Run:
    """Return a run of one task with these figures."""
    return Run(
        benchmark="cddb",
        stream="cddb-hard",
        stream_digest="ab" * 32,
        command=("forgewatch",),
        options={},
        versions={},
        device="cpu",
        seed=seed,
        tasks=("gaugan",),
        matrix=((90.0,),),
        steps=(Step(task="gaugan", figures=Figures(), seconds={}),),
        figures=figures,
        **rest,
    )


def picture(number: int) -> bytes:
    """Return a PNG of noise, another one for each number."""
    rng = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files by their paths below a folder, and return that."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
