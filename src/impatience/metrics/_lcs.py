"""Longest common subsequences of tokens, a whole column of the table at a time.

The table t[i][j], the length for the first i tokens of a and the first j of b, grows by 0 or 1 from one row to the
next. So a column of it is a row of bits, and one whole number holds it: bit i of column j is 0 where
t[i + 1][j] = t[i][j] + 1. The next column takes four operations on such numbers (Hyyrö 2004), which is far
faster than filling the table entry by entry, and every step of the way back can still be read off the bits.
"""

from __future__ import annotations

from collections.abc import Sequence


def _columns(a: Sequence[str], b: Sequence[str]) -> list[int]:
    """Return the columns after each token of b."""
    every = (1 << len(a)) - 1
    where: dict[str, int] = {}
    for i, token in enumerate(a):
        where[token] = where.get(token, 0) | 1 << i
    column, columns = every, []
    for token in b:
        matches = column & where.get(token, 0)
        column = ((column + matches) | (column - matches)) & every
        columns.append(column)
    return columns


def length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how long the longest common subsequence is."""
    return len(a) - _columns(a, b)[-1].bit_count() if b else 0


def places(a: Sequence[str], b: Sequence[str]) -> list[int]:
    """Return the places in a of one longest common subsequence, from the last to the first.

    Where there are several it is the one that *rouge-score* finds: going back from the end, equal tokens are taken,
    and otherwise b is shortened only where shortening a would lose a token.
    """
    columns = _columns(a, b)
    found, i, j = [], len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            found.append(i - 1)
            i, j = i - 1, j - 1
        elif columns[j - 1] >> i - 1 & 1:
            i -= 1
        else:
            j -= 1
    return found
