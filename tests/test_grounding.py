"""Foreign words: names and numbers that a source does not have."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impatience.grounding import find_foreign, foreign_words
from impatience.grounding.mentions import mentions_of
from impatience.grounding.numbers import parts_of

SOURCE = "Anna Bergström runs a bakery in Voss. It sells 1,200 loaves a week."


def test_names_and_numbers_of_the_source_are_known() -> None:
    assert foreign_words("The bakery of Bergström in Voss sells 1200 loaves.", SOURCE) == ()


def test_names_and_numbers_that_the_source_lacks_are_foreign() -> None:
    assert foreign_words("The bakery in Oslo sells 900 loaves.", SOURCE) == ("Oslo", "900")


def test_they_are_found_where_they_are() -> None:
    text = "Since 1998 the bakery in Oslo, and Oslo’s café, sold 3.5 million loaves."
    found = find_foreign(text, SOURCE)
    assert [text[word.start : word.end] for word in found] == [word.text for word in found]
    assert [word.text for word in found] == ["1998", "Oslo", "Oslo", "3.5 million"]
    assert foreign_words(text, SOURCE) == ("1998", "Oslo", "3.5 million")


def test_a_name_is_found_wherever_it_stands_if_it_is_known_to_be_one() -> None:
    found = find_foreign("Oslo grows. The people of Oslo eat.", SOURCE)
    assert [(word.text, word.start) for word in found] == [("Oslo", 0), ("Oslo", 26)]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # formats of numbers
        ("It has 1000 members.", "It has 1,000 members, 1 000 members, 1.000 members."),
        ("It has 1\u202f000 members.", "It has 1000 members."),
        ("Prices rose by 5 %.", "Prices rose by 5%, five percent, 5 percent, 5 per cent."),
        ("It cost £3.5m.", "It cost 3.5 million pounds, 3,500,000 pounds, £3.5 m."),
        ("It cost $1.5-2bn, or £4.2bn.", "It cost $1.5bn, 2 billion dollars, or 4,200,000,000 pounds."),
        ("Er kostet 3,5 Millionen Euro.", "It costs 3.5 million."),
        ("It cost 3,512,000 dollars.", "It cost about 3.5 million dollars."),
        ("There were 1,099 referrals.", "There were nearly 1,100 referrals, more than 1,000."),
        ("It grew by 12.4 per cent.", "It grew by 12 per cent."),
        ("Half of them left.", "50 % of them left, or ½."),
        ("Two-thirds of the seats are taken.", "67 percent of the seats are taken."),
        ("Version 2.1.3 is out.", "Version 2.1.3 is out."),
        # number words
        ("They bought 12 loaves.", "They bought twelve loaves, a dozen loaves."),
        ("They bought two hundred and five loaves.", "They bought 205 loaves."),
        ("It has 52 rooms, 100 beds, 1,500,000 guests.", "It has fifty-two rooms, one hundred beds, 1.5m guests."),
        ("The 3rd house of 21.", "The third house of the twenty-first."),
        ("Both doors are shut.", "The two doors are shut."),
        ("He has a car.", "One has a car; no one walks; first he drives."),
        ("It lost 4,000 trees.", "Thousands of trees are lost."),
        ("It cost 500,000 or 2,500,000.", "It cost half a million, or two and a half million."),
        ("It took half a million, then two and a half hours.", "It took 500,000 and 2.5 hours, half of it a day."),
        ("It is the order 4711-15-99 of 31.31.2020.", "The order 4711-15-99 is of 31.31.2020."),
        ("It is the size 1.000,5'3.", "The size is 1.000,5'3."),
        ("It has 3D models.", "It has three-dimensional models."),
        # dates and times
        ("It opened on 2 March 1998.", "It opened on March 2, 1998, or 1998-03-02, or 2/3/1998, or 2 Mar. 1998."),
        ("It opened on 1998-03-02.", "It opened on the 2nd of March, 1998."),
        ("She died on 17 August 1945.", "She died on 1945-08-17, 17/08/1945, 8/17/1945, 17.08.1945."),
        ("Elle est morte le 17 août 1945 dans la ville.", "Elle est morte le 17/08/1945 dans la ville."),
        ("It opened on 1998/03/02.", "It opened on 1998-03-02."),
        ("It opened on 2/3/1998.", "It opened on 3/2/1998, on 2 March, on 3 February."),
        ("It opened between 2 and 5 March.", "It opened before 5 March."),
        ("It opened in 1995.", "It opened in the 1990s, the nineties."),
        ("It opens at 5:30 PM.", "It opens at 5:30 p.m., at 17:30."),
        ("It opened in 1871.", "It opened in the 1800s."),
        ("It opens at 10 am and closes at 22:30.", "It opens at 10:00, at ten, and closes at 10:30 pm."),
        ("It left at 14.30 for 3.50 kroner.", "It left at 2:30 pm for 3.5 kroner, at 14:30."),
        ("It opens at noon on Tues, Jan 5.", "It opens at 12:00 on Tuesday, January 5."),
        ("It opens at half past seven and shuts at quarter to eight.", "It opens at 7:30 and shuts at 7:45, at 19:45."),
        ("It opens at 7:30 pm.", "It opens at half past seven."),
        ("It opens at 7 in the evening.", "It opens at 7 pm, at 19:00, at seven in the evening."),
        ("It ran in 1914-18 and in 2019/20.", "It ran to 1918, and in 2020."),
        ("One in five bakers left.", "20 % of the bakers left, 20 percent."),
        ("About 20% of bakers left.", "One in five bakers left."),
        ("She won the first prize.", "She won the 1st prize."),
        ("It was in World War II, under Henry VIII.", "It was in World War 2, the Second World War, under Henry the"
         " Eighth."),
        ("It was in World War 2.", "It was in World War II."),
        # names in other forms
        ("A bakery in Norway.", "The Norwegian bakery is Norway’s best."),
        ("The Italians and the Swiss.", "Italy and Switzerland."),
        ("She is German.", "She lives in Germany with other Germans and another."),
        ("A bakery in Norway, Finland, Turkey and Iran.", "It feeds Norwegians, Finns, Turks, Iranians, the Finnish."),
        ("A bakery of Danes, Swedes and Poles.", "It is a bakery from Denmark, Sweden and Poland."),
        ("Both Mexico, China, Brazil and Texas.", "A Mexican, a Chinese, a Brazilian, a Texan."),
        ("The Smith family's Peter.", "It is the house of the Smiths, and Peter's."),
        ("The ministry and the parliament.", "It is the Ministry’s, and of all Parliamentary Ministries."),
        ("José Müller, Ægir Łukasz", "Jose Mueller met Lukasz."),
        ("It runs in the United States of America.", "It runs in the US, the U.S., and the USA."),
        ("The U.S. Forest Service said so.", "The United States said so."),
        ("The BBC reported it.", "The British Broadcasting Corporation reported it."),
        ("spike-timing-dependent plasticity is known", "STDP is known, and so is the STDP rule."),
        ("GPUs and a tRNA and Rab23.", "The GPU, the RNA and Rab 23."),
        ("eIF2α and NF-κB.", "The eIF2alpha and the NF-kappaB."),
        ("The GitHub page of DigitalGov.", "The Git Hub page of Digital Gov and #DigitalGov."),
        ("An e-government portal.", "The eGovernment portal."),
        ("Prof. Berg of the Dept. of Health.", "Professor Berg of the Department of Health."),
        ("Berg said so.", "Mr Berg said so to Mrs Berg."),
        # ordinary words in capitals
        ("A bus goes to Voss.", "New Bus Line Opens In Voss"),
        ("A bus goes to Voss.", "NEW BUS LINE OPENS IN VOSS"),
        ("A bus goes to Voss.", "Cucumbers are cheap. Meanwhile, I'm glad. Buses: Take one. “They stop here.”"),
        ("A bus goes to Voss.", "1. Buses\n2. Stops\n(1) Take it."),
        # other languages
        ("Die Bäckerei in Voss backt zwölf Brote.", "In der Bäckerei in Voss werden 12 Brote gebacken. Die Leute"
         " sind in Ruhe und freut sich über die Qualität der Ware."),
        ("Der Hafen von Bergen wurde ausgebaut.", "Der Hafenausbau in Bergen ist ein Erfolg für die Stadt."),
        ("La boulangerie de Voss vend douze pains.", "La boulangerie vend 12 pains. Les clients sont contents."),
        ("La panadería de Voss vende doce panes.", "La panadería vende 12 panes. Los clientes están contentos."),
        ("港口下了大雪,12 艘渡船没有开。", "港口有 12 艘渡船。"),
    ],
)  # fmt: skip
def test_what_the_source_says_otherwise_is_known(source: str, text: str) -> None:
    assert foreign_words(text, source) == ()


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        ("It has 1000 members.", "It has 10,000 members and 100 more.", ("10,000", "100")),
        ("It has 1,204 members.", "It has 1,300 members, about 2,000.", ("1,300", "2,000")),
        ("They bought 12 loaves.", "They bought thirteen loaves, two dozen in all.", ("thirteen", "two dozen")),
        ("It is worth €4.2bn.", "It is worth €4.2m.", ("4.2m",)),
        ("He earns $50m a year.", "He earns $50k a year.", ("50k",)),
        ("Sales grew 5% in June.", "Sales grew to $5bn in June.", ("5bn",)),
        ("They sold 3 cars.", "They sold 3k cars.", ("3k",)),
        ("It is 3 metres high, and 300 K warm.", "It is 3m high, 300K warm, and costs £3m.", ("3m",)),
        ("Prices rose by 5 %.", "A third of the prices rose.", ("A third",)),
        ("It opened on 2 March 1998.", "It opened on 3 March 1998.", ("3",)),
        ("It opened on 2 March with bread for 5 people.", "It opened on 5 March.", ("5",)),
        ("It opened on 2 March 1998.", "It opened on 2 April 1999.", ("April", "1999")),
        ("She died on 17 August 1945.", "She died on 1945-09-17.", ("1945-09-17",)),
        ("She died on 17 August 1945.", "She died on 17/09/1945.", ("17/09/1945",)),
        ("She died on 17 August 1945.", "She died on 17.09.1945.", ("17.09.1945",)),
        ("On 17 August 1945 she left, on 3 September she came.", "She left on 1945-09-17.", ("1945-09-17",)),
        ("It opened on 1998-03-02 and closed on 1998-03-05.", "It closed on 6 March.", ("6",)),
        ("It opened in 1995.", "It opened in the 1980s.", ("1980s",)),
        ("It opens at 7 in the evening.", "It opens at 7 am.", ("7 am",)),
        ("It opens at half past seven.", "It opens at 7:45.", ("7:45",)),
        ("It has 5 ovens.", "Ten to twelve of 5 in 2010 left.", ("Ten", "twelve", "2010")),
        ("It opens at 10 am.", "It opens at 10 pm.", ("10 pm",)),
        ("It opens at 10 AM.", "It opens at 10 pm.", ("10 pm",)),
        ("It cost a million.", "It cost half a million.", ("half a million",)),
        ("It is the order 4711-15-99.", "It is the order 4711-16-99.", ("4711-16-99",)),
        ("A bakery in Voss.", "Oslo is large. The people of Oslo eat.", ("Oslo",)),
        ("A bakery in Voss.", "Jens Stoltenberg was there.", ("Jens", "Stoltenberg")),
        ("A bakery in Voss.", "Oslo's bakery is good.", ("Oslo",)),
        ("A bakery in Voss.", "The bakery fed Dr. Hansen for a week.", ("Hansen",)),
        ("A bakery in Voss.", "New Bakery Opens In Bergen", ("Bergen",)),
        ("A bakery in Bergström's house.", "A bakery in Bergen.", ("Bergen",)),
        ("A bakery in Voss.", "The bakery got an iPhone, and the BBC came by H5N1.", ("iPhone", "BBC", "H5N1")),
        ("A bakery in Voss.", "The bakery is in the United Kingdom.", ("United", "Kingdom")),
        ("Let us sit in the sun, who did.", "The US and the WHO met on Sunday.", ("US", "WHO", "Sunday")),
        ("Those who can. It is his new bakery.", "The BBC said so on Facebook.", ("BBC", "Facebook")),
        ("Eine Bäckerei in Voss.", "Die Bäckerei ist in Oslo, und Herr Hansen mit Jens Berg ist da.",
         ("Oslo", "Hansen", "Jens", "Berg")),
        ("Une boulangerie à Voss.", "La boulangerie de Bergen est bonne, selon Pierre.", ("Bergen", "Pierre")),
        ("Una panadería en Voss.", "La panadería de Bergen es buena y vende doce panes.", ("Bergen", "doce")),
        ("港口下了大雪,12 艘渡船没有开。", "港口有 13 艘渡船。", ("13",)),
    ],
)  # fmt: skip
def test_what_the_source_does_not_say_is_foreign(source: str, text: str, found: tuple[str, ...]) -> None:
    assert foreign_words(text, source) == found


def test_digits_of_codes_and_suffixes_are_read() -> None:
    def values(text: str) -> list[Any]:
        return [mention.values for mention in mentions_of(parts_of(text), text)]

    assert values("3.5bn and 10k") == [(3.5e9,), (10_000.0,)]
    assert values("3.5m, £3.5m, EUR 3.5m, 300K") == [(3.5, 3.5e6), (3.5e6,), (3.5e6,), (300.0, 300_000.0)]
    assert values("$1.5-2bn") == [(1.5, 1.5e9), (2e9,)]
    assert values("a hundred and one thousand") == [(101_000.0,)]
    assert values("twenty five hundred-odd") == [(2500.0,)]
    assert values("half of them") == [(0.5, 50.0, 50.0, 50.0, 2.0)]
    assert values("one more, nineteen twenty") == [(19.0,), (20.0,)]


def test_decimals_beside_a_month_are_no_days() -> None:
    source = "Prices rose by 3.5% in March, 2.1% in April and 0.4% in May. In June 2010 it was 2.5%."
    assert foreign_words(source, source) == ()
    assert foreign_words("Prices rose in March, 2.1% of them twice.", source) == ()
    assert foreign_words("It was on 9 March.", "It was on 3 March, and they had waited for 9 years.") == ("9",)


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ("Peter", "Petra"), ("Maria", "Mario"), ("Anna", "Anne"), ("Paul", "Paula"), ("John", "Johnson"),
        ("Martin", "Martinez"), ("Robert", "Roberto"), ("Christian", "Christina"), ("Daniel", "Danielle"),
        ("Georgia", "George"), ("Niger", "Nigeria"),
    ],
)  # fmt: skip
def test_another_name_that_begins_alike_is_foreign(known: str, other: str) -> None:
    source = f"The work at the bakery was led by {known}, who sold all of the bread of the day."
    assert foreign_words(f"The work was led by {other}, who sold bread.", source) == (other,)
    assert foreign_words(f"The work was led by {known}, who sold bread.", source.replace(known, other)) == (known,)


_LIKE_WORDS = (
    "Peter James Mark Rose Lily Brown Walker Baker Parker Carter Turner Hunter Fisher Miller Potter Hill Green King "
    "Young Allen Wood Cook Bell Apple Target Shell Gap Sony Orange Reading Bath Nice Mobile Turkey"
)


@pytest.mark.parametrize("name", _LIKE_WORDS.split())
def test_a_name_that_is_like_a_word_is_foreign(name: str) -> None:
    source = (
        "The bakery has been run by the same family for many years. It sells bread to those who live in the town, and "
        "it may open a second shop if people want one. They march in step and walk, fish, turn, pet and part."
    )
    assert foreign_words(f"The bakery was led by {name}, who sold it.", source) == (name,)
    assert foreign_words(f"The bakery was led by Mr. {name} for years.", source) == (name,)
    assert foreign_words(f"The bakery was led by {name}, who sold it.", f"{source} Ask {name}.") == ()
    assert foreign_words(f"The bakery is in the U.S. {name} is what it sells.", f"{source} It is in the U.S.") == ()


@pytest.mark.parametrize("month", ["March", "May", "July"])
def test_a_month_that_the_source_lacks_is_foreign(month: str) -> None:
    source = "The members, who may march, met last {}, and then they agreed on what they would do with the money."
    assert foreign_words(f"The members met last {month}.", source.format("June")) == (month,)
    assert foreign_words(f"The members met last {month}.", source.format(month)) == ()


_TEXTS = st.text(st.sampled_from("ab AB.,:-'’1905 %\nßøÆα–½ \u00a0éM"), max_size=60)


@given(_TEXTS)
@settings(max_examples=300, deadline=None)
def test_nothing_in_a_text_is_foreign_to_the_text_itself(text: str) -> None:
    assert foreign_words(text, text) == ()


@given(_TEXTS, _TEXTS, _TEXTS)
@settings(max_examples=300, deadline=None)
def test_words_stand_in_order_and_where_they_are_said_to(text: str, source: str, more: str) -> None:
    found = find_foreign(text, source)
    assert all(text[word.start : word.end] == word.text for word in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert find_foreign(text, source) == found


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "...", "1" * 400, "Aa" * 5000, "two " * 3000, "A. " * 2000, "1,2." * 800]
)
def test_odd_texts_are_read(text: str) -> None:
    assert foreign_words(text, text) == ()
    assert isinstance(foreign_words(text, SOURCE), tuple)
