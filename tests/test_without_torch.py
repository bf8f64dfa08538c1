"""All that a backend without torch needs is there where torch and transformers are not installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ABSENT = ("torch", "transformers", "tokenizers", "peft")
MODULES = (
    *("methods", "families", "signals", "arrays", "grounding", "judging", "looping", "lengths", "user_text", "data"),
    *("vocabulary", "vocabulary.step_counter", "sources", "protocols", "control.length_report"),
    *("steps.budget", "steps.landing", "steps.repetition", "steps.sampling"),
    *("decoding.packing", "decoding.ranking", "decoding.results", "decoding.retries"),
    *("writing.documents", "writing.job_files", "writing.languages", "writing.long_texts", "writing.paragraphs"),
    *("writing.presets", "writing.streaming", "writing.batch_job", "writing.writer", "writing.writing_systems"),
    *("cli.write", "cli.requests", "cli.serve", "cli.bench", "server", "server.worker", "environment"),
)
STEPS = """
import numpy as np
from impatience.control.length_report import LengthReporter
from impatience.data import Request
from impatience.decoding.retries import ending_requests
from impatience.lengths import Landing, Unit
from impatience.methods import METHODS
from impatience.steps.landing import LandingRules
from impatience.steps.repetition import bar_repeats
from impatience.steps.sampling import noisy_scores
from impatience.vocabulary import Vocabulary, in_tokens
from impatience.vocabulary.step_counter import StepCounter

class Tokenizer:
    pieces = [b"</s>", b" ferry", b" left", b".", b" the", b" pier"]
    all_special_ids, added_tokens_decoder = [0], {}
    def __len__(self):
        return len(self.pieces)
    def token_bytes(self):
        return self.pieces
    def decode(self, ids, **_):
        return b"".join(self.pieces[i] for i in ids if i).decode()

vocabulary = Vocabulary(6, [0], Tokenizer())
counter = StepCounter(vocabulary, Unit.WORDS)
rules = LandingRules(Landing.EXACT, Unit.WORDS, vocabulary, [0])
reporter = LengthReporter(Unit.WORDS, Landing.EXACT, [0], vocabulary)
glide, target = METHODS["glide"].from_options(), np.array([4])
ids, choices, held, numbers = [], [], [], np.array([counter.initial])
while not ids or ids[-1]:
    progress, length = in_tokens(counter.progress(numbers)[:, None], np.float32(target)[:, None], Unit.WORDS)
    assert glide.embedding(progress, length, 16).shape == (1, 1, 16)
    scores = np.array([[-9, 3, 2, 1, 4, 3.5]], np.float32)
    written = np.array([[0, *ids]])
    scores = bar_repeats(written[:, 1:], scores, 2)
    choices.append(int(scores.argmax()))
    scores = rules.hold(written, scores, target, np.array([1]), np.array([40]))
    held.append(int(scores.argmax()))
    ids.append(int(noisy_scores(scores, np.array([0]), np.array([len(ids)])).argmax()))
    numbers = counter.advance(numbers, np.array(ids[-1:]))
kept, report = reporter.report(ids, 4, [0.0] * len(ids), choices, held=held)
assert (kept, report.length, report.landed) == (len(ids) - 1, 4, "forced"), (ids, report)
print("done")
"""


def run(code: str) -> str:
    absent = f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", absent + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_modules_are_imported_without_torch() -> None:
    imports = "\n".join(f"import impatience.{module}" for module in MODULES)
    every = "from impatience.methods import METHODS; print(len(dict(METHODS)))"
    assert int(run(f"{imports}\n{every}")) >= 6


@pytest.mark.slow
def test_a_text_is_written_to_its_target_without_torch() -> None:
    assert run(STEPS) == "done\n"


@pytest.mark.slow
def test_the_environment_is_described_without_torch() -> None:
    facts = json.loads(
        run("import json; from impatience.environment import environment; print(json.dumps(environment()))")
    )
    assert (facts["torch"], facts["transformers"], facts["gpu"]) == (None, None, None)
    assert facts["threads"] > 0
    assert facts["llama.cpp"].startswith("in xllamacpp 20")
