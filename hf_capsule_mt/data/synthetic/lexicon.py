"""Nouns, adjectives, names, places and adverbials of the synthetic language pair.

Each table is text, parsed once at import. A noun is written ``english/German/German plural/gender``. ``_`` stands for
a space, and ``-`` for "has none" (a mass noun has the plural ``-``). Other lists name nouns by class (lower case:
``animal``) or by the German noun (``Schlüssel``), because an ambiguous English noun has several senses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Noun:
    """One sense of an English noun, with its German translation. Nouns are compared by identity."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str  # "m", "f" or "n"
    kind: str  # its class in the table
    weak: bool = False  # ends in -(e)n in every case except the nominative: der Junge, den Jungen
    sex: str = ""  # "m" or "f" if the word implies it
    feminine: str = ""  # the word for a woman in this profession
    forced: tuple[str, ...] = ()  # German adjectives; one of them always precedes the noun and shows its sense

    @property
    def countable(self) -> bool:
        return self.de_plural != "-"


@dataclass(frozen=True, eq=False)
class Adjective:
    """One sense of an English adjective: ``stem`` takes the German endings."""

    en: str
    en_comparative: str
    de: str
    de_comparative: str
    stem: str


@dataclass(frozen=True, eq=False)
class Place:
    """A place, with the prepositions for being there (German dative) and for going there."""

    noun: Noun
    en_at: str
    de_at: str
    de_to: str
    de_to_case: str


