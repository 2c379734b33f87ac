"""Language codes: conversion of the spellings that data sets use to one spelling per language.

Inside xrep, a language is its ISO 639-1 code if one exists (``de``) and its ISO 639-3 code otherwise (``ang``), in
lower case, without script and region. Data sets write ``deu``, ``ger``, ``zh-Hans``, ``pt_BR`` or ``deu_Latn``.

The codes are those of the ISO 639 tables; the second column has those in the file names of LASER's Tatoeba test set.
"""

from __future__ import annotations

import re

# The columns are the canonical code, the code in LASER's Tatoeba file names (or else the ISO 639-3 code), other codes
# of the same language, and the English name. The other codes are ISO 639-2/B codes (ger), those of the macrolanguage or
# of its main member (zho, cmn), and withdrawn codes (iw).
_TABLE = """
aa aar - Afar
ab abk - Abkhazian
ae ave - Avestan
af afr - Afrikaans
ak aka - Akan
am amh - Amharic
an arg - Aragonese
ar ara arb Arabic
as asm - Assamese
av ava - Avaric
ay aym ayr Aymara
az aze azj Azerbaijani
ba bak - Bashkir
be bel - Belarusian
bg bul - Bulgarian
bi bis - Bislama
bm bam - Bambara
bn ben - Bengali
bo bod tib Tibetan
br bre - Breton
bs bos - Bosnian
ca cat - Catalan
ce che - Chechen
ch cha - Chamorro
co cos - Corsican
cr cre - Cree
cs ces cze Czech
cu chu - Church Slavic
cv chv - Chuvash
cy cym wel Welsh
da dan - Danish
de deu ger German
dv div - Divehi
dz dzo - Dzongkha
ee ewe - Ewe
el ell gre Greek
en eng - English
eo epo - Esperanto
es spa - Spanish
et est ekk Estonian
eu eus baq Basque
fa pes fas,per Persian
ff ful fuv Fulah
fi fin - Finnish
fj fij - Fijian
fo fao - Faroese
fr fra fre French
fy fry - Western Frisian
ga gle - Irish
gd gla - Scottish Gaelic
gl glg - Galician
gn grn - Guarani
gu guj - Gujarati
gv glv - Manx
ha hau - Hausa
he heb iw Hebrew
hi hin - Hindi
ho hmo - Hiri Motu
hr hrv - Croatian
ht hat - Haitian Creole
hu hun - Hungarian
hy hye arm Armenian
hz her - Herero
ia ina - Interlingua
id ind in Indonesian
ie ile - Interlingue
ig ibo - Igbo
ii iii - Sichuan Yi
ik ipk - Inupiaq
io ido - Ido
is isl ice Icelandic
it ita - Italian
iu iku - Inuktitut
ja jpn - Japanese
jv jav jw Javanese
ka kat geo Georgian
kg kon - Kongo
ki kik - Kikuyu
kj kua - Kuanyama
kk kaz - Kazakh
kl kal - Greenlandic
km khm - Khmer
kn kan - Kannada
ko kor - Korean
kr kau knc Kanuri
ks kas - Kashmiri
ku kur kmr Kurdish
kv kom - Komi
kw cor - Cornish
ky kir - Kyrgyz
la lat - Latin
lb ltz - Luxembourgish
lg lug - Ganda
li lim - Limburgish
ln lin - Lingala
lo lao - Lao
lt lit - Lithuanian
lu lub - Luba-Katanga
lv lvs lav Latvian
mg mlg plt Malagasy
mh mah - Marshallese
mi mri mao Maori
mk mkd mac Macedonian
ml mal - Malayalam
mn mon khk Mongolian
mr mar - Marathi
ms zsm msa,may Malay
mt mlt - Maltese
my mya bur Burmese
na nau - Nauru
nb nob - Norwegian Bokmål
nd nde - North Ndebele
ne nep npi Nepali
ng ndo - Ndonga
nl nld dut Dutch
nn nno - Norwegian Nynorsk
no nor - Norwegian
nr nbl - South Ndebele
nv nav - Navajo
ny nya - Chichewa
oc oci - Occitan
oj oji - Ojibwe
om orm gaz Oromo
or ori ory Odia
os oss - Ossetian
pa pan - Punjabi
pi pli - Pali
pl pol - Polish
ps pus pbt Pashto
pt por - Portuguese
qu que quy Quechua
rm roh - Romansh
rn run - Rundi
ro ron rum,mo,mol Romanian
ru rus - Russian
rw kin - Kinyarwanda
sa san - Sanskrit
sc srd - Sardinian
sd snd - Sindhi
se sme - Northern Sami
sg sag - Sango
sh hbs - Serbo-Croatian
si sin - Sinhala
sk slk slo Slovak
sl slv - Slovenian
sm smo - Samoan
sn sna - Shona
so som - Somali
sq sqi alb,als Albanian
sr srp - Serbian
ss ssw - Swati
st sot - Southern Sotho
su sun - Sundanese
sv swe - Swedish
sw swh swa Swahili
ta tam - Tamil
te tel - Telugu
tg tgk - Tajik
th tha - Thai
ti tir - Tigrinya
tk tuk - Turkmen
tl tgl fil Tagalog
tn tsn - Tswana
to ton - Tongan
tr tur - Turkish
ts tso - Tsonga
tt tat - Tatar
tw twi - Twi
ty tah - Tahitian
ug uig - Uyghur
uk ukr - Ukrainian
ur urd - Urdu
uz uzb uzn Uzbek
ve ven - Venda
vi vie - Vietnamese
vo vol - Volapük
wa wln - Walloon
wo wol - Wolof
xh xho - Xhosa
yi yid ydd,ji Yiddish
yo yor - Yoruba
za zha - Zhuang
zh cmn zho,chi Chinese
zu zul - Zulu
ang ang - Old English
arq arq - Algerian Arabic
ary ary - Moroccan Arabic
arz arz - Egyptian Arabic
ast ast - Asturian
awa awa - Awadhi
azb azb - South Azerbaijani
bar bar - Bavarian
ber ber - Berber
bho bho - Bhojpuri
bjn bjn - Banjar
bug bug - Buginese
cbk cbk - Chavacano
ceb ceb - Cebuano
ckb ckb - Central Kurdish
crh crh - Crimean Tatar
csb csb - Kashubian
dsb dsb - Lower Sorbian
dtp dtp - Central Dusun
frr frr - North Frisian
fur fur - Friulian
gsw gsw - Swiss German
hsb hsb - Upper Sorbian
ilo ilo - Ilocano
kab kab - Kabyle
kzj kzj - Coastal Kadazan
lfn lfn - Lingua Franca Nova
lij lij - Ligurian
lmo lmo - Lombard
mai mai - Maithili
max max - North Moluccan Malay
mhr mhr chm Meadow Mari
min min - Minangkabau
nds nds - Low German
nov nov - Novial
nso nso - Northern Sotho
orv orv - Old East Slavic
pam pam - Kapampangan
pap pap - Papiamento
pms pms - Piedmontese
sah sah - Yakut
sat sat - Santali
scn scn - Sicilian
swg swg - Swabian
szl szl - Silesian
tlh tlh - Klingon
tzl tzl - Talossan
udm udm - Udmurt
vec vec - Venetian
war war - Waray
wuu wuu - Wu Chinese
yue yue - Cantonese
"""

