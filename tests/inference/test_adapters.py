"""The encoder as a model of mteb and as a transformer of scikit-learn, with the real libraries."""

from __future__ import annotations

import enum
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import environment
from xrep.errors import UserError
from xrep.inference import adapters
from xrep.inference.adapters import MtebEncoder
from xrep.inference.sentence_encoder import SentenceEncoder

PAIRS = sentence_pairs(40)
GERMAN, ENGLISH = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("shared") / "best", normalize=False)


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("separate") / "best", towers="separate")


class TestSentenceVectors:
    """xrep.inference.adapters.SentenceVectors."""

    @pytest.fixture(autouse=True)
    def needs_scikit_learn(self) -> None:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed (xrep[senteval])")

    def test_rows_are_the_encoder_s(self, shared: Path, separate: Path) -> None:
        from xrep.inference.adapters import SentenceVectors

        encoder = SentenceEncoder.load(shared, device="cpu")
        vectors = SentenceVectors(shared, device="cpu").fit_transform(GERMAN)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, encoder.encode(GERMAN), atol=1e-6)
        for sentences in (np.array(GERMAN), np.array(GERMAN, dtype=object), tuple(GERMAN), iter(GERMAN)):
            raw = SentenceVectors(str(shared), normalize=False, batch_tokens=50).transform(sentences)
            np.testing.assert_allclose(raw, encoder.encode(GERMAN, normalize=False), atol=1e-5)
        english = SentenceEncoder.load(separate, device="cpu").encode(ENGLISH, "en")
        np.testing.assert_allclose(SentenceVectors(separate, lang="eng").transform(ENGLISH), english, atol=1e-6)

    def test_what_is_wrong_shows_when_it_is_fitted(self, separate: Path) -> None:
        from xrep.inference.adapters import SentenceVectors

        with pytest.raises(UserError, match="no such checkpoint"):
            SentenceVectors("/nowhere/best").fit(GERMAN)
        for lang, message in ((None, "no language was named"), ("fr", "no tower for the language 'fr'")):
            with pytest.raises(UserError, match=message):
                SentenceVectors(separate, lang).fit(GERMAN)
        for wrong in ("Guten Tag", [["Haus"]], [3], np.ones((2, 2))):
            with pytest.raises(TypeError, match="a list, array or column of strings"):
                SentenceVectors(separate, "de").fit(GERMAN).transform(wrong)

    def test_clone_pickle_and_names(self, shared: Path) -> None:
        from sklearn.base import clone
        from sklearn.utils.validation import check_is_fitted

        from xrep.inference.adapters import SentenceVectors

        transformer = SentenceVectors(shared, "de", normalize=False, batch_tokens=99, device="cpu", dtype="bfloat16")
        parameters = {
            "path": shared, "lang": "de", "normalize": False, "batch_tokens": 99, "device": "cpu", "dtype": "bfloat16",
        }  # fmt: skip
        expected = transformer.fit(GERMAN).transform(GERMAN)
        data = pickle.dumps(transformer)
        assert len(data) < 1000  # only the path, not the encoder
        for copy in (clone(transformer), pickle.loads(data)):
            assert type(copy) is SentenceVectors and copy.get_params() == parameters
            check_is_fitted(copy)
            np.testing.assert_array_equal(copy.transform(GERMAN), expected)
        assert transformer.set_params(normalize=True).normalize is True
        assert list(transformer.get_feature_names_out()[:2]) == ["sentencevectors0", "sentencevectors1"]
        assert len(transformer.get_feature_names_out()) == 16
        assert "lang='de'" in repr(transformer)

    @pytest.mark.slow
    def test_another_process_loads_it_by_its_path(self, shared: Path, tmp_path: Path) -> None:
        import joblib

        from xrep.inference.adapters import SentenceVectors

        transformer = SentenceVectors(shared, device="cpu").fit(GERMAN)
        joblib.dump(transformer, tmp_path / "transformer")
        script = (
            "import sys, numpy, xrep.inference.adapters\n"
            "assert not {'sklearn', 'mteb'} & sys.modules.keys()\n"
            "import joblib\n"
            "numpy.save(sys.argv[1] + '.npy', joblib.load(sys.argv[1]).transform(sys.argv[2:]))"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "transformer"), *GERMAN]
        finished = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        np.testing.assert_array_equal(np.load(tmp_path / "transformer.npy"), transformer.transform(GERMAN))

    def test_in_a_grid_search(self, shared: Path) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline

        from xrep.inference.adapters import SentenceVectors

        labels = ["Haus" in sentence for sentence in GERMAN]
        pipeline = make_pipeline(SentenceVectors(shared, device="cpu"), LogisticRegression())
        grid = {"sentencevectors__normalize": [True, False], "logisticregression__C": [0.1, 100.0]}
        search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(np.array(GERMAN), labels)
        assert len(search.cv_results_["params"]) == 4 and search.best_score_ > 0.8
        assert len(search.predict(["ein rotes Haus", "der Fluss"])) == 2

    def test_a_retrained_run_is_loaded_anew(self, tmp_path: Path) -> None:
        from xrep.inference.adapters import SentenceVectors

        write_encoder(tmp_path / "checkpoint-1")
        write_encoder(tmp_path / "checkpoint-2", seed=8)
        transformer = SentenceVectors(tmp_path / "best", device="cpu")
        found = []
        for name in ("checkpoint-1", "checkpoint-2"):
            (tmp_path / "best").unlink(missing_ok=True)
            (tmp_path / "best").symlink_to(name)
            found.append(transformer.fit_transform(GERMAN))
        assert np.abs(found[0] - found[1]).max() > 0.1