_NOUNS = {
    "person": """man/Mann/Männer/m woman/Frau/Frauen/f boy/Junge/Jungen/m girl/Mädchen/Mädchen/n child/Kind/Kinder/n
        mother/Mutter/Mütter/f father/Vater/Väter/m sister/Schwester/Schwestern/f brother/Bruder/Brüder/m
        grandmother/Großmutter/Großmütter/f grandfather/Großvater/Großväter/m aunt/Tante/Tanten/f uncle/Onkel/Onkel/m
        neighbour/Nachbar/Nachbarn/m friend/Freund/Freunde/m guest/Gast/Gäste/m king/König/Könige/m
        queen/Königin/Königinnen/f thief/Dieb/Diebe/m""",
    "job": """teacher/Lehrer/Lehrer/m doctor/Arzt/Ärzte/m farmer/Bauer/Bauern/m baker/Bäcker/Bäcker/m
        student/Student/Studenten/m singer/Sänger/Sänger/m painter/Maler/Maler/m judge/Richter/Richter/m
        gardener/Gärtner/Gärtner/m colleague/Kollege/Kollegen/m customer/Kunde/Kunden/m""",
    "animal": """dog/Hund/Hunde/m cat/Katze/Katzen/f cow/Kuh/Kühe/f mouse/Maus/Mäuse/f goat/Ziege/Ziegen/f
        bear/Bär/Bären/m fox/Fuchs/Füchse/m lion/Löwe/Löwen/m pig/Schwein/Schweine/n rabbit/Kaninchen/Kaninchen/n""",
    "mount": "horse/Pferd/Pferde/n donkey/Esel/Esel/m camel/Kamel/Kamele/n",
    "bird": "bird/Vogel/Vögel/m duck/Ente/Enten/f goose/Gans/Gänse/f",
    "food": """apple/Apfel/Äpfel/m pear/Birne/Birnen/f cherry/Kirsche/Kirschen/f tomato/Tomate/Tomaten/f
        carrot/Karotte/Karotten/f potato/Kartoffel/Kartoffeln/f""",
    "dish": "soup/Suppe/Suppen/f cake/Kuchen/Kuchen/m egg/Ei/Eier/n bread/Brot/-/n meat/Fleisch/-/n",
    "drink": "water/Wasser/-/n milk/Milch/-/f tea/Tee/-/m coffee/Kaffee/-/m wine/Wein/-/m juice/Saft/-/m",
    "clothing": """coat/Mantel/Mäntel/m shirt/Hemd/Hemden/n dress/Kleid/Kleider/n hat/Hut/Hüte/m shoe/Schuh/Schuhe/m
        jacket/Jacke/Jacken/f scarf/Schal/Schals/m""",
    "text": """book/Buch/Bücher/n poem/Gedicht/Gedichte/n story/Geschichte/Geschichten/f report/Bericht/Berichte/m
        message/Nachricht/Nachrichten/f newspaper/Zeitung/Zeitungen/f""",
    "tableware": "cup/Tasse/Tassen/f plate/Teller/Teller/m bowl/Schüssel/Schüsseln/f bottle/Flasche/Flaschen/f",
    "thing": """bag/Tasche/Taschen/f box/Kiste/Kisten/f ladder/Leiter/Leitern/f umbrella/Regenschirm/Regenschirme/m
        ring/Ring/Ringe/m knife/Messer/Messer/n clock/Uhr/Uhren/f ball/Ball/Bälle/m gift/Geschenk/Geschenke/n
        saw/Säge/Sägen/f stone/Stein/Steine/m""",
    "furniture": "table/Tisch/Tische/m chair/Stuhl/Stühle/m bed/Bett/Betten/n cupboard/Schrank/Schränke/m",
    "flower": "flower/Blume/Blumen/f rose/Rose/Rosen/f tree/Baum/Bäume/m",
    "surface": "wall/Wand/Wände/f fence/Zaun/Zäune/m door/Tür/Türen/f",
    "image": "picture/Bild/Bilder/n portrait/Porträt/Porträts/n",
    "lamp": "lamp/Lampe/Lampen/f radio/Radio/Radios/n computer/Computer/Computer/m",
    "vehicle": "car/Auto/Autos/n boat/Boot/Boote/n truck/Lastwagen/Lastwagen/m",
    "bike": "bicycle/Fahrrad/Fahrräder/n motorcycle/Motorrad/Motorräder/n",
    "transit": "train/Zug/Züge/m bus/Bus/Busse/m ferry/Fähre/Fähren/f",
    "instrument": "violin/Geige/Geigen/f piano/Klavier/Klaviere/n guitar/Gitarre/Gitarren/f flute/Flöte/Flöten/f",
    "idea": """plan/Plan/Pläne/m idea/Idee/Ideen/f secret/Geheimnis/Geheimnisse/n mistake/Fehler/Fehler/m
        dream/Traum/Träume/m""",
    "task": "question/Frage/Fragen/f problem/Problem/Probleme/n riddle/Rätsel/Rätsel/n exam/Prüfung/Prüfungen/f",
    "event": """concert/Konzert/Konzerte/n wedding/Hochzeit/Hochzeiten/f party/Feier/Feiern/f journey/Reise/Reisen/f
        meeting/Besprechung/Besprechungen/f""",
    "weather": "storm/Sturm/Stürme/m rain/Regen/-/m snow/Schnee/-/m",
    "span": """evening/Abend/Abende/m afternoon/Nachmittag/Nachmittage/m weekend/Wochenende/Wochenenden/n
        summer/Sommer/Sommer/m night/Nacht/Nächte/f""",
    "money": "money/Geld/-/n",
    "price": "price/Preis/Preise/m rent/Miete/Mieten/f",
    "song": "song/Lied/Lieder/n",
    # One English word with two German words; the verb or an adjective decides.
    "ambiguous": """key/Schlüssel/Schlüssel/m key/Taste/Tasten/f letter/Brief/Briefe/m letter/Buchstabe/Buchstaben/m
        match/Spiel/Spiele/n match/Streichholz/Streichhölzer/n date/Dattel/Datteln/f date/Datum/Daten/n
        plant/Pflanze/Pflanzen/f plant/Fabrik/Fabriken/f seal/Siegel/Siegel/n port/Portwein/-/m port/Hafen/Häfen/m
        branch/Ast/Äste/m branch/Filiale/Filialen/f bill/Rechnung/Rechnungen/f bill/Schnabel/Schnäbel/m
        bank/Ufer/Ufer/n bank/Bank/Banken/f file/Datei/Dateien/f file/Feile/Feilen/f crane/Kran/Kräne/m""",
    "creature": "seal/Robbe/Robben/f crane/Kranich/Kraniche/m bat/Fledermaus/Fledermäuse/f",
}
_PLURALS = {
    **{"man": "men", "woman": "women", "child": "children", "mouse": "mice", "goose": "geese", "knife": "knives"},
    **{"thief": "thieves", "scarf": "scarves", "potato": "potatoes", "tomato": "tomatoes"},
}
_WEAK = "Junge Nachbar Bauer Student Kollege Kunde Bär Löwe Buchstabe".split()
_SEX = {"f": "Frau Mädchen Mutter Schwester Großmutter Tante Königin", "m": "Mann Junge Vater Bruder Großvater Onkel"}
_FEMININE = """Lehrer/Lehrerin Arzt/Ärztin Bauer/Bäuerin Bäcker/Bäckerin Student/Studentin Sänger/Sängerin
    Maler/Malerin Richter/Richterin Gärtner/Gärtnerin"""
_FORCED = {"Ufer": ("schlammig", "grün"), "Bank": ("reich", "modern")}

