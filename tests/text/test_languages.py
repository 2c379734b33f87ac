import pytest

from xrep.text.languages import canonical, name

LASER_CODES = """afr amh ang ara arq arz ast awa aze bel ben ber bos bre bul cat cbk ceb ces cha cmn cor csb cym dan deu
dsb dtp ell epo est eus fao fin fra fry gla gle glg gsw heb hin hrv hsb hun hye ido ile ina ind isl ita jav jpn kab kat
kaz khm kor kur kzj lat lfn lit lvs mal mar max mhr mkd mon nds nld nno nob nov oci orv pam pes pms pol por ron rus slk
slv spa sqi srp swe swg swh tam tat tel tgl tha tuk tur tzl uig ukr urd uzb vie war wuu xho yid yue zsm""".split()


def test_every_language_of_the_tatoeba_test_has_its_own_code_and_a_name() -> None:
    assert len(LASER_CODES) == 112
    assert len({canonical(code) for code in LASER_CODES}) == 112
    for code in LASER_CODES:
        assert name(code) not in (code, canonical(code))


@pytest.mark.parametrize(("spelling", "code"), [
    ("deu", "de"), ("ger", "de"), ("eng", "en"), ("EN", "en"), ("swh", "sw"), ("swa", "sw"), ("pes", "fa"),
    ("fas", "fa"), ("cmn", "zh"), ("zho", "zh"), ("zh-Hans", "zh"), ("zh_TW", "zh"), ("pt-BR", "pt"),
    ("es-419", "es"), ("deu_Latn", "de"), ("arb_Arab", "ar"), ("nob", "nb"), ("nno", "nn"), ("zsm", "ms"),
    ("ell", "el"), ("iw", "he"), ("lvs", "lv"), ("wuu", "wuu"), ("arz", "arz"),
    ("qqq", "qqq"), ("Klingon-old", "klingon-old"),
])  # fmt: skip
def test_spellings_of_one_language_have_one_code(spelling: str, code: str) -> None:
    assert canonical(spelling) == code
    assert canonical(code) == code


def test_unknown_codes_name_themselves() -> None:
    assert (name("qqq"), name("zh-Hans"), name("nb")) == ("qqq", "Chinese", "Norwegian Bokmål")