def test_without_the_libraries_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    for module in ("sklearn.base", "mteb.models"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "xrep.inference.sentence_vectors", raising=False)
    with pytest.raises(UserError, match=r"scikit-learn is not installed; pip install 'xrep\[senteval\]'"):
        adapters.SentenceVectors  # noqa: B018
    model = MtebEncoder(shared)
    with pytest.raises(UserError, match="mteb is not installed; pip install 'mteb>=2'"):
        model.mteb_model_meta  # noqa: B018


def test_prompts_are_those_that_mteb_would_choose(shared: Path) -> None:
    class PromptType(str, enum.Enum):
        query, document = "query", "document"

    model = MtebEncoder(shared)
    model.encoder.prompts = {"passage": "Haus ", "STS": "rot ", "query": "der ", "NQ-query": "die ", "NQ": "x "}
    chosen = {
        ("A", "Retrieval", PromptType.query): "der ", ("A", "Retrieval", PromptType.document): "Haus ",
        ("A", "STS", None): "rot ", ("A", "STS", PromptType.query): "rot ", ("A", "BitextMining", None): "",
        ("NQ", "STS", PromptType.query): "die ", ("NQ", "STS", PromptType.document): "x ",
    }  # fmt: skip
    for (name, kind, prompt_type), prompt in chosen.items():
        metadata = SimpleNamespace(name=name, type=kind, hf_subsets_to_langscripts={"default": ["deu-Latn"]})
        given = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default", "prompt_type": prompt_type}
        expected = model.encoder.encode(GERMAN, "de", normalize=False, prompt=prompt)
        np.testing.assert_array_equal(model.encode([{"text": GERMAN}], **given), expected)