# english/comparative/German/comparative: the nouns it fits. If an English word occurs twice, the noun decides.
_ADJECTIVES = """
old/older/alt/älter: person job animal mount clothing text thing furniture surface image vehicle bike instrument place
young/younger/jung/jünger: person job animal mount bird creature
big/bigger/groß/größer: animal mount bird creature thing furniture vehicle place dish
tall/taller/groß/größer: person job flower
small/smaller/klein/kleiner: animal mount bird food tableware thing furniture vehicle place
short/shorter/klein/kleiner: person
short/shorter/kurz/kürzer: text event song Brief
clever/cleverer/klug/klüger: person job animal idea
bright/brighter/klug/klüger: Kind Junge Mädchen Student
bright/brighter/hell/heller: lamp Küche Kirche Schule Büro
light/lighter/hell/heller: Bibliothek Museum Haus Bäckerei
light/lighter/leicht/leichter: thing bike clothing
heavy/heavier/schwer/schwerer: thing furniture Mantel
hard/harder/schwer/schwerer: task
hard/harder/hart/härter: Stein dish
easy/easier/leicht/leichter: task
friendly/friendlier/freundlich/freundlicher: person job Hund
rich/richer/reich/reicher: person Bauer Arzt Kunde Bank
poor/poorer/arm/ärmer: person job
poor/poorer/schlecht/schlechter: text Plan
famous/more_famous/berühmt/berühmter: job image song Buch Museum
happy/happier/glücklich/glücklicher: person job
sad/sadder/traurig/trauriger: person song story Geschichte
tired/-/müde/-: person job animal mount
hungry/hungrier/hungrig/hungriger: person animal bird creature
lazy/lazier/faul/fauler: person Esel Katze Student
strong/stronger/stark/stärker: person mount Bär weather Kaffee Tee
wild/wilder/wild/wilder: animal bird creature
new/newer/neu/neuer: clothing text thing furniture vehicle bike instrument lamp tableware place job Fabrik Filiale
expensive/more_expensive/teuer/teurer: clothing thing furniture vehicle bike instrument lamp image
cheap/cheaper/billig/billiger: clothing tableware bike lamp
red/-/rot/-: clothing food flower vehicle bike surface
green/-/grün/-: clothing food bike surface Ufer
white/-/weiß/-: clothing bird surface mount tableware
black/-/schwarz/-: clothing Katze Hund Pferd vehicle
beautiful/more_beautiful/schön/schöner: flower image song place span clothing
long/longer/lang/länger: event text Leiter Schal span Brief
warm/warmer/warm/wärmer: clothing dish
hot/hotter/heiß/heißer: drink Suppe
cold/colder/kalt/kälter: drink Suppe
fresh/fresher/frisch/frischer: food dish Pflanze
sweet/sweeter/süß/süßer: food Kuchen Dattel
sharp/sharper/scharf/schärfer: Messer Säge
dangerous/more_dangerous/gefährlich/gefährlicher: Bär Löwe event weather idea
interesting/more_interesting/interessant/interessanter: text idea event
important/more_important/wichtig/wichtiger: idea task text Datum Brief Datei
quiet/quieter/ruhig/ruhiger: place
muddy/-/schlammig/-: Ufer
modern/-/modern/-: Bank Fabrik
"""
_STEMS = {"teuer": "teur", "müde": "müd"}

# noun: English "at", German "at" (dative), German "to" with its case
_PLACES = """house/Haus/Häuser/n:in,in,zu,dat garden/Garten/Gärten/m:in,in,in,acc park/Park/Parks/m:in,in,in,acc
    forest/Wald/Wälder/m:in,in,in,acc village/Dorf/Dörfer/n:in,in,in,acc city/Stadt/Städte/f:in,in,in,acc
    school/Schule/Schulen/f:at,in,in,acc church/Kirche/Kirchen/f:in,in,in,acc market/Markt/Märkte/m:at,auf,auf,acc
    station/Bahnhof/Bahnhöfe/m:at,an,zu,dat cinema/Kino/Kinos/n:at,in,in,acc theatre/Theater/Theater/n:at,in,in,acc
    kitchen/Küche/Küchen/f:in,in,in,acc bakery/Bäckerei/Bäckereien/f:at,in,zu,dat beach/Strand/Strände/m:on,an,an,acc
    lake/See/Seen/m:at,an,an,acc hospital/Krankenhaus/Krankenhäuser/n:in,in,in,acc museum/Museum/Museen/n:at,in,in,acc
    library/Bibliothek/Bibliotheken/f:in,in,in,acc office/Büro/Büros/n:at,in,in,acc
    castle/Schloss/Schlösser/n:in,in,zu,dat farm/Bauernhof/Bauernhöfe/m:on,auf,auf,acc
    island/Insel/Inseln/f:on,auf,auf,acc square/Platz/Plätze/m:on,auf,auf,acc bridge/Brücke/Brücken/f:on,auf,zu,dat
    mountain/Berg/Berge/m:on,auf,auf,acc"""

NAMES = {
    "f": "Anna Clara Emma Julia Laura Nina Marta".split(),
    "m": "Paul Peter Martin Daniel Oskar Stefan Emil".split(),
}
CITIES = [("Berlin", "Berlin"), ("Hamburg", "Hamburg"), ("Vienna", "Wien"), ("Munich", "München"), ("Cologne", "Köln")]

