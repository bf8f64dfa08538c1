from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impatience.errors import OptionError, ReportError
from impatience.evaluation.drawing import DPI, save
from impatience.evaluation.signal_figures import signal_figure, similarity_figure
from impatience.methods import METHODS, EmbeddingMethod

pytest.importorskip("matplotlib")
from PIL import Image

FIGURES = {"signal": signal_figure, "similarity": similarity_figure}
EMBEDDING_METHODS = [name for name, kind in METHODS.items() if issubclass(kind, EmbeddingMethod)]


@pytest.fixture(scope="module", params=FIGURES)
def figure(request: pytest.FixtureRequest) -> Any:
    return FIGURES[request.param](width=64)


def panel(figure: Any, label: str) -> Any:
    return next(axes for axes in figure.axes if axes.get_label() == label)


def test_png_is_not_blank_and_has_an_opaque_white_background(figure: Any, tmp_path: Path) -> None:
    path = save(figure, tmp_path / "new" / "folder" / "figure.png")
    image = Image.open(path)
    assert image.mode != "RGBA"
    assert "transparency" not in image.info
    pixels = np.asarray(image.convert("RGB")).astype(float)
    assert pixels.shape[:2] == tuple(round(inches * DPI) for inches in figure.get_size_inches()[::-1])
    assert pixels.var() > 500
    assert (pixels[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


def test_every_panel_shows_something(figure: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(float)
    for axes in figure.axes:
        left, bottom, right, top = (round(edge) for edge in axes.get_window_extent().extents)
        height = pixels.shape[0]
        assert pixels[height - top : height - bottom, left:right].var() > 20, axes.get_label()


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first, second = (save(signal_figure(32), tmp_path / f"{name}.{kind}") for name in "ab")
    content = first.read_bytes()
    assert content == second.read_bytes()
    assert not any(word in content for word in (b"CreationDate", b"dc:date", b"Matplotlib"))


def test_every_registered_embedding_method_has_a_panel_for_every_target() -> None:
    figure = similarity_figure(32, (10, 20, 30))
    labels = {axes.get_label() for axes in figure.axes}
    assert {f"{name} {target}" for name in EMBEDDING_METHODS for target in (10, 20, 30)} <= labels
    assert not any(label.startswith(("none", "laam")) for label in labels)


def test_pre_looks_the_same_at_every_length_and_the_counting_methods_do_not() -> None:
    figure = similarity_figure(64)
    for name, same in {"pre": True, "rpe": False, "lrpe": False}.items():
        short, long = (panel(figure, f"{name} {target}").images[0].get_array() for target in (40, 400))
        assert np.allclose(np.diag(short), 1, atol=1e-5)
        assert np.allclose(short, short.T, atol=1e-5)
        assert (abs(short - long).max() < 1e-3) == same, name


def test_one_target_is_enough() -> None:
    assert similarity_figure(16, (5,)).axes


def test_pulsation_rises_with_the_ratio() -> None:
    figure = signal_figure(64)
    moments = [axes for axes in figure.axes if axes.get_label().startswith("r = ")]
    curves = [axes.lines[-1].get_ydata() for axes in moments]
    crossings = [int((np.diff(np.sign(curve)) != 0).sum()) for curve in curves]
    assert crossings == sorted(set(crossings))
    assert crossings[0] == 0
    assert crossings[-1] == round(64 / 2 / np.pi)


def test_unknown_file_type_says_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"figure\.gif.*\.png, \.svg, \.pdf"):
        save(signal_figure(16), tmp_path / "figure.gif")


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES.keys())
def test_missing_matplotlib_says_what_to_install(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r'needs the package matplotlib: pip install -e "\.\[eval\]"'):
        make()


def test_pyplot_is_not_imported() -> None:
    before = "matplotlib.pyplot" in sys.modules
    similarity_figure(16)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_full_disk_leaves_the_figure_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "figure.png"
    file.write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match="No space left on device"):
        save(signal_figure(16), file)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"figure.png": b"before"}
