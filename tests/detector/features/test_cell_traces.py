"""What each cell of a crop has: it is the cell's own, and of the whole crop's features nothing changes."""

import numpy as np
import pytest
import torch

from detector.features.cell_traces import (
    CELL_VERSION,
    CELL_WIDTH,
    CELLS,
    EDGES_WIDTH,
    REACHES,
    TRACES,
    CellTraces,
    FrameFeatures,
    paired_edges,
)
from detector.features.forensics import ForensicFeatures
from detector.features.local_noise import (
    EdgeDetail,
    LocalFilters,
    LocalNoise,
    NoiseLevels,
    _regress_out,
    _spread_statistics,
)


def crops(side):
    return torch.randint(0, 256, (3, 3, side, side), generator=torch.Generator().manual_seed(side)).float()


@pytest.mark.parametrize("side", [32, 72, 128])
def test_noise_in_one_place_is_seen_in_its_cells_alone(side):
    luma = torch.zeros(1, 1, side, side)
    middle = slice(side // 4 + 4, side // 2 - 4) if side > 32 else slice(side // 4 + 2, side // 4 + 4)
    luma[..., middle, middle] = torch.randn(1, 1, *luma[..., middle, middle].shape[2:])
    found = CellTraces(side)(luma).reshape(TRACES, CELLS, CELLS) - torch.log(torch.tensor(0.1))
    forged = found.abs() > 1e-4
    assert (forged.flatten(1).sum(1) > 0).all()
    assert not forged[:, CELLS // 2 + 1 :].any()
    assert not forged[:, :, CELLS // 2 + 1 :].any()


def test_a_trace_is_the_log_of_the_mean_squared_residual():
    luma = crops(64)[:1, :1]
    across = luma[..., :-2] - 2 * luma[..., 1:-1] + luma[..., 2:]
    wanted = torch.log(across[0, 0, 8:16, 15:23].square().mean() + 0.1)
    found = CellTraces(64)(luma).reshape(TRACES, CELLS, CELLS)
    assert found[0, 1, 2] == pytest.approx(float(wanted), abs=1e-4)


def test_a_frame_has_the_features_of_its_crop_and_behind_them_those_of_its_cells():
    features, shown = FrameFeatures(64), crops(64)
    found = features(shown)
    assert found.shape == (3, features.width)
    assert torch.equal(found[:, :-CELL_WIDTH], ForensicFeatures(64)(shown))
    assert torch.allclose(found[1:2], features(shown[1:2]), atol=1e-4)


def test_flat_and_saturated_crops_have_finite_features():
    for level in (0, 128, 255):
        assert torch.isfinite(FrameFeatures(64)(torch.full((1, 3, 64, 64), float(level)))).all()


def test_the_traces_of_this_version_are_what_they_were():
    at = torch.arange(64.0)
    luma = ((at[:, None] ** 2 + 3 * at * at[:, None] % 37) % 200)[None, None]
    traces = CellTraces(64)(luma).reshape(TRACES, -1)
    assert CELL_VERSION == "1"
    assert traces.mean(1).tolist() == pytest.approx([7.188, 9.566, 7.461, 7.994, 5.854, 8.193], abs=2e-3)


EACH = TRACES + 1
RISING, FALLING, APART = 0, 1, 2


def clip(frames, changes):
    """Noise in all cells, and in six of them changes of the frames first … end - 1."""
    traces = 0.05 * torch.randn(frames, TRACES, CELLS**2, generator=torch.Generator().manual_seed(frames))
    for first, end, by in changes:
        traces[first:end, :, 9:15] += by
    return traces.flatten(1)


def of_all_traces(found, kind, reach=0):
    return found.unflatten(1, (len(REACHES), 3, EACH))[:, reach, kind, -1]


@pytest.mark.parametrize(("by", "kind"), [(1.0, RISING), (-1.0, FALLING)])
def test_a_stretch_is_seen_from_its_first_frame_to_its_last(by, kind):
    found = paired_edges(clip(60, [(20, 35, by)]))
    assert found.shape == (60, EDGES_WIDTH)
    for reach in range(len(REACHES)):
        inside = of_all_traces(found, kind, reach)
        beyond = torch.cat([inside[:18], inside[37:]])
        assert inside[20:35].min() > 4 * beyond.max()


def test_a_gap_between_two_stretches_is_told_from_them():
    found = paired_edges(clip(80, [(15, 30, 1.0), (45, 60, 1.0)]))
    for kind in (RISING, FALLING):
        assert of_all_traces(found, kind)[30:45].min() > 0.2
    apart = of_all_traces(found, APART)
    assert torch.stack([apart[15:30].min(), apart[45:60].min()]).min() > 4 * apart[33:42].max()


def test_one_edge_alone_is_no_stretch_nor_is_noise():
    stretch = of_all_traces(paired_edges(clip(60, [(20, 35, 1.0)])), RISING).max()
    for changes in ([], [(30, 60, 1.0)]):
        assert paired_edges(clip(60, changes)).max() < 0.2 * stretch


def test_what_changes_in_few_frames_is_no_stretch():
    found = paired_edges(clip(60, [(30, 34, 1.0)]))
    stretch = paired_edges(clip(60, [(30, 42, 1.0)]))
    assert of_all_traces(found, RISING).max() < 0.2 * of_all_traces(stretch, RISING).max()


def test_a_clip_of_any_length_has_finite_ones():
    for frames in (1, 2, 7, 96, 150):
        found = paired_edges(torch.randn(frames, CELL_WIDTH))
        assert found.shape == (frames, EDGES_WIDTH)
        assert torch.isfinite(found).all()
        assert (found >= 0).all()


LUMA, COLOUR = slice(0, 3), slice(6, 10)


def planes(seed, luma_noise, colour_noise):
    """Return float32 [1, 3, 128, 128]: a soft ramp with noise of these deviations, [128, 128] each."""
    draw = torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(seed))
    ramp = torch.linspace(60, 190, 128).expand(128, 128)
    return torch.stack([ramp + luma_noise * draw[0], colour_noise * draw[1], colour_noise * draw[2]])[None]


def patch(inside, outside):
    deviations = torch.full((128, 128), outside)
    deviations[40:100, 30:90] = inside
    return deviations


def measured(planes):
    luma, chroma = planes[:, :1], planes[:, 1:]
    found = LocalNoise(planes.shape[2])(luma, chroma, LocalFilters()(luma))[0]
    return found


def test_a_region_of_other_noise_spreads_the_noise_of_luminance_and_of_colour():
    even = torch.full((128, 128), 2.0)
    same = measured(planes(0, even, even))
    other = measured(planes(0, patch(6, 2), patch(6, 2)))
    assert (other[LUMA].abs() > 1.5 * same[LUMA].abs()).all()
    assert (other[COLOUR][1:].abs() > 1.5 * same[COLOUR][1:].abs()).all()


def test_noise_that_follows_brightness_is_explained():
    follows = torch.linspace(1, 5, 128).expand(128, 128)
    explained = measured(planes(1, follows, follows))
    region = measured(planes(1, patch(5, 1), patch(5, 1)))
    assert explained[0] < 0.5 * region[0]


def test_what_a_straight_line_explains_is_taken_out_whatever_else_explains_it():
    generator = torch.Generator().manual_seed(2)
    first, second, rest = (10 * torch.randn(2, 20, 10, generator=generator) for _ in range(3))
    leaning = first + 0.5 * second
    left = _regress_out([3 * first - 2 * second + 0.1 * rest], [first, leaning]).flatten(2)
    design = torch.stack([torch.ones(200), first[0].flatten(), leaning[0].flatten()], 1)
    values = (3 * first - 2 * second + 0.1 * rest)[0].flatten()
    wanted = values - design @ torch.linalg.lstsq(design, values[:, None]).solution[:, 0]
    assert torch.allclose(left[0, 0], wanted, atol=0.2)
    assert _spread_statistics(left, 200)[:, :, 0].abs().max() < 1e-5


def test_a_flat_crop_has_no_spread_and_no_surprise():
    values = measured(torch.full((1, 3, 32, 32), 90.0))
    assert values.isfinite().all()
    assert values[LUMA].abs().max() < 0.02


def test_the_spread_is_the_mean_the_deviation_and_how_far_the_outermost_tenths_lie():
    values = torch.arange(40.0).flip(0)[None, None]
    mean, deviation, above, below = _spread_statistics(values, 40)[0, 0].tolist()
    assert mean == 19.5
    assert deviation == pytest.approx(np.arange(40).std(), abs=1e-4)
    assert above == pytest.approx(np.mean([36, 37, 38, 39]) - 19.5)
    assert below == pytest.approx(np.mean([0, 1, 2, 3]) - 19.5)


def test_noise_that_differs_in_sharpness_alone_spreads_the_sharpness():
    residuals = torch.randn(2, 124, 124, generator=torch.Generator().manual_seed(3))
    slower = residuals.clone()
    slower[0, 40:100, 30:90] *= 4
    levels = NoiseLevels(124)(torch.stack([residuals, slower]))
    noise, sharpness = levels[:, 1], levels[:, 5]
    assert noise[0] == noise[1]
    assert sharpness[1] > 2 * sharpness[0]


FINE_STEEPNESS, FINE_LEVELS, SMOOTH_LEVELS = 0, slice(2, 7), slice(13, 18)


def step_edge(height, side=64):
    """Return float32 [1, 1, side, side]: one vertical edge of that many grey levels, a little soft."""
    across = 128 + height / 2 * torch.tanh((torch.arange(side) - side / 2) / 1.5)
    return across.expand(1, 1, side, side).float()


@pytest.fixture(scope="module")
def measure():
    return EdgeDetail(64)


def test_a_ramp_is_as_steep_as_its_slope_and_has_no_detail(measure):
    ramp = (3.0 * torch.arange(64)).expand(1, 1, 64, 64)
    values = measure(ramp)[0]
    assert values[:2].exp().tolist() == pytest.approx([3.0, 3.0], rel=0.01)
    # Half the log of the floor: a straight line loses nothing to a symmetric blur.
    assert values[SMOOTH_LEVELS].tolist() == pytest.approx(
        [0.5 * torch.tensor(0.05).log().item()] * 5, abs=0.01
    )


def test_an_edge_has_the_same_relative_detail_at_any_contrast(measure):
    low, high = measure(step_edge(60))[0], measure(step_edge(180))[0]
    assert high[FINE_STEEPNESS] - low[FINE_STEEPNESS] == pytest.approx(
        torch.tensor(3.0).log().item(), abs=0.01
    )
    assert torch.allclose(low[FINE_LEVELS], high[FINE_LEVELS], atol=0.05)


def test_halos_along_an_edge_raise_its_detail_though_noise_is_everywhere(measure):
    grain = 3 * torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    edge = step_edge(120)
    blurred = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(edge, (2, 2, 2, 2), "replicate"), 5, 1)
    haloed = edge + 1.5 * (edge - blurred)
    plain, sharp = measure(edge + grain)[0], measure(haloed + grain)[0]
    assert (sharp[FINE_LEVELS] - plain[FINE_LEVELS]).min() > 0.05
    # The widest bands see the edge from afar; the finest see the noise alone.
    assert torch.allclose(sharp[SMOOTH_LEVELS][:2], plain[SMOOTH_LEVELS][:2], atol=0.02)