# (English, German) by the tenses they fit
TIMES = {
    "past": [
        *[("yesterday", "gestern"), ("last week", "letzte Woche"), ("last night", "gestern Abend")],
        *[("two days ago", "vor zwei Tagen"), ("on Monday", "am Montag"), ("in the morning", "am Morgen")],
        *[("last summer", "letzten Sommer"), ("an hour ago", "vor einer Stunde")],
    ],
    "present": [
        *[("today", "heute"), ("now", "jetzt"), ("every morning", "jeden Morgen"), ("in winter", "im Winter")],
        *[("at night", "in der Nacht"), ("on Sundays", "sonntags"), ("every week", "jede Woche")],
    ],
    "future": [
        *[("tomorrow", "morgen"), ("next week", "nächste Woche"), ("soon", "bald"), ("on Friday", "am Freitag")],
        *[("in three days", "in drei Tagen"), ("next year", "nächstes Jahr")],
    ],
}
MIDS = [
    ("always", "immer"),
    ("often", "oft"),
    ("never", "nie"),
    ("sometimes", "manchmal"),
    ("probably", "wahrscheinlich"),
]
PERFECT_MIDS = [("already", "schon"), ("never", "noch nie"), ("often", "oft"), ("just", "gerade")]
MANNERS = [
    *[("slowly", "langsam"), ("quickly", "schnell"), ("carefully", "vorsichtig"), ("secretly", "heimlich")],
    *[("gladly", "gerne"), ("together", "zusammen"), ("alone", "allein"), ("without a break", "ohne Pause")],
]
DEGREES = [("very", "sehr"), ("too", "zu"), ("quite", "ziemlich"), ("surprisingly", "überraschend")]
# Positions near things: (English preposition, German preposition with the dative, nouns)
SPOTS = [
    ("on", "auf", "Tisch Stuhl Bett"),
    ("under", "unter", "Tisch Bett Baum Stuhl"),
    ("behind", "hinter", "Haus Schrank Zaun Baum Tür Kirche"),
    ("next to", "neben", "Bett Lampe Schrank Fahrrad Schule"),
    ("in front of", "vor", "Haus Tür Auto Kino Museum"),
]
# Heads and their owners: "the mother of the boy", "the door of the house" (German genitive)
_GENITIVES = {
    "Mutter Vater Schwester Bruder Freund Nachbar Lehrer Hund": "person job",
    "Tür Wand": "Haus Schule Kirche Museum Küche",
    "Preis": "clothing furniture bike instrument",
    "Plan": "job",
}


def _plural(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _noun(entry: str, kind: str) -> Noun:
    en, de, plural, gender = entry.split("/")
    feminine = dict(pair.split("/") for pair in _FEMININE.split())
    return Noun(
        en,
        _plural(en),
        de,
        plural,
        gender,
        kind,
        weak=de in _WEAK,
        sex=next((sex for sex, words in _SEX.items() if de in words.split()), ""),
        feminine=feminine.get(de, ""),
        forced=_FORCED.get(de, ()),
    )


NOUNS: list[Noun] = [_noun(entry, kind) for kind, table in _NOUNS.items() for entry in table.split()]
PLACES: list[Place] = []
for _entry in _PLACES.split():
    _word, _governs = _entry.split(":")
    PLACES.append(Place(_noun(_word, "place"), *_governs.split(",")))
NOUNS += [place.noun for place in PLACES]
BY_GERMAN: dict[str, Noun] = {noun.de: noun for noun in NOUNS}


def select(names: Iterable[str]) -> tuple[Noun, ...]:
    """The nouns of some classes (``animal``) and single nouns (``Hund``), each once, in table order."""
    name_set = set(names)
    return tuple(noun for noun in NOUNS if noun.kind in name_set or noun.de in name_set)


ADJECTIVES: list[Adjective] = []
ADJECTIVES_OF: dict[Noun, list[Adjective]] = {noun: [] for noun in NOUNS}
NOUNS_OF: dict[Adjective, tuple[Noun, ...]] = {}
for _line in _ADJECTIVES.strip().splitlines():
    _forms, _goes_with = _line.split(":")
    _en, _en_more, _de, _de_more = _forms.replace("_", " ").split("/")
    _adjective = Adjective(_en, _en_more, _de, _de_more, _STEMS.get(_de, _de))
    ADJECTIVES.append(_adjective)
    NOUNS_OF[_adjective] = select(_goes_with.split())
    for _fitting_noun in NOUNS_OF[_adjective]:
        ADJECTIVES_OF[_fitting_noun].append(_adjective)
GENITIVES: dict[Noun, tuple[Noun, ...]] = {
    BY_GERMAN[head]: select(owners.split()) for heads, owners in _GENITIVES.items() for head in heads.split()
}
