"""The encoder as a model of mteb and as a transformer of scikit-learn, with the real libraries."""

import enum
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.inference import adapters
from xrep.inference.adapters import MtebEncoder
from xrep.inference.sentence_encoder import SentenceEncoder

GERMAN, ENGLISH = ([pair[side] for pair in sentence_pairs(40)] for side in (0, 1))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with one tower, whose vectors have other lengths than 1."""
    return write_encoder(tmp_path_factory.mktemp("raw") / "best", normalize=False)


@pytest.fixture
def sentence_vectors() -> Any:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (xrep[senteval])")
    return adapters.SentenceVectors


class TestSentenceVectors:
    """xrep.inference.adapters.SentenceVectors."""

    @pytest.mark.slow
    def test_rows_are_the_encoder_s(self, sentence_vectors: Any, raw: Path, two_towers: SentenceEncoder) -> None:
        encoder = SentenceEncoder.load(raw, device="cpu")
        vectors = sentence_vectors(raw, device="cpu").fit_transform(GERMAN)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, encoder.encode(GERMAN), atol=1e-6)
        for sentences in (np.array(GERMAN), np.array(GERMAN, dtype=object), tuple(GERMAN), iter(GERMAN)):
            found = sentence_vectors(str(raw), normalize=False, batch_tokens=50).transform(sentences)
            np.testing.assert_allclose(found, encoder.encode(GERMAN, normalize=False), atol=1e-5)
        english = sentence_vectors(two_towers.path, lang="eng").transform(ENGLISH)
        np.testing.assert_allclose(english, two_towers.encode(ENGLISH, "en"), atol=1e-6)

    def test_what_is_wrong_shows_when_it_is_fitted(self, sentence_vectors: Any, separate_encoder: Path) -> None:
        for path, lang, message in (
            ("/nowhere/best", None, "no such checkpoint"),
            (separate_encoder, None, "no language was named"),
            (separate_encoder, "fr", "no tower for the language 'fr'"),
        ):
            with pytest.raises(UserError, match=message):
                sentence_vectors(path, lang).fit(GERMAN)

    def test_clone_pickle_and_names(self, sentence_vectors: Any, raw: Path) -> None:
        from sklearn.base import clone
        from sklearn.utils.validation import check_is_fitted

        given = {"path": raw, "lang": "de", "normalize": False, "batch_tokens": 99, "device": "cpu"}
        transformer = sentence_vectors(**given, dtype="bfloat16")
        expected = transformer.fit(GERMAN).transform(GERMAN)
        data = pickle.dumps(transformer)
        assert len(data) < 1000  # only the path, not the encoder
        for copy in (clone(transformer), pickle.loads(data)):
            assert type(copy) is sentence_vectors and copy.get_params() == {**given, "dtype": "bfloat16"}
            check_is_fitted(copy)
            np.testing.assert_array_equal(copy.transform(GERMAN), expected)
        assert transformer.set_params(normalize=True).normalize is True
        names = list(transformer.get_feature_names_out())
        assert names == [f"sentencevectors{number}" for number in range(16)] and "lang='de'" in repr(transformer)

    def test_a_retrained_run_is_loaded_anew(self, sentence_vectors: Any, tmp_path: Path) -> None:
        found, best = [], tmp_path / "best"
        for seed in (1, 2):
            write_encoder(tmp_path / f"checkpoint-{seed}", seed=seed)
            best.unlink(missing_ok=True)
            best.symlink_to(f"checkpoint-{seed}")
            found.append(sentence_vectors(best, device="cpu").fit_transform(GERMAN))
        assert np.abs(found[0] - found[1]).max() > 0.1


def test_without_the_library_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "xrep.inference.sentence_vectors", raising=False)
    with pytest.raises(UserError, match=r"scikit-learn is not installed; pip install 'xrep\[senteval\]'"):
        adapters.SentenceVectors  # noqa: B018


class PromptType(str, enum.Enum):
    query, document = "query", "document"


def encoded(
    model: MtebEncoder, texts: list[str], languages: Any, subset: str, name: str = "A", kind: str = "BitextMining",
    prompt_type: PromptType | None = None,
) -> np.ndarray:  # fmt: skip
    """Return what mteb gets for texts in batches; ``languages`` are those of each subset, as mteb spells them."""
    metadata = SimpleNamespace(name=name, type=kind, hf_subsets_to_langscripts=languages)
    batches = [{"text": texts[start : start + 7]} for start in range(0, len(texts), 7)]
    return model.encode(batches, task_metadata=metadata, hf_split="test", hf_subset=subset, prompt_type=prompt_type)


def test_prompts_are_those_that_mteb_would_choose(raw: Path) -> None:
    model = MtebEncoder(raw)
    model.encoder.prompts = {"passage": "Haus ", "STS": "rot ", "query": "der ", "NQ-query": "die ", "NQ": "x "}
    for name, kind, prompt_type, prompt in (
        ("A", "Retrieval", PromptType.query, "der "), ("A", "Retrieval", PromptType.document, "Haus "),
        ("A", "STS", None, "rot "), ("A", "STS", PromptType.query, "rot "), ("A", "BitextMining", None, ""),
        ("NQ", "STS", PromptType.query, "die "), ("NQ", "STS", PromptType.document, "x "),
    ):  # fmt: skip
        expected = model.encoder.encode(GERMAN, "de", normalize=False, prompt=prompt)
        found = encoded(model, GERMAN, {"default": ["deu-Latn"]}, "default", name, kind, prompt_type)
        np.testing.assert_array_equal(found, expected)


def test_the_name_of_the_subset_chooses_the_tower(two_towers: SentenceEncoder) -> None:
    model, german, english = MtebEncoder(two_towers), two_towers.encode(GERMAN, "de"), two_towers.encode(ENGLISH, "en")
    languages = {
        "de": ["deu-Latn"], "eng": ["eng-Latn"], "de-de": ["deu-Latn"], "fr-en": ["fra-Latn", "eng-Latn"],
    }  # fmt: skip
    for names, texts, expected in (("de de-de deu_Latn", GERMAN, german), ("eng eng_Latn", ENGLISH, english)):
        for subset in names.split():
            np.testing.assert_allclose(encoded(model, texts, languages, subset), expected, atol=1e-6)
    with pytest.raises(UserError, match="no tower for the language 'fr'; known: de, en"):
        encoded(model, GERMAN, languages, "fr-en")
    forced = MtebEncoder(two_towers, "eng")
    np.testing.assert_allclose(encoded(forced, ENGLISH, languages, "fr-en"), english, atol=1e-6)


def test_what_cannot_be_told_apart_is_refused_or_told_by_the_user(tmp_path: Path) -> None:
    three = write_encoder(tmp_path / "three", towers="separate", languages=(["de", "en"], ["ko"]))
    model, pair = MtebEncoder(three), {"en-ko": ["eng-Latn", "kor-Hang"]}
    function = r"; give MtebEncoder\(lang=...\) a function"
    with pytest.raises(UserError, match=f"en-ko mixes en, ko, and mteb does not say which are which{function}"):
        encoded(model, ENGLISH, pair, "en-ko")
    asked = []
    lang = lambda texts, languages: asked.append((texts, languages)) or languages[1]  # noqa: E731
    vectors = encoded(MtebEncoder(three, lang), ENGLISH, pair, "en-ko")
    np.testing.assert_allclose(vectors, model.encoder.encode(ENGLISH, "ko"), atol=1e-6)
    assert asked == [(ENGLISH, ["en", "ko"])]


def test_similarities(raw: Path) -> None:
    model, x = MtebEncoder(raw), np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(3, 5)) * 9
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y)]
    np.testing.assert_allclose(model.similarity(x, y), unit[0] @ unit[1].T, atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(x, y), (unit[0] * unit[1]).sum(axis=1), atol=1e-6)
    assert model.similarity(x[0], y[0]).shape == (1, 1)


class TestMteb:
    """With the library itself."""

    @pytest.fixture(autouse=True)
    def needs_mteb(self) -> None:
        pytest.importorskip("mteb.mocks", reason="mteb is not installed; no extra of xrep brings it")

    def test_it_is_what_mteb_wants(self, raw: Path, separate_encoder: Path) -> None:
        from mteb.models import EncoderProtocol, ModelMeta

        model = MtebEncoder(raw)
        meta = model.mteb_model_meta
        assert isinstance(model, EncoderProtocol) and isinstance(meta, ModelMeta)
        assert (meta.name, meta.embed_dim, meta.max_tokens) == ("xrep/sentence-encoder", 16, 64)
        assert meta.n_parameters == sum(p.numel() for p in model.encoder.model.parameters())
        others = [MtebEncoder(separate_encoder), MtebEncoder(raw, "de"), MtebEncoder(raw, normalize=True)]
        assert len({meta.revision, *(other.mteb_model_meta.revision for other in others)}) == 4
        assert MtebEncoder(SentenceEncoder.load(raw)).mteb_model_meta.revision == meta.revision

    @pytest.mark.parametrize("name", ["MultilingualSTS", "Retrieval", "BitextMining"])
    def test_every_kind_of_task_runs(self, raw: Path, name: str) -> None:
        import mteb
        import mteb.mocks

        task = getattr(mteb.mocks, f"Mock{name}Task")()
        results = mteb.evaluate(MtebEncoder(raw), task, cache=None, show_progress_bar=False, co2_tracker=False)
        scores = [scores["main_score"] for split in results.task_results[0].scores.values() for scores in split]
        assert scores and np.isfinite(scores).all()
