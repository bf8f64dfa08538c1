"""Languages that a model was not taught in are announced where they are clear, and only there."""

from __future__ import annotations

import pytest

from impatience import Request
from impatience.writing.languages import language_remark
from support.toys import CORPUS
from support.writers import TAUGHT, new_writer

TAUGHT_IN = ("en", "de", "es", "fr")
ITALIAN = (
    "La nave è arrivata ieri sera nel porto di Genova con due giorni di ritardo. Il capitano ha detto che il mare era "
    "molto agitato e che non sono mancati momenti difficili, ma tutti i passeggeri stanno bene."
)
OTHERS = {
    "Italian": ITALIAN,
    "Dutch": "Het schip is gisteravond met twee dagen vertraging in de haven aangekomen. De kapitein zei dat de zee "
    "niet rustig was en dat er veel wind stond, maar het gaat goed met alle passagiers van de boot.",
    "Portuguese": "O navio chegou ontem à noite ao porto com dois dias de atraso. O capitão disse que o mar não estava "
    "calmo e que também houve muito vento, mas os passageiros estão bem e foram para casa.",
    "Danish or Norwegian": "Skipet kom i går kveld til havnen, to dager forsinket. Kapteinen sa at det ikke var rolig "
    "på havet og at det var mye vind, men alle passasjerene har det bra og er hjemme igjen.",
    "Polish": "Statek przypłynął wczoraj wieczorem do portu z opóźnieniem. Kapitan powiedział, że morze nie było "
    "spokojne i że wiał silny wiatr, ale pasażerowie są zdrowi i już się cieszą, że są w domu.",
    "Finnish": "Laiva saapui eilen illalla satamaan kaksi päivää myöhässä. Kapteeni sanoi, että meri ei ollut tyyni ja "
    "että tuuli oli kova, mutta kaikki matkustajat ovat kunnossa, kun he nyt ovat kotona.",
    "Greek": "Το πλοίο έφτασε χθες το βράδυ στο λιμάνι με δύο ημέρες καθυστέρηση.",
    "a language in the Cyrillic script": "Корабль прибыл вчера вечером в порт с опозданием на два дня.",
    "Chinese or Japanese": "船昨晚晚了两天到达港口，船长说海上风浪很大，但是所有乘客都平安无事。",
    "Japanese": "船は昨夜、二日遅れで港に着いた。船長は海が荒れていたが乗客は全員無事だと話した。",
    "Korean": "배는 어제 저녁 이틀 늦게 항구에 도착했다. 선장은 바다가 거칠었다고 말했다.",
}
TAUGHT_TEXTS = (
    " ".join(CORPUS[:4]),
    "Das Schiff ist gestern Abend mit zwei Tagen Verspätung im Hafen angekommen. Der Kapitän sagte, dass die See nicht "
    "ruhig war und dass es viel Wind gab, aber allen Passagieren geht es gut.",
    "El barco llegó ayer por la noche al puerto con dos días de retraso. El capitán dijo que el mar no estaba en calma "
    "y que hubo mucho viento, pero los pasajeros están bien y se fueron a su casa.",
    "Le navire est arrivé hier soir au port avec deux jours de retard. Le capitaine a dit que la mer n'était pas calme "
    "et qu'il y avait beaucoup de vent, mais les passagers vont bien et sont rentrés chez eux.",
)


@pytest.mark.parametrize("name", OTHERS)
def test_another_language_is_named(name: str) -> None:
    remark = language_remark([OTHERS[name]], TAUGHT_IN)
    assert remark == (
        f"The text looks like {name}, and this model was taught in English, German, Spanish and French: expect less "
        f"of it."
    )


@pytest.mark.parametrize(
    "text",
    [
        *TAUGHT_TEXTS,
        "",
        "1234 5678, 90 % – € 3,50",
        "Genova, Milano, Torino, Roma",  # names
        "Il capitano dell'opera",  # too short
        "The opera «Il barbiere di Siviglia» is sung in Italian, and the programme of the evening has all of its words "
        "on the left and what they mean on the right.",
        "def on(e): return e.map(lambda da: da.di)",
        "Καλημέρα",  # a word
        "Ordet ord betyr word. " * 3,  # no common words
    ],
)
def test_nothing_is_said_of_languages_that_were_taught_and_of_unclear_cases(text: str) -> None:
    assert language_remark([text], TAUGHT_IN) == ""


def test_nothing_is_said_where_the_languages_of_a_model_are_not_known() -> None:
    assert language_remark([ITALIAN], ()) == ""
    assert language_remark([ITALIAN], ("en", "it")) == ""
    assert language_remark([ITALIAN], ("en",)).endswith("was taught in English: expect less of it.")


def test_the_result_says_so_once_and_of_an_instruction_too() -> None:
    writer = new_writer(prompt=TAUGHT | {"max_source_tokens": 400}, max_position_embeddings=1024)
    says = "The text looks like Italian"
    assert writer.write(ITALIAN, words=3, landing="exact").note.startswith(says)
    assert writer.write(words=3, landing="exact", ask=ITALIAN).note.startswith(says)
    assert says not in writer.write(CORPUS[0], words=3, landing="exact").note
    (long,) = writer.write_many([Request("a", " ".join([ITALIAN] * 3), 3, landing="exact")])
    assert long.parts > 1
    assert long.note.count(says) == 1
