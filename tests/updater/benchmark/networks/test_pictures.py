"""F3-Net's transforms and SAN's aggregation have values that are worked by hand, and weights are found."""

import math

import pytest
import timm
import torch
from safetensors.torch import save_file

from detector.model.backbone import BackboneError, make_backbone
from updater.benchmark.networks import backbones
from updater.benchmark.networks.f3net import FAD_EDGES, BandFilters, Decomposition, LocalStatistics, MixBlock
from updater.benchmark.networks.images import make_image_network
from updater.training.weights import WeightsError


def wave(cycles, side, px):
    """Grey as RGB [1, 3, px, px]: along each row the cosine of so many half cycles in a side."""
    return torch.cos(math.pi * cycles / side * (torch.arange(px) + 0.5)).expand(1, 3, px, px).clone()


def test_bands_of_a_picture_hold_its_waves_and_together_are_the_picture():
    decompose = Decomposition(8)
    # Sums of up to 2, of 3, and of 4 and more.
    assert BandFilters(8, FAD_EDGES).base.sum((1, 2)).tolist() == [6, 4, 54]
    torch.nn.init.zeros_(decompose.filters.learnt)
    noise = torch.rand(2, 3, 8, 8)
    assert torch.allclose(decompose(noise).unflatten(1, (3, 3)).sum(1), noise, atol=1e-5)
    for band, cycles in enumerate((0, 3, 7)):
        wanted = torch.zeros(1, 3, 3, 8, 8)
        wanted[:, band] = picture = wave(cycles, 8, 8)
        assert torch.allclose(decompose(picture).unflatten(1, (3, 3)), wanted, atol=1e-5)
    # σ(ln 3) = 1/2: half of every band is added to each.
    torch.nn.init.constant_(decompose.filters.learnt, math.log(3))
    assert decompose(torch.ones(1, 3, 8, 8))[0, ::3, 0, 0].tolist() == pytest.approx([1.5, 0.5, 0.5])


def test_a_windows_statistics_are_logarithms_of_its_coefficients_by_band():
    statistics = LocalStatistics()
    torch.nn.init.zeros_(statistics.filters.learnt)
    for px, side in ((299, 149), (64, 31)):
        assert statistics(torch.rand(1, 3, px, px)).shape[1:] == (6, side, side)
    # The third window begins with the picture: of white its mean is 10 · 255, of a wave 255 · √(10 · 10 / 2).
    for cycles, band, size in ((0, 0, 2550), (7, 2, 255 * 50**0.5), (5, 1, 255 * 50**0.5)):
        found = statistics(wave(cycles, 10, 20))[0, :, 2, 2].detach()
        assert found[band] == pytest.approx(math.log10(size), abs=1e-4)
        assert (found < found[band] - 4).sum() == 5


def test_streams_are_mixed_by_what_both_attend_to_and_not_at_first():
    mix, fad, lfs = MixBlock(2).eval(), torch.rand(3, 2, 4, 4), torch.rand(3, 2, 4, 4)
    assert all(map(torch.equal, mix(fad, lfs), (fad, lfs)))
    for norm in (mix.norm_fad, mix.norm_lfs):
        torch.nn.init.ones_(norm.weight)
    for project in mix.queries_and_keys:
        torch.nn.init.zeros_(project.weight)
        torch.nn.init.zeros_(project.bias)
    # Without any query each of four rows attends to a quarter.
    assert torch.allclose(mix(fad, lfs)[0], fad + lfs / 4, atol=1e-4)


def test_surroundings_are_mirrored_and_channels_an_eighth_apart_share_weights():
    attention = backbones.PatchwiseAttention(4, 1, 16, 3)
    values = torch.arange(1.0, 10).view(1, 1, 3, 3).repeat(1, 16, 1, 1)
    weights = torch.ones(1, 2, 9, 9)
    weights[:, 0, 1:] = 0  # of even channels the place above and to the left alone, of odd ones all nine
    found = attention.aggregate(values, weights.view(1, 18, 1, 9))[0]
    assert found[::2].tolist() == [[[5, 4, 5], [2, 1, 2], [5, 4, 5]]] * 8
    assert found[1::2, 0, 0].tolist() == [33] * 8
    assert found[1::2, 1, 1].tolist() == [45] * 8


def test_san_has_the_papers_size_and_its_codes_names(tmp_path, monkeypatch):
    with torch.device("meta"):
        published = timm.create_model("san19_patchwise").state_dict()
    assert sum(value.numel() for name, value in published.items() if "running" not in name) / 1e6 == (
        pytest.approx(20.5, abs=0.05)
    )
    # With 64 / 4 channels and an eighth of weights: two for each of nine places.
    assert published["layer0.2.sam.conv_w.5.weight"].shape == (18, 2, 1, 1)
    assert published["layer4.2.sam.conv_w.0.weight"].shape == (128 * 50,)
    with pytest.raises(BackboneError, match="cannot be made for images of 96 px"):
        make_image_network("san19_patchwise", 2, 96)
    monkeypatch.setattr(backbones, "_STAGES", backbones._STAGES[:2])
    state, file = timm.create_model("san19_patchwise").state_dict(), tmp_path / "san.safetensors"
    save_file(state, file)
    begun = make_image_network("san19_patchwise", 2, 128, file)
    assert torch.equal(begun.backbone.layer1[2].sam.conv3.weight, state["layer1.2.sam.conv3.weight"])
    save_file({"conv1.weight": torch.zeros(1)}, file)
    with pytest.raises(WeightsError, match="does not fit the network: it lacks"):
        make_image_network("san19_patchwise", 2, 128, file)


@pytest.mark.slow
def test_both_streams_of_f3net_begin_with_xceptions_weights(tmp_path):
    xception, _ = make_backbone("legacy_xception", 3, 64)
    save_file(xception.state_dict(), file := tmp_path / "xception.safetensors")
    network = make_image_network("f3net", 2, 64, file)
    for (stem, *_), bands in zip(network.stages[0], (3, 2), strict=True):
        assert torch.equal(stem.weight, xception.conv1.weight.repeat(1, bands, 1, 1))
    for exit_flow in network.stages[2]:
        assert torch.equal(exit_flow[3].conv1.weight, xception.conv4.conv1.weight)
    assert network(torch.rand(2, 3, 64, 64)).shape == (2, 2)
