"""Languages: says if a text is clearly in a language that a model was not taught in.

The guess takes no model: the script tells languages with a script of their own, and for the Latin script words that are
very common in one language of the list and in no other. Where these say nothing clear, nothing is said.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_SAMPLE = 4000  # characters of a text that are looked at
_LEAST_LETTERS = 20  # in a script
_LEAST_WORDS = 4  # that only one language has
_LEAST_KINDS = 3  # different ones among them, single letters left out: they are also names of things
_LEAST_SHARE = 0.06  # of such words among all words
_TIMES = 3  # how many times as many there must be as of any language that the model was taught in


@dataclass(frozen=True)
class _Language:
    """A language, or several that are not told apart."""

    codes: tuple[str, ...]  # ISO codes
    name: str
    words: frozenset[str] = frozenset()


def _latin(codes: str, name: str, words: str) -> _Language:
    return _Language(tuple(codes.split()), name, frozenset(words.split()))


_LISTED = (
    _latin("en", "English", "the and of to that was for with as his on be at by had not are from this have an which"),
    _latin("de", "German", "der die und das ist nicht den ein eine zu mit sich auf für von dem auch wird sind im des"),
    _latin("fr", "French", "les des et une est dans qui pour sur avec au par pas ce il elle sont aux cette ne du été"),
    _latin("es", "Spanish", "el los las y del por con una para su al lo como más pero sus fue es este son muy hay"),
    _latin("it", "Italian", "il di che è per non della gli sono dei nel alla anche più questo delle dal ha ma loro"),
    _latin("pt gl", "Portuguese", "o os da do em não uma que com para dos das mais como ao foi são também pela à seu"),
    _latin("nl af", "Dutch", "de het een van en dat niet zijn op voor met aan ook werd naar heeft door maar worden"),
    _latin("sv", "Swedish", "och att det som en på är av för med till den inte har ett var om eller från han"),
    _latin("da nb no nn", "Danish or Norwegian", "og det som en på er av af for med til den ikke har et var fra at"),
    _latin("fi", "Finnish", "ja on ei että se oli hän mutta ovat joka kun myös sen kuin tai niin olla mukaan"),
    _latin("pl", "Polish", "i w na nie się z że do jest jak po od za przez który są oraz był dla ale ich jego"),
    _latin("cs sk", "Czech or Slovak", "a v se na je že to s z do o pro ale jako který jsou byl při podle jeho nebo"),
    _latin("hr sr bs sl", "Croatian or Serbian", "i u je na se da za od su s koji kao bi o iz nije što ali do koja"),
    _latin("hu", "Hungarian", "a az és hogy nem is egy volt meg ez csak mint azt már vagy de aki volna ezt"),
    _latin("ro", "Romanian", "și în de la cu nu pe care din este un mai o să ce sunt a fost pentru prin după"),
    _latin("tr", "Turkish", "ve bir bu da de için ile çok olarak daha ne gibi sonra kadar olan ama değil her"),
    _latin("id ms", "Indonesian or Malay", "yang dan di itu dengan untuk tidak dari ini dalam akan pada ke juga oleh"),
    _latin("vi", "Vietnamese", "và của là có không được trong cho một những các với người này đã khi để ở"),
)
_OFTEN = Counter(word for language in _LISTED for word in language.words)
_LATIN = tuple(
    _Language(language.codes, language.name, frozenset(word for word in language.words if _OFTEN[word] == 1))
    for language in _LISTED
)
"""Languages in the Latin script, with the words that no other one of the list has."""
_SCRIPTS = {  # first word of a letter's name in Unicode
    "GREEK": _Language(("el",), "Greek"),
    "CYRILLIC": _Language(("ru", "uk", "bg", "sr", "be", "mk", "kk", "mn"), "a language in the Cyrillic script"),
    "HEBREW": _Language(("he", "yi"), "Hebrew"),
    "ARABIC": _Language(("ar", "fa", "ur", "ps"), "a language in the Arabic script"),
    "DEVANAGARI": _Language(("hi", "mr", "ne", "sa"), "a language in the Devanagari script"),
    "BENGALI": _Language(("bn", "as"), "Bengali"),
    "TAMIL": _Language(("ta",), "Tamil"),
    "TELUGU": _Language(("te",), "Telugu"),
    "THAI": _Language(("th",), "Thai"),
    "HANGUL": _Language(("ko",), "Korean"),
    "HIRAGANA": _Language(("ja",), "Japanese"),
    "CJK": _Language(("zh", "ja"), "Chinese or Japanese"),
    "GEORGIAN": _Language(("ka",), "Georgian"),
    "ARMENIAN": _Language(("hy",), "Armenian"),
}
_NAMES = {code: language.name for language in (*_SCRIPTS.values(), *_LATIN) for code in language.codes}


def language_remark(texts: Iterable[str], taught: Collection[str]) -> str:
    """Return a remark if one of the texts is clearly in none of the languages with these ISO codes; else "".

    Without any code nothing is known of the model, and nothing is said.
    """
    if not taught:
        return ""
    for text in texts:
        if name := _foreign(text[:_SAMPLE], taught):
            known = [_NAMES.get(code, code) for code in taught]
            languages = " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
            return f"The text looks like {name}, and this model was taught in {languages}: expect less of it."
    return ""


def _foreign(text: str, taught: Collection[str]) -> str:
    """Return the name of a text's language if it is clearly none of those."""
    scripts = Counter(unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha())
    if scripts["HIRAGANA"]:  # a Japanese text has both kinds of kana, and Chinese characters
        scripts["HIRAGANA"] += scripts.pop("KATAKANA", 0) + scripts.pop("CJK", 0)
    script, letters = scripts.most_common(1)[0] if scripts else ("", 0)
    if letters < _LEAST_LETTERS or 2 * letters < scripts.total():
        return ""
    if script != "LATIN":
        language = _SCRIPTS.get(script)
        return "" if language is None or not set(language.codes).isdisjoint(taught) else language.name
    words = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    hits = {language: sum(words[word] for word in language.words) for language in _LATIN}
    best = max(_LATIN, key=lambda language: hits[language])
    known = max((hits[one] for one in _LATIN if not set(one.codes).isdisjoint(taught)), default=0)
    clear = hits[best] >= max(_LEAST_WORDS, _LEAST_SHARE * words.total(), _TIMES * known)
    clear = clear and sum(len(word) > 1 and word in words for word in best.words) >= _LEAST_KINDS
    return best.name if clear and set(best.codes).isdisjoint(taught) else ""