_CODE = re.compile(r"([a-z]{2,3})([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?")  # language, script, region (BCP 47)


def _build() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    canonical_of, tatoeba_of, name_of = {}, {}, {}
    for row in _TABLE.strip().splitlines():
        code, tatoeba, others, english_name = row.split(" ", 3)
        tatoeba_of[code], name_of[code] = tatoeba, english_name
        for spelling in (code, tatoeba, *([] if others == "-" else others.split(","))):
            canonical_of[spelling] = code
    return canonical_of, tatoeba_of, name_of


_CANONICAL, _TATOEBA, _NAME = _build()


def canonical(code: str) -> str:
    """Return the code that xrep uses for a language: ISO 639-1 if one exists, lower case, without script and region.

    The argument is one language, never a pair (``de-en`` would be German as used in a region EN). An unknown or
    invented language code is kept, in lower case.

    >>> [canonical(code) for code in ("deu", "EN", "swh", "pes", "cmn", "zh-Hans", "pt_BR", "deu_Latn", "arz", "qqq")]
    ['de', 'en', 'sw', 'fa', 'zh', 'zh', 'pt', 'de', 'arz', 'qqq']
    """
    code = code.strip().lower()
    match = _CODE.fullmatch(code)
    return _CANONICAL.get(match.group(1), match.group(1)) if match else code


def tatoeba_code(code: str) -> str:
    """Return the three-letter code in the file names of LASER's Tatoeba test, for any spelling ``canonical`` accepts.

    >>> [tatoeba_code(code) for code in ("de", "zh", "fa", "sw", "ara", "qqq")]
    ['deu', 'cmn', 'pes', 'swh', 'ara', 'qqq']
    """
    return _TATOEBA.get(canonical(code), canonical(code))


def name(code: str) -> str:
    """Return the English name of a language for tables and plots, or its canonical code if the name is not known.

    >>> name("zh-Hans"), name("qqq")
    ('Chinese', 'qqq')
    """
    return _NAME.get(canonical(code), canonical(code))
