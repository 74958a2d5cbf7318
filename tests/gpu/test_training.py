"""What only a GPU shows of training: `make gpu-check` says of each line that it passed, failed or why not."""

import io
import itertools
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median

import faiss
import numpy as np
import onnxruntime
import pytest
import torch
from handler_calls import Context
from safetensors.torch import load_file
from torch.nn import functional as F

from detector.features.texture import CropFeatures
from detector.handler import Handler
from detector.release.manifest import Architecture
from detector.release.tensors import REQUEST_TYPE, beyond_tolerance, decode, differences, encode
from detector.serving.session import open_session
from memory.index.ivf_index import IvfIndex
from updater.benchmark.forgerynet import training
from updater.benchmark.forgerynet.training import PAPER, TrainingJob, cross_entropy, draw_batches, train
from updater.benchmark.networks.maps import make_map_network
from updater.benchmark.networks.videos import make_video_network
from updater.data.training_data import LabelledCrops
from updater.training import loop, two_stages
from updater.training.crop_rows import backbone_rows, by_rows
from updater.training.fit import Checkpoint
from updater.training.loop import Training, item_weights
from updater.training.losses import classification
from updater.training.step import FIRST, Recipe, Step

CLASSES = ("real", "blocky")
RECIPE = Recipe(30, 1e-3, 30, 2e-3, 0.3, batch=16)
SCRIPT = Path(__file__).with_name("train_in_processes.py")


@pytest.fixture
def items():
    """Smooth noise, and the same in blocks of two pixels."""
    rng = np.random.default_rng(0)
    crops = (128 + 20 * rng.standard_normal((64, 64, 64, 3))).clip(0, 255).astype(np.uint8)
    crops[32:] = crops[32:, ::2, ::2].repeat(2, 1).repeat(2, 2)
    names = tuple(str(number) for number in range(64))
    families = ("real",) * 32 + ("blocky",) * 32
    return LabelledCrops(names, families, names, names, crops, np.arange(65))


def test_cuda_computes_the_forensic_features_of_the_cpu(gpu, items):
    here = by_rows(CropFeatures(64), items.crops, torch.device("cpu"))
    there = by_rows(CropFeatures(64).to(gpu), items.crops, gpu)
    # Some bins are hard: what lies on an edge may fall to either side.
    assert (np.abs(here - there) <= 1e-3 + 1e-3 * np.abs(here)).mean() > 0.99


@pytest.mark.parametrize("backbone", ["none", "lcnet_050", "vit_tiny_patch16_224"])
def test_amp_trains_a_network_that_tells_the_classes_apart(gpu, items, backbone):
    architecture = Architecture(backbone=backbone, crop_px=64)
    step = Step(items, CLASSES, architecture, recipe=RECIPE, device=gpu)
    network = two_stages.learn(step).network
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())
    crops = torch.from_numpy(items.crops).to(gpu).float().permute(0, 3, 1, 2)
    with torch.no_grad():
        said = network(crops, torch.eye(64, device=gpu)).logits.argmax(1).cpu().numpy()
    assert (said == np.repeat([0, 1], 32)).mean() > 0.9


