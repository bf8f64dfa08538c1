"""Human rows: targets of data sets, as answers to instructions, where their source has what they say.

They pass the same filters as the answers of the author, so a summary that adds what its writer knew is left out. The
answer in the source of a question is left out, too: the instruction asks for any question.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from impatience.data import TEMPLATES, Example, Spec, load
from impatience.errors import DataError, OptionError
from impatience.training.teaching.asks import SHORT, Ask, prompts
from impatience.training.teaching.filters import fault

TITLES = ("Write a title for the text above.", "Write a headline for the text above.")
QUESTIONS = ("Write a question that the text above answers.",)
KINDS = ("summarize", "title", "question")  # templates that a spec may name; without one, a target is a summary
Pair = tuple[Ask, str]  # an instruction and what a human wrote


def read_human(
    specs: Iterable[str], reads: Callable[[str], bool], seed: int, report: Callable[[str], None]
) -> list[Pair]:
    """Return the targets of data sets that are fit to be learnt; ``reads`` says whether a source is read whole."""
    kept: dict[tuple[str, str], Pair] = {}  # a target of a source that two sets have is one
    for spec in specs:
        kind = Spec.parse(spec).template or "summarize"
        if kind not in KINDS:
            raise OptionError(f"{spec!r}: template={kind!r}; give {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
        chance, faults = random.Random(f"{seed} {spec}"), Counter[str]()
        for example in load(spec, "train"):
            ask = _ask(example, kind, spec, chance)
            wrong = fault(ask, example.target) or ("" if reads(ask.text) else "text too long")
            faults[wrong or "kept"] += 1
            if not wrong:
                kept.setdefault((ask.text, example.target), (ask, example.target))
        left_out = {name: count for name, count in faults.most_common() if name != "kept"}
        report(f"{spec}: {faults['kept']:,} of {faults.total():,} human targets kept; left out: {left_out}")
    return list(kept.values())


def _ask(example: Example, kind: str, spec: str, chance: random.Random) -> Ask:
    """Return an instruction that a target answers."""
    form = TEMPLATES["question"].form
    has_answer = bool(form and form[0].match(example.source))
    if has_answer != (kind == "question"):
        needs = "ends in template=question" if has_answer else "names another template"
        raise DataError(
            f"{spec}, {example.id}: the source {'has' if has_answer else 'does not have'} the form "
            f"'answer: … context: …', in which questions are asked; a spec of such a set {needs}, as in "
            f"{'squad_qg?template=question' if has_answer else 'elife:title?template=title'}."
        )
    text = example.source.partition(" context: ")[2].strip() if has_answer else example.source
    titled = kind == "summarize" and example.meta.get("rung") == "title"  # as in govnews:all
    words = len(example.target.split())
    if has_answer:
        return Ask(chance.choice(QUESTIONS), words, text, title=True)
    if titled or kind == "title":
        return Ask(chance.choice(TITLES), min(words, SHORT[1]), text, title=True)
    return Ask(chance.choice(prompts()["summaries"]), words, text)


def without(pairs: Sequence[Pair], held: Iterable[str]) -> list[Pair]:
    """Return the pairs whose text has no held-out text in it."""
    known = [" ".join(text.split()) for text in held]
    of_text = {text: " ".join(text.split()) for text in {ask.text for ask, _ in pairs}}
    clean = {text for text, plain in of_text.items() if not any(other in plain for other in known)}
    return [pair for pair in pairs if pair[0].text in clean]
