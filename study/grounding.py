"""Measure how well the metric ``grounding`` tells true sentences from false ones, on a set made by rule.

    python study/grounding.py --references [--data-dir FOLDER]
    python study/grounding.py --write-set DATA/validation.jsonl --split validation [--pairs 600] [--data-dir FOLDER]
        [--short-sources N] [--sets NAMES]
    python study/grounding.py --data DATA [--model NAME] [--limit N] [--context 900] [--no-gains] --out OUT.json
    python study/grounding.py --read OUT.json

- ``--references`` prints how many texts of people have a foreign word.
- ``--write-set`` makes pairs: a sentence that a person wrote of a source, and the same with a name, a number, a place
  or a verb swapped, for one from another text ("other") or from the same source ("source"), or negated. With
  ``--measured`` it makes them of xsum and cnn_dailymail. ``--short-sources N`` takes only texts whose sources have at
  most N words, which a model reads whole and soon.
- ``--data`` scores the pairs of the folder's ``validation.jsonl``, ``test.jsonl`` and, if there is one,
  ``measured.jsonl``. Thresholds, and the weights of the combinations, are chosen on validation and printed for the
  others. Without a model only foreign words are scored.
- A run with ``--out`` that was ended goes on where it was; ``--limit N`` takes the first N pairs of each file.
- ``--read`` prints the tables of an earlier run again.

Sentences of people are no sure truth: some say what the source does not. So accuracies are below those on clean pairs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from impatience.data import load
from impatience.grounding import find_foreign, foreign_words
from impatience.grounding.mentions import mentions_of
from impatience.grounding.numbers import parts_of
from impatience.lengths import split_sentences

if TYPE_CHECKING:
    from impatience.grounding.support import SupportReader

SETS = ("elife:impact", "elife:digest", "govnews:deck", "govnews:summary")
MEASURED = ("xsum", "cnn_dailymail")
KINDS = ("name other", "name source", "number other", "number source", "place", "verb", "negation")
_AT_ONCE = 20  # pairs that are scored together
_SIDES = ("true", "false")
Pair = dict[str, Any]

_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)*")
_PLACES = (
    "Africa|America|Asia|Europe|Australia|Canada|China|India|Japan|Brazil|Mexico|Germany|France|Spain|Italy|Norway|"
    "Sweden|Russia|Ukraine|Turkey|Egypt|Kenya|Nigeria|Ireland|Scotland|Wales|England|London|Paris|Berlin|Madrid|Rome|Chicago|"
    "Boston|Texas|California|Florida|Washington|New York|Los Angeles|San Francisco|Atlanta|Baltimore|Seattle|Denver|"
    "Virginia|Maryland|Alaska|Hawaii|Iraq|Iran|Syria|Israel|Pakistan|Afghanistan|Manchester|Liverpool|Glasgow|Cardiff"
)
_PLACE = re.compile(rf"\b({_PLACES})\b")
_OPPOSITES = (
    "increase decrease|activate inhibit|promote prevent|cause prevent|enable block|gain lose|start stop|"
    "accept reject|support oppose|improve worsen|help hinder|open close|buy sell|raise lower|"
    "strengthen weaken|reveal conceal|include exclude|add remove|protect damage|expand shrink|"
    "accelerate delay|enhance reduce|confirm refute|create destroy|join leave|build demolish|agree refuse|"
    "show deny|suggest doubt|announce deny|provide withhold|share withhold|identify overlook|"
    "discover overlook|learn forget|use avoid|develop abandon|control ignore|bind release|require avoid|"
    "allow prevent|demonstrate doubt|explain obscure|trigger suppress|stimulate suppress|maintain disrupt|"
    "produce consume|regulate ignore|say deny|win lose|rise fall|find overlook|induce block|grow shrink|"
    "attack defend|offer refuse|attract repel|arrest release|score concede|lead follow|approve reject|"
    "launch cancel"
)
_IRREGULAR = {
    "lose": "lost losing", "buy": "bought buying", "sell": "sold selling", "win": "won winning", "rise": "rose rising",
    "fall": "fell falling", "find": "found finding", "hide": "hid hiding", "build": "built building", "stop": "stopped "
    "stopping", "leave": "left leaving", "bind": "bound binding", "forget": "forgot forgetting", "grow": "grew growing",
    "withhold": "withheld withholding", "show": "showed showing", "say": "said saying", "lead": "led leading", "shrink":
    "shrank shrinking", "control": "controlled controlling", "begin": "began beginning", "repel": "repelled repelling",
    "cancel": "cancelled cancelling",
}  # fmt: skip
_AUXILIARY = re.compile(r"\b(is|are|was|were|can|could|will|would|has|have|had|may|might|should|must)\b(?= [a-z])")


def forms(verb: str) -> list[str]:
    """Return a verb, and its forms with -s, -ed and -ing."""
    stem = verb[:-1] if verb.endswith("e") else verb
    hissing = verb.endswith(("s", "sh", "ch", "x"))
    y = verb.endswith("y") and verb[-2] not in "aeou"
    with_s = verb[:-1] + "ies" if y else verb + ("es" if hissing else "s")
    past, running = _IRREGULAR.get(verb, f"{verb[:-1] + 'i' if y else stem}ed {stem}ing").split()
    return [verb, with_s, past, running]


def verb_swaps() -> dict[str, str]:
    """Return what each form of a verb is swapped for."""
    swaps: dict[str, str] = {}
    for pair in _OPPOSITES.split("|"):
        one, other = (forms(verb) for verb in pair.split())
        for a, b in zip(one, other, strict=True):
            swaps.setdefault(a, b)
            swaps.setdefault(b, a)
    return swaps


def swap_verb(sentence: str, _donors: Sequence[str], chance: random.Random) -> str | None:
    """Swap a verb for one that says the opposite, or denies it."""
    swaps = verb_swaps()
    return _replaced(sentence, [m for m in re.finditer(r"[a-z]+", sentence) if m.group() in swaps], swaps.get, chance)


def negate(sentence: str, _donors: Sequence[str], chance: random.Random) -> str | None:
    """Add or remove a "not"."""
    if (changed := re.sub(r"\bcannot\b", "can", re.sub(r" not\b", "", sentence))) != sentence:
        return changed
    found = list(_AUXILIARY.finditer(sentence))
    if found:
        return _replaced(sentence, found[:1], lambda word: "cannot" if word == "can" else f"{word} not", chance)
    third = {forms(verb)[1]: verb for pair in _OPPOSITES.split("|") for verb in pair.split()}
    found = [match for match in re.finditer(r"[a-z]+", sentence) if match.group() in third]
    return _replaced(sentence, found[:1], lambda word: f"does not {third[word]}", chance)


def swap_name(sentence: str, donors: Sequence[str], chance: random.Random) -> str | None:
    """Swap a name inside a sentence for one of the donors."""
    others = sorted({name for text in donors for name in _NAME.findall(text) if name not in sentence})
    return _replaced(
        sentence, list(_NAME.finditer(sentence)), lambda _: chance.choice(others) if others else None, chance
    )


def swap_place(sentence: str, _donors: Sequence[str], chance: random.Random) -> str | None:
    """Swap a place for any other."""
    others = [place for place in _PLACES.split("|") if place not in sentence]
    return _replaced(sentence, list(_PLACE.finditer(sentence)), lambda _: chance.choice(others), chance)


def swap_number(sentence: str, donors: Sequence[str], chance: random.Random) -> str | None:
    """Swap a number for another of its kind: a year, digits, or words."""
    own = numbers(sentence)
    values = {value for _, _, value, _ in own}
    pool = sorted({(kind, text) for donor in donors for _, text, value, kind in numbers(donor) if value not in values})
    by_kind = defaultdict[str, list[str]](list)
    for kind, text in pool:
        by_kind[kind].append(text)
    possible = [(start, text, kind) for start, text, _, kind in own if by_kind[kind]]
    if not possible:
        return None
    start, text, kind = chance.choice(possible)
    return sentence[:start] + chance.choice(by_kind[kind]) + sentence[start + len(text) :]


def numbers(text: str) -> list[tuple[int, str, float, str]]:
    """Return the numbers of a text: where, how they are written, their value and their kind."""
    found = []
    for one in mentions_of(parts_of(text), text):
        written = text[one.start : one.end]
        if not one.values or one.span or one.times or not re.fullmatch(r"[\d,.]+|[a-z -]+", written):
            continue
        if re.search(r"[\w'’][-–]?$", text[: one.start]) or text[one.end : one.end + 1] in ("'", "’"):
            continue  # a part of a name: HIV-1
        year = len(written) == 4 and written.isdigit() and 1700 < int(written) < 2100
        kind = "year" if year else "digits" if written[0].isdigit() else "words"
        if not (kind == "words" and written in ("half", "third", "hundreds", "thousands", "millions")):
            found.append((one.start, written, one.values[0], kind))
    return found


def _replaced(
    sentence: str, found: Sequence[re.Match[str]], new: Callable[[str], str | None], chance: random.Random
) -> str | None:
    if not found:
        return None
    match = chance.choice(found)
    word = new(match.group())
    return None if word is None else sentence[: match.start()] + word + sentence[match.end() :]


RULES = {"name": swap_name, "number": swap_number, "place": swap_place, "verb": swap_verb, "negation": negate}


def texts_of(name: str, split: str, data_dir: Path | None) -> Iterator[tuple[str, str, str]]:
    """Yield id, source and text of a set; those that are only measured are one file each."""
    if name not in MEASURED:
        for example in load(name, split, data_dir=data_dir):
            yield example.id, example.source, example.target
        return
    with lzma.open(Path(data_dir or ".") / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["id"], row["source"], row["target"]


def make_pairs(
    split: str, count: int, data_dir: Path | None, names: Sequence[str], most_words: int | None = None
) -> list[Pair]:
    """Make about so many pairs, of each kind about as many, at most two of a text."""
    chance = random.Random(f"grounding {split}")
    texts = [(name, *row) for name in names for row in texts_of(name, split, data_dir)]
    chance.shuffle(texts)
    all_targets = defaultdict[str, list[str]](list)
    for name, _, _, target in texts:
        all_targets[name.partition(":")[0]].append(target)
    made: list[Pair] = []
    of_kind = Counter[str]()
    for name, example, source, target in texts:
        if most_words is not None and len(source.split()) > most_words:
            continue
        sentences = [one for one in split_sentences(target) if 8 <= len(one.split()) <= 45 and "et al" not in one]
        chance.shuffle(sentences)
        before = len(made)
        for kind in sorted(KINDS, key=lambda kind: (of_kind[kind], kind)):
            if of_kind[kind] >= 1.1 * count / len(KINDS) or len(made) >= count or len(made) == before + 2:
                continue
            rule, _, origin = kind.partition(" ")
            donors = [source] if origin == "source" else chance.sample(all_targets[name.partition(":")[0]], 12)
            pairs = ((one, RULES[rule](one, donors, chance)) for one in sentences)
            found = next(((true, false) for true, false in pairs if false and false != true), None)
            if found is not None:
                row = {"id": f"{name}-{example}", "set": name, "source": source, "true": found[0], "false": found[1]}
                made.append(row | {"kind": kind})
                of_kind[kind] += 1
    print(f"{split}: {len(made)} pairs", dict(of_kind), dict(Counter(pair["set"] for pair in made)))
    return made


def score(pairs: Sequence[Pair], reader: SupportReader | None, gains: bool = True) -> list[Pair]:
    """Score both sentences of each pair; every score is higher for a supported one."""
    said = list(dict.fromkeys((pair["source"], pair[side]) for pair in pairs for side in _SIDES))
    scores = {one: {"foreign": -float(len(foreign_words(one[1], one[0])))} for one in said}
    if reader is not None:
        support, words = reader.measure(said, said if gains else [])
        for at, one in enumerate(said):
            scores[one]["support"] = support[at]
            if gains:
                scores[one] |= word_scores([(word.informed, word.gain) for word in words[at]])
    kept = ("id", "set", "kind")
    return [
        {key: pair[key] for key in kept} | {side: scores[pair["source"], pair[side]] for side in _SIDES}
        for pair in pairs
    ]


def word_scores(words: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return what the words of a sentence say: their likelihood with the source, and their gain by it."""
    informed, gain = zip(*words, strict=True) if words else ((0.0,), (0.0,))
    low = sorted(informed)[:2]
    return {
        "lowest": low[0],
        "two lowest": float(np.mean(low)),
        "likelihood": float(np.mean(informed)),
        "gain": float(np.mean(gain)),
        "lowest gain": min(gain),
        "lowest of both": min(min(a, 0.0) + min(b, 0.0) for a, b in zip(informed, gain, strict=True)),
    }


