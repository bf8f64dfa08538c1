"""Shapes of models that take no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from impatience.bench import base


@pytest.fixture(scope="package", autouse=True)
def small_shapes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(base.SHAPES, "minute", dict(zip(base.LLAMA_SIZES, (32, 16, 16, 1, 2, 1), strict=True)))
        patch.setitem(base.SHAPES, "minute-t5", dict(zip(base.T5_SIZES, (32, 16, 8, 16, 1, 2), strict=True)))
        yield
