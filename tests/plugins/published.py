"""Small trees of the form of published sets, and weights as a model's authors would publish them."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from PIL import Image


def picture(number):
    rng = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def lay(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def faceforensics(folder):
    """Lay out three pairs, one a split, with two methods."""
    pairs = {"train": ["000", "003"], "val": ["010", "013"], "test": ["020", "023"]}
    videos = [f"original_sequences/youtube/c23/videos/{name}.mp4" for pair in pairs.values() for name in pair]
    videos += [
        f"manipulated_sequences/{method}/c23/videos/{name}.mp4"
        for method in ("Deepfakes", "FaceSwap")
        for a, b in pairs.values()
        for name in (f"{a}_{b}", f"{b}_{a}")
    ]
    lists = {f"splits/{split}.json": json.dumps([pair]).encode() for split, pair in pairs.items()}
    return lay(folder, lists | _pictures(videos))


def dfdc(folder):
    """Lay out a part with two originals and a fake of each, and a test."""
    files = {
        "aa.mp4": {"label": "REAL", "original": None},
        "ab.mp4": {"label": "FAKE", "original": "aa.mp4"},
        "ba.mp4": {"label": "REAL", "original": None},
        "bb.mp4": {"label": "FAKE", "original": "ba.mp4"},
    }
    lists = {
        "dfdc_train_part_0/metadata.json": json.dumps(files).encode(),
        "test/labels.csv": b"filename,label\nta.mp4,1\ntb.mp4,0\n",
    }
    videos = [*(f"dfdc_train_part_0/{name}" for name in files), "test/ta.mp4", "test/tb.mp4"]
    return lay(folder, lists | _pictures(videos))


def deepfakebench(folder):
    """Lay out a list whose videos are kept as pictures of their frames, by another machine's paths."""

    def video(label, name, frames):
        return {"label": label, "frames": [f"D:\\rgb\\{label}\\{name}\\{n}.png" for n in range(frames)]}

    named = {
        "CelebDFv2_real": {"train": {"id0_0001": 17, "id1_0001": 2}, "test": {"id2_0001": 2}},
        "CelebDFv2_fake": {"train": {"id0_id1_0001": 17}, "test": {"id2_id0_0001": 2}},
    }
    listed = {
        label: {
            split: {name: video(label, name, frames) for name, frames in videos.items()}
            for split, videos in splits.items()
        }
        for label, splits in named.items()
    }
    frames = [
        f"{label}/{name}/{number}.png"
        for label, splits in named.items()
        for videos in splits.values()
        for name, count in videos.items()
        for number in range(count)
    ]
    lists = {"dataset_json/Celeb-DF-v2.json": json.dumps({"Celeb-DF-v2": listed}).encode()}
    return lay(folder, lists | _pictures(frames))


def forgerynet(folder):
    """Lay out pictures of two directories of forgeries and one of reals, for training and validation."""
    files: dict[str, bytes] = {}
    for part, top in (("Training", "train_release"), ("Validation", "val_perturb_release")):
        rows = []
        for directory, classes in ((1, "1 2 1"), (7, "1 1 7"), (16, "0 0 0")):
            for group in range(2):
                path = f"{top}/{directory}/{part[0]}{group}{directory:02}/frame00001.png"
                files |= _pictures([f"{part}/image/{path}"])
                rows.append(f"{path} {classes}\n")
        files[f"{part}/image_list.txt"] = "".join(rows).encode()
    return lay(folder, files)


def cddb(folder):
    """Lay out a generator's pictures, which stand alone, and frames of a face swap and of its target."""
    names = [
        f"gaugan/{part}/{kind}/{n}.png" for part in ("train", "val") for kind in _KINDS for n in range(2)
    ]
    names += [f"deepfake/{part}/0_real/033_{n}.png" for part in ("train", "val") for n in range(2)]
    names += [f"deepfake/{part}/1_fake/033_097_{n}.png" for part in ("train", "val") for n in range(2)]
    return lay(folder, _pictures(names))


_KINDS = ("0_real", "1_fake")
TREES: dict[str, Callable[[Path], Path]] = {
    "cddb": cddb,
    "deepfakebench": deepfakebench,
    "dfdc": dfdc,
    "faceforensics": faceforensics,
    "forgerynet": forgerynet,
}


def _pictures(names):
    return {name: picture(crc32(name.encode())) for name in names}


@pytest.fixture
def published(tmp_path):
    """Write random weights of a timm model by its name: for RGB, with a thousand classes and a licence."""

    def published(name):
        # Most processes that test load neither.
        import timm
        import torch
        from safetensors.torch import save_file

        torch.manual_seed(11)
        file = tmp_path / f"{name}.safetensors"
        save_file(timm.create_model(name, pretrained=False).state_dict(), file, {"license": "CC0-1.0"})
        return file

    return published