def load_reader(model: str, context: int) -> SupportReader:
    """Load a model as the metric does."""
    from impatience.metrics.grounding import Grounding

    return Grounding(model=model, context=context).reader


def auc(good: np.ndarray, bad: np.ndarray) -> float:
    """Return the chance that a true sentence has a higher score than a false one; half for equal ones."""
    return float(np.mean((good[:, None] > bad) + 0.5 * (good[:, None] == bad)))


def best_threshold(good: np.ndarray, bad: np.ndarray) -> float:
    """Return the threshold with the most right decisions: supported is what reaches it."""
    at = np.unique(np.concatenate([good, bad]))
    middles = np.concatenate([[at[0]], (at[1:] + at[:-1]) / 2])
    right = (good[None] >= middles[:, None]).mean(1) + (bad[None] < middles[:, None]).mean(1)
    return float(middles[int(right.argmax())])


def strict_threshold(good: np.ndarray, share: float = 0.05) -> float:
    """Return the highest of the scores of true sentences below which at most such a share of them is."""
    return float(np.sort(good)[int(share * len(good))])


def clear_margin(good: np.ndarray, bad: np.ndarray, share: float = 0.05) -> float:
    """Return the least margin by which at most such a share of false sentences is above its own true one."""
    above = np.sort(np.maximum(bad - good, 0.0))[::-1]
    return float(above[int(share * len(above))])