def test_nccl_makes_of_two_gpus_the_network_of_one(gpu, items, tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU, and nccl needs two")
    np.save(tmp_path / "crops.npy", items.crops)
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    networks = []
    for processes in (1, 2):
        subprocess.run(
            [*launched, f"--nproc-per-node={processes}", str(SCRIPT), str(tmp_path), "cuda"],
            env=os.environ | {"NCCL_SOCKET_IFNAME": "lo", "PYTHONPATH": str(SCRIPT.parents[2])},
            timeout=300,
            check=True,
        )
        networks += [load_file(tmp_path / f"{rank}.safetensors") for rank in range(processes)]
    alone, first, second = networks
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    # AdamW's first updates are signs, so that rounding may turn some of them round.
    apart = {k: float((alone[k].double() - value.double()).abs().max()) for k, value in first.items()}
    assert max(v for k, v in apart.items() if not k.endswith("running_var")) < 0.1


class OnOneBatch(Training):
    """The same loop on its first batch again and again, so that nothing is drawn, forged or brought over."""

    def batches(self, network, weights, numbers, rows):
        ready = next(iter(super().batches(network, weights, range(numbers.start, numbers.start + 1), rows)))
        return (ready for _ in numbers)


def shares_not_waited(step, steps, rounds):
    """By stage, the share of the loop's time in which the network is trained, and does not wait; 1 is all.

    steps: of both stages. The loop and the fixed batch take turns, since a machine's speed drifts. The first
    sixteen steps do not count: rows are drawn ahead in sixteens.
    """
    network = loop.start(step)
    data = loop.training_set(step, network)
    loop.whiten(network, step, data)
    stages = dict(zip(("backbone", "balanced"), steps, strict=True))
    if step.architecture.backbone == "none":
        del stages["backbone"]  # nothing would train it
    shares = {}
    for stage, count in stages.items():
        rows = None if stage == "backbone" else backbone_rows(network, data.crops, step.device)
        seconds = {Training: [], OnOneBatch: []}
        for _, kind in itertools.product(range(rounds), seconds):
            read = []

            def clock(stage, done, total, read=read):
                step.progress(stage, done, total)
                if done in (16, total):
                    if step.device.type == "cuda":
                        torch.cuda.synchronize(step.device)
                    read.append(time.perf_counter())

            run = kind(replace(step, progress=clock), data, Checkpoint(None, "", (stage,)))
            weights = item_weights(data.targets, 0.5)
            run.run(stage, network, classification(step, data), weights, steps=count, rate=1e-4, rows=rows)
            seconds[kind].append(read[1] - read[0])
        shares[stage] = median(seconds[OnOneBatch]) / median(seconds[Training])
    return shares


@pytest.mark.parametrize("backbone", ["none", "resnet10t", "vit_tiny_patch16_224"])
def test_training_hardly_waits_for_its_data(gpu, items, backbone):
    crops = items.crops.repeat(2, 1).repeat(2, 2)
    step = Step(
        replace(items, crops=crops), CLASSES, Architecture(backbone=backbone), recipe=FIRST, device=gpu
    )
    shares = shares_not_waited(step, (46, 336), rounds=3)
    assert {stage: share for stage, share in shares.items() if share < 0.9} == {}


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["none", "lcnet_035"])
def test_a_wait_for_data_would_be_seen(items, backbone, monkeypatch):
    """By a clock of its own: a step takes a second, and drawing a batch of rows takes none, or three."""
    seconds, drawing = 0.0, 0.0
    ready = loop.ready_rows

    def drawn(*made_of):
        nonlocal seconds
        seconds += drawing
        return ready(*made_of)

    def trained(stage, done, total):
        nonlocal seconds
        seconds += stage in ("backbone", "balanced")

    monkeypatch.setattr(time, "perf_counter", lambda: seconds)
    monkeypatch.setattr(loop, "ready_rows", drawn)
    step = Step(items, CLASSES, Architecture(backbone=backbone, crop_px=64), recipe=RECIPE, progress=trained)
    of_backbone = {} if backbone == "none" else {"backbone": 1}
    assert shares_not_waited(step, (18, 48), rounds=1) == of_backbone | {"balanced": 1}
    drawing = 3.0
    assert shares_not_waited(step, (18, 48), rounds=1) == of_backbone | {"balanced": 0.25}


def test_more_crops_at_once_are_as_many_as_the_memory_holds(gpu, items):
    many = replace(items, crops=np.concatenate([items.crops] * 64))
    found = by_rows(CropFeatures(64).to(gpu), many.crops, gpu)
    assert len(found) == 64 * 64


def test_the_memory_s_index_lies_on_the_gpu_and_finds_what_the_flat_index_finds(gpu):
    if not faiss.get_num_gpus():
        pytest.skip("this faiss sees no GPU: it is faiss-cpu, or no driver is there")
    rows = np.random.default_rng(0).standard_normal((30_000, 662)).astype(np.float32)
    flat = faiss.IndexFlatL2(662)
    flat.add(rows)
    index = IvfIndex.train(rows, len(rows), seed=0)
    index.add(rows[:-100], np.arange(len(rows) - 100))
    index.fit(rows, seed=0)
    expected = flat.search(rows[:200], 10)[1]
    assert index.search(rows[:1], 1)[1].item() == 0
    index.add(rows[-100:], np.arange(len(rows) - 100, len(rows)))
    places = index.search(rows[:200], 10)[1]
    assert np.mean([np.isin(*both).mean() for both in zip(expected, places, strict=True)]) >= 0.95
    assert (index.search(rows[-100:], 1)[1][:, 0] == np.arange(len(rows) - 100, len(rows))).all()
    index.remove(np.array([7]))
    assert index.search(rows[7:8], 1)[1].item() != 7
    file = io.BytesIO()
    index.write(file)
    assert file.tell() > 30_000 * 662 * 2


