"""Every signal against an independent float64 loop, and the properties that make it what it is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impatience.errors import OptionError
from impatience.methods import METHODS, EmbeddingMethod
from impatience.signals import RMS, countdown, length_ratio, progress_ratio

WIDTHS = (8, 31, 64)
PLACES = [(p, t) for t in (1, 7, 300) for p in range(0, t + 1, max(1, t // 5))]


def grid(places: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    progress, target = torch.tensor(places, dtype=torch.float32).T
    return progress[:, None], target[:, None]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pulsation", [None, 3.0])
def test_pre_is_equation_3_with_pairs_that_are_counted_from_0(width: int, pulsation: float | None) -> None:
    progress, target = grid(PLACES)
    signal = METHODS["pre"].from_options(pulsation=pulsation).embedding(progress, target, width)
    for row, (p, t) in enumerate(PLACES):
        for i in range(width):
            angle = (p / t) * (width / 2 if pulsation is None else pulsation) * (2 * (i // 2) / width)
            assert signal[row, 0, i] == pytest.approx(math.cos(angle) if i % 2 == 0 else math.sin(angle), abs=2e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_rpe_is_the_sinusoid_of_appendix_b(width: int) -> None:
    progress, target = grid(PLACES)
    signal = METHODS["rpe"].from_options().embedding(progress, target, width)
    for row, (p, t) in enumerate(PLACES):
        for i in range(width):
            angle = (t - p) / 10000 ** (2 * (i // 2) / width)
            assert signal[row, 0, i] == pytest.approx(math.sin(angle) if i % 2 == 0 else math.cos(angle), abs=1e-4)


@pytest.mark.parametrize("width", WIDTHS)
def test_lrpe_is_appendix_g(width: int) -> None:
    progress, target = grid(PLACES)
    signal = METHODS["lrpe"].from_options().embedding(progress, target, width)
    for row, (p, t) in enumerate(PLACES):
        for i in range(width):
            angle = p / t ** (i / width)
            assert signal[row, 0, i] == pytest.approx(math.cos(angle) if i % 2 == 0 else math.sin(angle), abs=1e-4)


def test_lenemb_has_a_row_of_a_table_for_each_count() -> None:
    method, table = METHODS["lenemb"](), torch.randn(8, 16)
    assert isinstance(method, EmbeddingMethod)
    counts = {0: table[0], 3: table[3], 7: table[7], 300: table[7], 2.25: 0.75 * table[2] + 0.25 * table[3]}
    progress, target = torch.zeros(len(counts), 1), torch.tensor([[float(count)] for count in counts])
    found = method.embedding(progress, target, 8)[:, 0]
    strong = RMS * 8**0.5
    torch.testing.assert_close(found @ table, strong * torch.stack(list(counts.values())), atol=1e-5, rtol=1e-5)
    assert found[0].square().mean().sqrt() == pytest.approx(RMS)
    with pytest.raises(OptionError, match="lenemb learns its table at layers"):
        METHODS["lenemb"].from_options(layers=None)


@pytest.mark.parametrize(("countdown", "share"), [(24, 0.5), (5, 0.8)])
def test_glide_is_pre_with_a_ratio_of_two_parts(countdown: int, share: float) -> None:
    method = METHODS["glide"].from_options(countdown=float(countdown), share=share)
    for target in (1, 4, 5, 24, 25, 400):
        steps = torch.arange(target + 1.0)[None]
        ratio = []
        for p in range(target + 1):
            if target - p <= countdown:
                ratio.append(1 - share * (target - p) / countdown)
            else:
                ratio.append((1 - share) * p / (target - countdown))
        target_row = torch.tensor([[float(target)]])
        assert method.ratio(steps, target_row)[0].tolist() == pytest.approx(ratio, abs=1e-6)
        assert ratio == sorted(ratio)
        assert ratio[-1] == 1
        expected = METHODS["pre"].from_options().embedding(torch.tensor([ratio]), torch.ones(1, 1), 64)
        torch.testing.assert_close(method.embedding(steps, target_row, 64), expected, atol=1e-4, rtol=0)


def test_the_last_steps_of_glide_look_the_same_at_every_target() -> None:
    method = METHODS["glide"].from_options(countdown=16.0)
    ends = [
        method.embedding(torch.arange(target - 16.0, target + 1)[None], torch.tensor([[float(target)]]), 64)
        for target in (16, 57, 1000)
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"countdown": 0.5}, "countdown=0.5"), ({"countdown": math.inf}, "countdown=inf"), ({"share": 1.0}, "share=1.0")],
)
def test_glide_refuses_a_countdown_or_share_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        METHODS["glide"].from_options(**options)


def test_laam_boosts_the_best_of_the_source_by_what_remains() -> None:
    torch.manual_seed(1)
    scores = torch.randn(2, 3, 4, 6)
    readable = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    progress = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 6.0, 7.0, 9.0]])
    target = torch.tensor([[3.0], [9.0]])
    bias = METHODS["laam"].from_options().bias(scores, readable, progress, target)
    for b in range(2):
        last = max(s for s in range(6) if readable[b, s])
        for h in range(3):
            for t in range(4):
                remaining = int(target[b, 0] - progress[b, t])
                best = sorted((s for s in range(last)), key=lambda s: -scores[b, h, t, s].item())[:remaining]
                expected = [math.log(remaining) if s in best else 0.0 for s in range(6)]
                assert bias[b, h, t].tolist() == pytest.approx(expected, abs=1e-6)


def embedding_methods() -> list[str]:
    return [name for name in METHODS if issubclass(METHODS[name], EmbeddingMethod)]


@pytest.mark.parametrize("name", embedding_methods())
def test_every_embedding_is_finite_float32_of_known_size(name: str) -> None:
    progress, target = grid([(p, 1000) for p in range(1001)])
    signal = METHODS[name].from_options().embedding(progress, target, 64)
    assert signal.shape == (1001, 1, 64)
    assert signal.dtype == torch.float32
    assert signal.isfinite().all()
    assert signal.square().mean(-1).sqrt().mean().item() == pytest.approx(RMS, rel=0.05)


@given(st.integers(0, 400), st.integers(1, 400), st.integers(1, 50))
def test_pre_knows_only_the_ratio(progress: int, target: int, factor: int) -> None:
    progress = min(progress, target)
    near = progress_ratio(torch.tensor([[progress / target]]), 64, 32.0)
    far = progress_ratio(torch.tensor([[(factor * progress) / (factor * target)]]), 64, 32.0)
    assert torch.allclose(near, far, atol=1e-4)


def test_pre_separates_ratios_and_the_others_keep_the_target() -> None:
    ratios = torch.linspace(0, 1, 33)[:, None]
    signal = progress_ratio(ratios, 64, 32.0)[:, 0]
    distances = torch.cdist(signal, signal) + torch.eye(33) * 9
    assert distances.min() > 0.5
    half_of = [torch.tensor([[t / 2]]) for t in (40.0, 400.0)]
    targets = [torch.tensor([[t]]) for t in (40.0, 400.0)]
    assert not torch.allclose(countdown(half_of[0], 64), countdown(half_of[1], 64), atol=0.1)
    assert not torch.allclose(
        length_ratio(half_of[0], targets[0], 64), length_ratio(half_of[1], targets[1], 64), atol=0.1
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, 101.0, math.inf, math.nan])
def test_pulsation_outside_the_nyquist_bound_is_refused(bad: float) -> None:
    method = METHODS["pre"].from_options(pulsation=bad)
    with pytest.raises(OptionError, match="Nyquist"):
        method.check(64)
    METHODS["pre"].from_options(pulsation=64 * math.pi / 2).check(64)


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize(
    "options",
    [
        {"strength": "loud"},
        {"strength": -1},
        {"noise": "much"},
        {"noise": math.nan},
        {"layers": [-1]},
        {"rank": 4, "layers": None},
        {"rank": 0, "layers": "all"},
    ],
)
def test_bad_options_are_refused_by_every_method(name: str, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        METHODS[name].from_options(**options)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'strength'"):
        METHODS["pre"].from_options(strenght=1)


@pytest.mark.parametrize(("noise", "expected"), [("paper", 2 / 64 * 200), ("step", 0.25), (3.0, 3.0), (0, 0.0)])
def test_noise_has_the_size_it_says_and_stays_inside(noise: object, expected: float) -> None:
    torch.manual_seed(0)
    method = METHODS["pre"].from_options(noise=noise)
    target = torch.full((4000, 1), 200.0)
    middle = method.noisy(torch.full((4000, 1), 100.0), target, 64)
    assert (middle - 100).std().item() == pytest.approx(expected, rel=0.05, abs=1e-6)
    for edge in (0.0, 200.0):
        noisy = method.noisy(torch.full((4000, 1), edge), target, 64)
        assert noisy.min() >= 0
        assert noisy.max() <= 200


def test_strength_is_a_multiple_of_the_embeddings_rms() -> None:
    assert METHODS["pre"].from_options(strength="raw").amplitude(3.0) == 1.0
    assert METHODS["pre"].from_options(strength="auto").amplitude(3.0) * RMS == pytest.approx(3.0)
    assert METHODS["pre"].from_options(strength=2).amplitude(3.0) * RMS == pytest.approx(6.0)
    assert METHODS["pre"].from_options(strength=0).amplitude(3.0) == 0
    assert METHODS["laam"].from_options(strength=2).amplitude(3.0) == 2