def interval(pairs: Sequence[Pair], of: Callable[[Sequence[Pair], str], np.ndarray]) -> tuple[float, float]:
    """Return the 95 % interval of an AUC: texts are drawn again, with both sentences of all of their pairs."""
    chance, good, bad = np.random.default_rng(0), of(pairs, "true"), of(pairs, "false")
    of_text = defaultdict[str, list[int]](list)
    for at, pair in enumerate(pairs):
        of_text[pair["id"]].append(at)
    texts = list(of_text.values())
    drawn = []
    for _ in range(500):
        rows = np.concatenate([texts[at] for at in chance.integers(len(texts), size=len(texts))])
        drawn.append(auc(good[rows], bad[rows]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def combine(pairs: Sequence[Pair], names: Sequence[str]) -> Callable[[Sequence[Pair], str], np.ndarray]:
    """Fit a logistic regression of the scores, and return it as a function of pairs and a side."""

    def features(rows: Sequence[Pair], side: str) -> np.ndarray:
        table = np.array([[_feature(name, row[side][name]) for name in names] for row in rows])
        return np.concatenate([table, np.ones((len(rows), 1))], 1)

    x = np.concatenate([features(pairs, "true"), features(pairs, "false")])
    y = np.concatenate([np.ones(len(pairs)), np.zeros(len(pairs))])
    spread = x[:, :-1].std(0)
    scale = np.concatenate([np.where(spread > 1e-6, spread, 1.0), [1.0]])
    w = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's method, with a ridge
        p = 1 / (1 + np.exp(-(x / scale) @ w))
        hessian = (x / scale).T @ ((p * (1 - p))[:, None] * (x / scale)) + np.eye(len(w))
        w += np.linalg.solve(hessian, (x / scale).T @ (y - p) - w)
    print("combination:", {n: round(float(v), 4) for n, v in zip([*names, "constant"], w / scale, strict=True)})
    return lambda rows, side: features(rows, side) @ (w / scale)


def _feature(name: str, value: float) -> float:
    if name == "foreign":
        return max(value, -1.0)
    return math.log((value + 1e-4) / (1 - value + 1e-4)) if name == "support" else value


def report(scored: dict[str, list[Pair]]) -> None:
    """Print the tables of each split but validation, with thresholds from validation."""
    for split in scored:
        if split != "validation":
            print_tables(scored["validation"], scored[split], split)


def print_tables(chosen: list[Pair], shown: list[Pair], split: str) -> None:
    """Print what the scores tell of some pairs; thresholds are chosen on others."""
    names = list(chosen[0]["true"])
    measures = {name: (lambda rows, side, name=name: np.array([row[side][name] for row in rows])) for name in names}
    if "support" in names:
        measures["foreign + support"] = combine(chosen, ["foreign", "support"])
    if "gain" in names:
        measures["support + lowest of both"] = combine(chosen, ["support", "lowest of both"])
        measures["all"] = combine(chosen, names)
    print(f"\n{len(chosen)} pairs of validation, {len(shown)} of {split}")
    print(
        f"\n| score | AUC validation | AUC {split} | threshold | right, % | false found, % | true flagged, % | ", end=""
    )
    print("true flagged where half of the false are, % | in order, % |\n" + "|---" + 8 * "|---:" + "|")
    for name, of in measures.items():
        at = best_threshold(of(chosen, "true"), of(chosen, "false"))
        good, bad = of(shown, "true"), of(shown, "false")
        half = float(np.median(of(chosen, "false")))
        found, flagged, mild = (bad < at).mean(), (good < at).mean(), (good < half).mean()
        order = np.mean((good > bad) + 0.5 * (good == bad))
        figures = (100 * (found + 1 - flagged) / 2, 100 * found, 100 * flagged, 100 * mild, 100 * order)
        line = f"| {name} | {auc(of(chosen, 'true'), of(chosen, 'false')):.3f} | {auc(good, bad):.3f} | {at:.3f} | "
        print(line + " | ".join(f"{figure:.0f}" for figure in figures) + " |")
    print(
        "\nthreshold at ≤ 5 % of true flagged on validation; margin that ≤ 5 % of pairs there exceed in the wrong order"
    )
    print("\n| score | AUC (95 %) | threshold | right, % | false found, % | true flagged, % | ", end="")
    print("margin | pairs told apart, % | of them in order, % |\n" + "|---" + 8 * "|---:" + "|")
    for name, of in measures.items():
        at, good, bad = strict_threshold(of(chosen, "true")), of(shown, "true"), of(shown, "false")
        found, flagged = (bad < at).mean(), (good < at).mean()
        low, high = interval(shown, of)
        margin = clear_margin(of(chosen, "true"), of(chosen, "false"))
        clear, right = (np.abs(good - bad) > margin).mean(), (good - bad > margin).mean()
        told = f"{margin:.3f} | {100 * clear:.0f} | {100 * right / max(clear, 1e-9):.0f}"
        figures = " | ".join(f"{100 * one:.0f}" for one in ((found + 1 - flagged) / 2, found, flagged))
        print(f"| {name} | {auc(good, bad):.2f} ({low:.2f}–{high:.2f}) | {at:.3f} | {figures} | {told} |")
    for field, values in (("kind", KINDS), ("set", sorted({pair["set"] for pair in shown}))):
        rows = {value: [pair for pair in shown if pair[field] == value] for value in values}
        print(f"\nAUC on {split} by {field}, and pairs in order, %\n\n| score | " + " | ".join(values) + " |")
        print("|---" * (len(values) + 1) + "|")
        print("| pairs | " + " | ".join(str(len(some)) for some in rows.values()) + " |")
        for name, of in measures.items():
            cells = (_both(of(some, "true"), of(some, "false")) if some else "–" for some in rows.values())
            print(f"| {name} | " + " | ".join(cells) + " |")


def _both(good: np.ndarray, bad: np.ndarray) -> str:
    return f"{auc(good, bad):.2f}, {100 * np.mean((good > bad) + 0.5 * (good == bad)):.0f} %"


def print_references(data_dir: Path | None) -> None:
    """Print how many texts of people have a foreign word, and how many with their sources shuffled."""
    print(
        "| texts of people | texts | words | with a foreign word, % | with a foreign number, % | of another source, % |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for name in (
        "elife:title",
        "elife:impact",
        "elife:assessment",
        "elife:digest",
        "govnews:title",
        *SETS[2:],
        *MEASURED,
    ):
        rows = list(texts_of(name, "test", data_dir))
        found = [find_foreign(re.sub(r"\S+ et al\.?", "", text), source) for _, source, text in rows]
        numeric = [any(any(map(str.isdigit, word.text)) or word.text[0].islower() for word in one) for one in found]
        wrong = [bool(foreign_words(text, rows[at - 1][1])) for at, (_, _, text) in enumerate(rows)]
        figures = (100 * np.mean([bool(one) for one in found]), 100 * np.mean(numeric), 100 * np.mean(wrong))
        words = np.mean([len(text.split()) for _, _, text in rows])
        print(f"| {name} | {len(rows)} | {words:.0f} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")


def score_sets(wanted: argparse.Namespace) -> dict[str, list[Pair]]:
    """Score the pairs of a folder; a run that was ended goes on from its ``--out``."""
    facts = {"model": wanted.model, "context": wanted.context, "gains": not wanted.no_gains}
    scored: dict[str, list[Pair]] = {}
    if wanted.out and wanted.out.is_file():
        earlier = json.loads(wanted.out.read_text(encoding="utf-8"))
        scored = earlier["scores"] if {key: earlier.get(key) for key in facts} == facts else {}
    reader = load_reader(wanted.model, wanted.context) if wanted.model else None
    for split in ("validation", "test", "measured"):
        file = wanted.data / f"{split}.jsonl"
        if split == "measured" and not file.is_file():
            continue
        pairs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][: wanted.limit]
        done = scored.setdefault(split, [])
        while len(done) < len(pairs):
            part, began = pairs[len(done) : len(done) + _AT_ONCE], time.monotonic()
            done += score(part, reader, not wanted.no_gains)
            seconds = (time.monotonic() - began) / len({(pair["source"], pair[s]) for pair in part for s in _SIDES})
            print(f"{split}: {len(done)} of {len(pairs)} pairs, {seconds:.1f} s a sentence", flush=True)
            if wanted.out:
                wanted.out.write_text(json.dumps(facts | {"scores": scored}), encoding="utf-8")
    return scored


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--write-set", type=Path)
    parser.add_argument("--split", default="validation")
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--measured", action="store_true", help="make the set of xsum and cnn_dailymail")
    parser.add_argument("--sets", default=",".join(SETS), help="the data sets whose texts are taken")
    parser.add_argument("--short-sources", type=int)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--context", type=int, default=900)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--no-gains", action="store_true", help="ask for support alone, which takes half the time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    wanted = parser.parse_args()
    if wanted.references:
        print_references(wanted.data_dir)
    elif wanted.write_set:
        sets = MEASURED if wanted.measured else wanted.sets.split(",")
        made = make_pairs(wanted.split, wanted.pairs, wanted.data_dir, sets, wanted.short_sources)
        wanted.write_set.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(pair, ensure_ascii=False) for pair in made)
        wanted.write_set.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif wanted.read:
        report(json.loads(wanted.read.read_text(encoding="utf-8"))["scores"])
    elif wanted.data:
        report(score_sets(wanted))
    else:
        parser.error("give --references, --write-set, --data or --read")


if __name__ == "__main__":
    main()
