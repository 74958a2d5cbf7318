import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from updater.training import processes

SCRIPT = Path(__file__).with_name("process_of_several.py")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("process_of_several", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(labelled, tmp_path_factory, fork_together):
    """Where two processes wrote what they have."""
    folder = tmp_path_factory.mktemp("processes")
    items = labelled({"real": 6, "blocky": 6, "striped": 4})
    np.savez(folder / "items.npz", families=items.families, crops=items.crops, starts=items.starts)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    assert [one.wait(180) for one in fork_together(2, SCRIPT, environment, str(folder))] == [0, 0]
    return folder


def of(folder, rank, part):
    tensors = load_file(folder / f"{rank}.safetensors")
    return {k.removeprefix(part + "."): v for k, v in tensors.items() if k.startswith(part + ".")}


def worst(one, other):
    assert one.keys() == other.keys()
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one)


def test_two_processes_train_the_network_of_one(folder, script):
    items = script.load(folder)
    single, begun = script.two_steps(items), script.two_steps(items, rate=0.0)
    assert worst(single, begun) > 1e-2, "what does not move is the same whoever trains it"
    assert worst(of(folder, 0, "trained"), single) < 1e-4


def test_both_processes_have_the_same_network(folder):
    assert worst(of(folder, 0, "trained"), of(folder, 1, "trained")) == 0


def test_rows_gradients_and_statistics_are_those_of_the_whole_batch(folder, script):
    single = script.normalised()
    assert worst(of(folder, 0, "normalised"), single) < 1e-4
    assert worst(of(folder, 1, "normalised"), single) < 1e-4


def test_each_process_passes_its_share_of_the_crops_and_both_have_the_rows_of_one(folder, script):
    single = script.rows_of_crops(script.load(folder))
    shared = [of(folder, rank, "rows") for rank in range(2)]
    assert [int(one.pop("passed")) for one in shared] == [32, 32]
    assert int(single.pop("passed")) == 64
    assert worst(shared[0], single) == 0
    assert worst(shared[1], single) == 0


def test_only_the_first_process_leaves_files_and_no_checkpoint_is_left(folder):
    assert {path.name for path in folder.iterdir()} == {"items.npz", "0.safetensors", "1.safetensors"}


def test_alone_nothing_is_joined_shared_or_waited_for():
    images = torch.arange(3.0)[:, None]
    with processes.join_processes(torch.device("cpu")) as device:
        assert device == torch.device("cpu")
        assert processes.count() == 1
        assert processes.is_first()
        assert torch.equal(processes.by_share(lambda own: own + 1, images), images + 1)
        assert processes.broadcast(images) is images
        processes.wait()
        processes.add_gradients([torch.nn.Parameter(images)])
        processes.agree(torch.nn.Linear(1, 1))
