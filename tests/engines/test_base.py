"""Engines: the order of results, and the local engine."""

from __future__ import annotations

from impatience.engines import Task, choose, in_order


def test_results_are_put_in_order_as_soon_as_they_can_be() -> None:
    came: list[int] = []
    done = ((number, came.append(number) or number) for number in (1, 0, 3, 2, 4))
    assert [(number, list(came)) for number in in_order(done)] == [
        (0, [1, 0]),
        (1, [1, 0]),
        (2, [1, 0, 3, 2]),
        (3, [1, 0, 3, 2]),
        (4, [1, 0, 3, 2, 4]),
    ]


def test_the_local_engine_does_a_piece_when_the_last_was_taken() -> None:
    done: list[int] = []
    results = choose("local").run(Task(lambda number: done.append(number) or -number, None), range(1, 9))
    assert [next(results), next(results)] == [(0, -1), (1, -2)]
    assert done == [1, 2]
