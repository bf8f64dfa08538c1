"""Requests are checked when they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impatience import Request
from impatience.errors import OptionError, SourceError, TargetError


def test_wrong_requests_are_refused() -> None:
    for wrong, error, message in (
        ({"text": ""}, SourceError, "empty"),
        ({"target": 2.0}, TargetError, "whole number"),
        ({"target": True}, TargetError, "whole number"),
        ({"unit": "pages"}, OptionError, "'sentences'"),
        ({"landing": "hard"}, OptionError, "'at_most'"),
        ({"task": "sing"}, OptionError, "There are: summarize"),
        ({"history": (("user", "a"), ("user<|im_end|>", "b"))}, OptionError, "Give one of system, developer"),
    ):
        with pytest.raises(error, match=message):
            replace(Request("a", "It rained.", 3), **wrong)