class TestMtebEncoder:
    """xrep.inference.adapters.MtebEncoder."""

    @pytest.fixture(autouse=True)
    def needs_mteb(self) -> None:
        pytest.importorskip("mteb.mocks", reason="mteb is not installed; no extra of xrep brings it")

    def test_it_is_what_mteb_wants(self, shared: Path, separate: Path) -> None:
        from mteb.models import EncoderProtocol, ModelMeta

        model = MtebEncoder(shared)
        assert isinstance(model, EncoderProtocol)
        meta = model.mteb_model_meta
        assert isinstance(meta, ModelMeta) and meta.name == "xrep/sentence-encoder"
        assert (meta.embed_dim, meta.max_tokens, meta.is_cross_encoder) == (16, 64, False)
        assert meta.n_parameters == sum(p.numel() for p in model.encoder.model.parameters())
        others = [MtebEncoder(separate), MtebEncoder(shared, "de"), MtebEncoder(shared, normalize=True)]
        assert len({meta.revision, *(other.mteb_model_meta.revision for other in others)}) == 4
        assert MtebEncoder(SentenceEncoder.load(shared)).mteb_model_meta.revision == meta.revision

    def test_similarities(self, shared: Path) -> None:
        model, x = MtebEncoder(shared), np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
        y = np.random.default_rng(1).normal(size=(3, 5)) * 9
        unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y)]
        np.testing.assert_allclose(model.similarity(x, y), unit[0] @ unit[1].T, atol=1e-6)
        np.testing.assert_allclose(model.similarity_pairwise(x, y), (unit[0] * unit[1]).sum(axis=1), atol=1e-6)
        assert model.similarity(x[0], y[0]).shape == (1, 1)

    def test_the_name_of_the_subset_chooses_the_tower(self, separate: Path) -> None:
        model = MtebEncoder(separate)
        german, english = model.encoder.encode(GERMAN, "de"), model.encoder.encode(ENGLISH, "en")
        assert np.abs(english - model.encoder.encode(ENGLISH, "de")).max() > 0.1
        languages = {
            "de": ["deu-Latn"], "eng": ["eng-Latn"], "de-en": ["deu-Latn", "eng-Latn"],
            "en-de": ["eng-Latn", "deu-Latn"], "de-de": ["deu-Latn"], "fr-en": ["fra-Latn", "eng-Latn"],
        }  # fmt: skip
        for subset, texts, expected in (
            ("de", GERMAN, german), ("de-de", GERMAN, german), ("eng", ENGLISH, english),
            ("de-en", GERMAN, german), ("de-en", ENGLISH, english), ("en-de", GERMAN, german),
            ("en-de", ENGLISH, english), ("eng_Latn", ENGLISH, english), ("deu_Latn", GERMAN, german),
        ):  # fmt: skip
            np.testing.assert_allclose(self.encoded(model, texts, languages, subset), expected, atol=1e-6)
        np.testing.assert_allclose(self.encoded(model, ENGLISH, ["eng-Latn"], "default"), english, atol=1e-6)
        with pytest.raises(UserError, match="no tower for the language 'fr'; known: de, en"):
            self.encoded(model, GERMAN, languages, "fr-en")
        forced = MtebEncoder(separate, "eng")
        np.testing.assert_allclose(self.encoded(forced, ENGLISH, languages, "fr-en"), english, atol=1e-6)

    def test_what_cannot_be_told_apart_is_refused_or_told_by_the_user(self, tmp_path: Path) -> None:
        three = write_encoder(tmp_path / "three", towers="separate", languages=(["de", "en"], ["ko"]))
        model, pair = MtebEncoder(three), {"de-ko": ["deu-Latn", "kor-Hang"], "en-ko": ["eng-Latn", "kor-Hang"]}
        function = "give MtebEncoder\\(lang=...\\) a function"
        with pytest.raises(UserError, match=f"de-ko mixes de, ko, and mteb does not say which are which; {function}"):
            self.encoded(model, GERMAN, pair, "de-ko")
        few = ["Tom Sawyer", "Maria"]
        with pytest.raises(
            UserError, match=f"cannot tell whether \\['Tom Sawyer'\\] and so on are English; {function}"
        ):
            self.encoded(model, few, pair, "en-ko")
        asked = []

        def lang(texts: list[str], languages: list[str]) -> str:
            asked.append((texts, languages))
            return languages[1]

        vectors = self.encoded(MtebEncoder(three, lang), few, pair, "en-ko")
        np.testing.assert_allclose(vectors, model.encoder.encode(few, "ko"), atol=1e-6)
        assert asked == [(few, ["en", "ko"])]
        with pytest.raises(UserError, match="has image and no text; leave it out"):
            model.encode([{"image": [0]}], task_metadata=self.metadata(pair), hf_split="test", hf_subset="de-ko")

    def test_any_language_does_for_a_shared_tower(self, shared: Path) -> None:
        expected = SentenceEncoder.load(shared, device="cpu").encode(GERMAN, normalize=False)
        for languages, subset in (({"fr-ja": ["fra-Latn", "jpn-Jpan"]}, "fr-ja"), (["xho-Latn"], "default"), ([], "x")):
            np.testing.assert_allclose(
                self.encoded(MtebEncoder(shared), GERMAN, languages, subset), expected, atol=1e-5
            )

    def test_bitext_mining_finds_what_the_vectors_say(self, separate: Path, tmp_path: Path) -> None:
        import mteb
        from datasets import Dataset
        from mteb.mocks import MockBitextMiningTask

        class Task(MockBitextMiningTask):
            metadata = self.metadata({"de-en": ["deu-Latn", "eng-Latn"], "en-de": ["eng-Latn", "deu-Latn"]})

            def load_data(self, **options: object) -> None:
                sides = {"de-en": (GERMAN, ENGLISH), "en-de": (ENGLISH, GERMAN)}
                self.dataset = {
                    name: {"test": Dataset.from_dict({"sentence1": first, "sentence2": second})}
                    for name, (first, second) in sides.items()
                }
                self.data_loaded = True

        model = MtebEncoder(separate)
        results = mteb.evaluate(
            model, Task(), cache=None, show_progress_bar=False, co2_tracker=False, prediction_folder=tmp_path
        )
        x, y = model.encoder.encode(GERMAN, "de"), model.encoder.encode(ENGLISH, "en")
        predicted = json.loads((tmp_path / "MockBitextMiningTask_predictions.json").read_text())
        for name, similarity in (("de-en", x @ y.T), ("en-de", y @ x.T)):
            assert [row["corpus_id"] for row in predicted[name]["test"]["sentence1-sentence2"]] == similarity.argmax(
                axis=1
            ).tolist()
            accuracy = np.mean(similarity.argmax(axis=1) == np.arange(len(x)))
            scores = {scores["hf_subset"]: scores for scores in results.task_results[0].scores["test"]}
            assert scores[name]["accuracy"] == pytest.approx(accuracy)

    @pytest.mark.parametrize(
        "name",
        ["MultilingualSTS", "Classification", "MultilingualClusteringFast", "Retrieval", "Reranking", "Summarization",
         "PairClassification", "MultilingualParallelBitextMining"],
    )  # fmt: skip
    def test_every_kind_of_task_runs(self, shared: Path, name: str) -> None:
        import mteb
        import mteb.mocks

        task = getattr(mteb.mocks, f"Mock{name}Task")()
        results = mteb.evaluate(MtebEncoder(shared), task, cache=None, show_progress_bar=False, co2_tracker=False)
        scores = [scores["main_score"] for split in results.task_results[0].scores.values() for scores in split]
        assert scores and np.isfinite(scores).all()

    def metadata(self, languages: dict[str, list[str]] | list[str]):
        from mteb.mocks import MockBitextMiningTask

        return MockBitextMiningTask.metadata.model_copy(update={"eval_langs": languages})

    def encoded(self, model: MtebEncoder, texts: list[str], languages: object, subset: str) -> np.ndarray:
        """Return the vectors that mteb gets for texts in batches."""
        from datasets import Dataset
        from torch.utils.data import DataLoader

        inputs = DataLoader(Dataset.from_dict({"text": texts}), batch_size=7)
        given = {"task_metadata": self.metadata(languages), "hf_split": "test", "hf_subset": subset}
        return model.encode(inputs, **given, prompt_type=None, batch_size=7, show_progress_bar=False)
