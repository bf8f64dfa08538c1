"""Packing: which texts are written together."""

from __future__ import annotations

import torch

from impatience.decoding.packing import (
    BUDGET,
    PackedBatch,
    TextSize,
    memory_budget,
    pack_batches,
    pack_streams,
    split_by_room,
)
from impatience.lengths import Landing, Unit


def test_batches_hold_texts_of_similar_size_within_the_budget() -> None:
    sizes = [
        TextSize(unit, landing, 10 + 7 * n % 50, 5 + 13 * n % 90)
        for n in range(60)
        for unit, landing in ((Unit.WORDS, Landing.EXACT), (Unit.TOKENS, Landing.NATURAL))
    ]
    found = pack_batches(sizes, 400)
    assert sorted(position for batch in found for position in batch) == list(range(120))
    assert found == pack_batches(sizes, 400)
    assert len(found) < 60
    for batch in found:
        members = [sizes[position] for position in batch]
        assert len({(one.unit, one.landing) for one in members}) == 1
        widest, longest = max(one.source for one in members), max(one.output for one in members)
        assert len(batch) == 1 or len(batch) * (widest + longest) <= 400
        assert longest <= 1.5 * min(one.output for one in members)
        alone = sorted(batch)
        assert [[alone[position] for position in again] for again in pack_batches([sizes[n] for n in alone], 400)] == [
            batch
        ]
    assert pack_batches([TextSize(Unit.WORDS, Landing.EXACT, 900, 10)] * 2, 400) == [[0], [1]]
    long_source, long_output = TextSize(Unit.WORDS, Landing.EXACT, 80, 20), TextSize(Unit.WORDS, Landing.EXACT, 70, 30)
    assert pack_batches([long_source, long_output]) == [[0, 1]]
    assert pack_batches([long_source, long_output], room=100) == [[0], [1]], "30 do not fit behind 80"
    assert pack_batches([]) == []


def test_streams_hold_similar_texts_longest_first_in_rows_that_fit() -> None:
    sizes = [
        TextSize(unit, Landing.EXACT, 10 + 7 * n % 50, 5 + 13 * n % 90)
        for n in range(60)
        for unit in (Unit.WORDS, Unit.TOKENS)
    ]
    found = pack_streams(sizes, 800)
    assert sorted(position for stream in found for position in stream.positions) == list(range(120))
    for stream in found:
        outputs = [sizes[position].output for position in stream.positions]
        assert outputs == sorted(outputs, reverse=True)
        assert outputs[0] <= 4 * outputs[-1]
        assert len({sizes[position].unit for position in stream.positions}) == 1
        width = max(sizes[position].source for position in stream.positions) + outputs[0]
        assert stream.rows in (800 // width, len(outputs))
        pieces = list(stream.split(2))
        assert sum((piece.positions for piece in pieces), ()) == stream.positions
        assert all(len(piece.positions) <= 2 * stream.rows for piece in pieces)
    assert pack_streams([sizes[0]], 1) == [PackedBatch((0,), 1)]
    assert pack_streams([]) == []
    assert memory_budget(torch.device("cpu"), 1000) == BUDGET


def test_a_batch_is_split_where_padding_would_take_room() -> None:
    sources, outputs = [10, 60, 30, 60, 95], [50, 40, 60, 30, 5]
    assert split_by_room(range(4), sources, outputs, 200) == [[0, 1, 2, 3]]
    assert split_by_room(range(5), sources, outputs, 100) == [[4], [1, 3], [0, 2]]
    assert split_by_room([2, 0], sources, outputs, 100) == [[0, 2]]
    assert split_by_room([4, 1], sources, outputs, 20) == [[4], [1]], "a text that does not fit has its own part"