# What only a GPU shows of serving: `make gpu-check` says of each line that it passed, failed or why not.
def test_torchserve_s_handler_scores_on_the_gpu_as_on_the_cpu(gpu, untrained_artifact):
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(
            f"onnxruntime {onnxruntime.__version__} has no CUDA provider: onnxruntime-gpu would bring it"
        )
    side = untrained_artifact.manifest.contract.crop_plan.crop_px
    crops = np.random.default_rng(0).integers(0, 256, (40, side, side, 3), dtype=np.uint8)
    request = {"crops": crops, "pooling": np.kron(np.eye(8), np.full(5, 0.2)).astype(np.float32)}
    handler, context = Handler(), Context(untrained_artifact.folder, REQUEST_TYPE, gpu=0)
    handler.initialize(context)
    assert handler._session._session.get_providers()[0] == "CUDAExecutionProvider"
    (answer,) = handler.handle([{"body": encode(request)}], context)
    here = open_session(untrained_artifact, threads=1).score(request)
    assert beyond_tolerance(differences(decode(answer), here)) == []


# What only a GPU shows of ForgeryNet's tasks: an epoch by AMP, and whether training waits for its data.
def clips():
    recipe = replace(PAPER["video"], batch=16, steps=30)
    shown = np.random.default_rng(0).integers(0, 256, (8, 16, 224, 224, 3), dtype=np.uint8)

    def load(row, rng):
        return shown[row], np.array(row % 2)

    make = partial(make_video_network, "x3d_m", 2, 224, 16)
    return TrainingJob(make, load, np.full(8, 1 / 8), "noise", recipe, cross_entropy)


def pictures():
    recipe = replace(PAPER["image"], px=256, batch=16, steps=30)
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (16, 256, 256, 3), dtype=np.uint8)
    truth = (rng.random((16, 256, 256)) < 0.2).astype(np.float32)

    def load(row, rng):
        return shown[row], truth[row]

    def loss(said, true):
        return F.binary_cross_entropy_with_logits(said[:, 2:], true.flatten(1))

    make = partial(make_map_network, "unet:legacy_xception", 256)
    return TrainingJob(make, load, np.full(16, 1 / 16), "noise", recipe, loss)


@pytest.mark.parametrize("made", [clips, pictures], ids=["x3d_m", "unet:legacy_xception"])
def test_amp_trains_the_network_of_a_task(gpu, made):
    what = made()
    network = train(what, seed=0, device=gpu, checkpoint=None)
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())


def seconds_of(what, device):
    """Train for 30 steps, and return the time of all but the first six, whose batches were loaded ahead."""
    read = []

    def step(done, total):
        if done in (6, total):
            torch.cuda.synchronize(device)
            read.append(time.perf_counter())

    train(what, seed=0, device=device, checkpoint=None, progress=step)
    return read[-1] - read[0]


def on_one_batch(job, steps, seed):
    """Yield the first batch again and again, so that nothing is loaded."""
    with closing(draw_batches(job, range(1), seed)) as batches:
        ready = next(batches)
    yield from repeat(ready, len(steps))


@pytest.mark.parametrize("made", [clips, pictures], ids=["x3d_m", "unet:legacy_xception"])
def test_training_for_a_task_does_not_wait_for_its_data(gpu, made, monkeypatch):
    what, own, fixed = made(), [], []
    for _ in range(3):  # in turns, since a machine's speed drifts
        own.append(seconds_of(what, gpu))
        with monkeypatch.context() as patch:
            patch.setattr(training, "draw_batches", on_one_batch)
            fixed.append(seconds_of(what, gpu))
    assert median(fixed) / median(own) >= 0.9
