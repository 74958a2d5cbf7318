"""A network of task tokens as a release: exported, sealed, read back, and refused by an update."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, load, seal
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.serving.session import Session
from ingest.records import CropPlan
from updater.benchmark.learners import dytox
from updater.benchmark.learners.learnt_file import load_learnt, save_learnt
from updater.benchmark.learners.task_tokens import TaskTokens, make_network
from updater.candidate.plan import CandidateRefusedError, load_parent
from updater.training import two_stages
from updater.training.step import FIRST, Step
from updater.training.weights import Weights, put

CONVIT = Architecture(backbone="convit_tiny", crop_px=64, width=192, forensic=False)
PLAIN = Architecture(backbone="lcnet_035", crop_px=64, width=8, forensic=False)
RECIPE = replace(FIRST, backbone_steps=1, balanced_steps=2, batch=4, pseudo_share=0.25)
OLD = ("real", "blocky")
CLASSES = (*OLD, "striped")
OF_THE_LOGITS = {name: Term(median=0, scale=1, weight=1) for name in ("energy", "pseudo")}
GATE = GateParameters(terms=OF_THE_LOGITS, clip=50, unknown_threshold=0, fake_threshold=0.5)


@pytest.fixture(scope="module", params=[CONVIT, PLAIN], ids=lambda one: one.backbone)
def learnt(request, labelled):
    """Two tasks learnt, one after the other."""
    first = dytox.learn(Step(labelled(dict.fromkeys(OLD, 3)), OLD, request.param, recipe=RECIPE))
    return dytox.learn(
        Step(labelled(dict.fromkeys(CLASSES, 3)), CLASSES, request.param, first, recipe=RECIPE)
    )


def asked(crops, rows):
    rng = np.random.default_rng(crops)
    pooling = rng.random((rows, crops)).astype(np.float32)
    return {
        "crops": rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8),
        "pooling": pooling / pooling.sum(1, keepdims=True),
    }


@pytest.fixture
def release(learnt, tmp_path):
    graph = DetectorGraph(learnt.network, GATE, None)
    contract = export(graph, crops_and_pooling(CropPlan(crop_px=64)), tmp_path / MODEL)
    differences = prove_equal(
        graph, tmp_path / MODEL, contract, [asked(1, 1), asked(7, 3), asked(5, 12), asked(9, 2)]
    )
    save_file(learnt.network.state_dict(), tmp_path / WEIGHTS)
    for name in (PROBE, EVALUATION, MODEL_CARD):
        (tmp_path / name).touch()
    draft = Manifest(
        classes=CLASSES,
        architecture=learnt.network.architecture,
        contract=contract,
        feature_version=None,
        gate=GATE,
        reference=(),
        parent=None,
        calibration={},
        export_differences=differences,
    )
    seal(tmp_path, draft)
    return load(tmp_path)


def test_what_is_served_says_what_was_learnt(learnt, release):
    request = asked(6, 4)
    crops = torch.from_numpy(request["crops"]).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        wanted = learnt.network(crops, torch.from_numpy(request["pooling"]))
    served = Session(release.folder / MODEL, release.manifest.contract, threads=1).score(request)
    assert np.allclose(served["logits"], wanted.logits, atol=1e-4)
    assert release.manifest.architecture.tasks == ((0, 2), (2, 3))


def test_a_network_is_gone_on_from_by_dytox_and_refused_by_the_others(learnt, release, labelled):
    more = (*CLASSES, "posterised")
    step = Step(labelled(dict.fromkeys(more, 2)), more, release.manifest.architecture, learnt, recipe=RECIPE)
    assert dytox.learn(step).network.architecture.tasks == ((0, 2), (2, 3), (3, 4))
    with pytest.raises(ValueError, match="only dytox goes on from it"):
        two_stages.learn(step)
    with pytest.raises(CandidateRefusedError, match="task tokens"):
        load_parent(release)


def test_tasks_that_speak_for_another_number_of_classes_are_refused(learnt):
    with pytest.raises(ValueError, match="speak for 3 logits, and there are 4 classes"):
        make_network(learnt.network.architecture, 4)


def test_a_file_of_it_is_read_back(learnt, tmp_path):
    save_learnt(tmp_path / "learnt.safetensors", learnt)
    found = load_learnt(tmp_path / "learnt.safetensors", torch.device("cpu"))
    assert isinstance(found.network, TaskTokens)
    assert found.network.architecture == learnt.network.architecture
    state = found.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in learnt.network.state_dict().items())


def test_a_convit_of_its_own_width_is_read_as_in_the_paper_and_takes_its_published_weights():
    network = TaskTokens(CONVIT, [(0, 2)])
    heads = timm.create_model("convit_tiny", img_size=64, num_classes=0).blocks[0].attn.num_heads
    # Eight of its blocks, sixteen places of 64 px, no class token, no projection, its heads, an MLP of 4 D.
    assert len(network.backbone.whole.blocks) == 8
    assert network.backbone(torch.zeros(2, 3, 64, 64)).shape == (2, 16 * 192)
    assert not list(network.project.parameters())
    assert network.attention.heads == heads
    assert network.attention.mlp[0].out_features == 4 * 192
    given = timm.create_model("convit_tiny", img_size=64).state_dict()
    put(network, Weights("timm's convit_tiny", given), OLD)
    found = network.backbone.whole.state_dict()
    assert torch.equal(found["blocks.7.mlp.fc1.weight"], given["blocks.7.mlp.fc1.weight"])
    torch.autograd.backward(network(torch.rand(2, 3, 64, 64), torch.eye(2)).logits.sum())
    lacking = [
        name for name, value in network.named_parameters() if value.requires_grad and value.grad is None
    ]
    assert lacking == ["pseudo_head.weight", "pseudo_head.bias"]
