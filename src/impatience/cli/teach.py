"""The command ``teach``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from impatience.cli.options import Seed
from impatience.registry import require


def teach(
    model: Annotated[str, Argument(help="Model: a folder, a hub name, or a name that `impatience models` lists.")],
    out: Annotated[Path, Option(help="Folder for rows, checkpoints and the taught model.")],
    texts: Annotated[
        list[str] | None,
        Option(help="File with texts of yours to give instructions over: text, HTML, PDF, JSONL …; can be repeated."),
    ] = None,
    data: Annotated[
        list[str] | None,
        Option(help="Data set whose targets by people are rows too, e.g. elife:title?template=title; can be repeated."),
    ] = None,
    teacher: Annotated[str | None, Option(help="Model that writes the rows; by default the model itself.")] = None,
    turns: Annotated[
        int, Option(help="Requests of users that the model invents, about; half as many answers each as `asks`.")
    ] = 3000,
    documents: Annotated[
        int, Option(help="Documents that the model writes, about; so many answers each as `asks`.")
    ] = 2000,
    asks: Annotated[int, Option(help="Instructions over each document and text.")] = 4,
    answers: Annotated[
        int,
        Option(help="The most answers: the other defaults make up to 14,000, each text of yours as many as `asks`."),
    ] = 20_000,
    steps: Annotated[int, Option(help="Training steps: two or three passes over 15,000 rows; fewer for fewer.")] = 2400,
    batch_size: Annotated[int, Option(help="Rows of a step.")] = 16,
    rank: Annotated[int, Option(help="Rank of the adapters.")] = 16,
    learning_rate: Annotated[float, Option(help="Learning rate of the adapters.")] = 3e-4,
    signal_only: Annotated[
        bool,
        Option(
            "--signal-only",
            help="Train no adapters: the weights of the model stay as they are, and its signal alone is saved.",
        ),
    ] = False,
    seed: Seed = 0,
    rows_only: Annotated[bool, Option("--rows-only", help="Write the rows, and stop.")] = False,
    resume: Annotated[bool, Option("--resume", help="Continue in that folder.")] = False,
) -> None:
    """Give any instruct model length control, from texts that it writes itself."""
    require("accelerate", "Training")
    from transformers.utils import logging

    from impatience.training.teaching import TeachOptions
    from impatience.training.teaching import teach as run
    from impatience.training.teaching.texts import read_texts

    logging.disable_progress_bar()  # of the libraries
    options = TeachOptions(
        turns=turns,
        documents=documents,
        asks=asks,
        answers=answers,
        steps=steps,
        batch_size=batch_size,
        rank=rank,
        learning_rate=learning_rate,
        signal_only=signal_only,
        seed=seed,
    )
    run(
        model,
        out,
        options,
        texts=read_texts(texts or []),
        data=data or [],
        teacher=teacher,
        resume=resume,
        rows_only=rows_only,
    )
