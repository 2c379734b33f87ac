"""Project the vectors of sentences that translate each other, or of their tokens, to two dimensions.

"Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast" (figure 3) and "Universal Sentence
Representation Learning with Conditional Masked Language Model" (figure 3) show sentences by t-SNE; "Dual-Alignment
Pre-training for Cross-lingual Sentence Embedding" (figure 1) shows the tokens of 100 pairs by principal components.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from xrep.data.batching import batches_of, collate
from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures, PlotOption
from xrep.evaluation.multilingual import TextOptions, read_texts
from xrep.evaluation.plots import plot_points
from xrep.evaluation.reading import check_seed
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.metrics.components import principal_components
from xrep.text.languages import canonical
from xrep.text.sides import tokenizer_of

Method = Literal["pca", "tsne"]
BATCH_TOKENS = 4096


class Scatter(Evaluation):
    """Draw a picture of parallel sentences, or of their tokens.

    Lines connect translations. The tokens of a few sentences are written beside their points.

      xrep-eval scatter --path run1/best --data tatoeba/ --langs de,fr --plot sentences.png
      xrep-eval scatter --path run1/best --data tatoeba/ --langs ar --tokens --sentences 100 --plot tokens.png
      xrep-eval scatter --path run1/best --data 'newstest2012.{lang}' --method tsne --sentences 30 --plot sentences.png

    --data is the folder of the Tatoeba test, whose languages are paired with English, or files whose line i translates
    line i of the others, with {lang} in place of the language. Random lines of them are drawn.
    """

    resampled = False

    @dataclass(kw_only=True)
    class Config(EncoderOptions, PlotOption, TextOptions):
        method: Literal["pca", "tsne"] = "pca"
        """Projection: principal components, or t-SNE of scikit-learn."""
        tokens: bool = False
        """Show the tokens of the sentences. Precomputed vectors have no tokens."""
        sentences: int = 15
        """Number of sentences of each language, drawn at random."""
        seed: int = 0
        """Seed of this draw and of t-SNE."""

    config: Config

    def read(self) -> list[Examples]:
        config = self.config
        if config.plot is None and config.list_sentences is None:
            raise UserError("nothing to draw to", cure="give `plot` FILE.png")
        if config.method == "tsne" and importlib.util.find_spec("sklearn") is None:
            raise UserError("t-SNE needs scikit-learn", cure="pip install 'xrep[plot]', or give `method` pca")
        check_seed(config.seed)
        return draw_rows(read_texts(config), config.sentences, config.seed)

    def measure(self, model: Encoder) -> Figures:
        if self.config.tokens and not isinstance(model.encoder, SentenceEncoder):
            cure = "name an encoder, or omit `tokens`"
            raise UserError("precomputed vectors have no tokens", path=model.path, cure=cure)
        self.check(model)
        values, links = scatter(model, self.tables, self.config.method, self.config.seed, tokens=self.config.tokens)
        return Figures(
            text=text(values, "sentences" if links else "tokens"),
            values=values,
            settings=self.settings(),
            files=[file for examples in self.tables for file in examples.files],
            plot=lambda picture: plot_points(values, links, picture),
        )


def draw_rows(tables: Sequence[Examples], count: int, seed: int = 0) -> list[Examples]:
    """Draw ``count`` random rows of each table of parallel sentences."""
    smallest = min(tables, key=len)
    if not 1 <= count <= len(smallest):
        problem = f"`sentences` {count}, but {len(smallest)} of {' '.join(smallest.languages)} with a translation"
        raise UserError(problem, cure=f"give 1 to {len(smallest)}")
    drawn = []
    for examples in tables:
        rows = random.Random(seed).sample(range(len(examples)), count)
        drawn.append(replace(examples, columns=tuple([column[row] for row in rows] for column in examples.columns)))
    return drawn


def scatter(
    encoder: Encoder, tables: Sequence[Examples], method: Method, seed: int = 0, *, tokens: bool = False
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Project the vectors of sentences, or of their tokens in the layer from which sentence vectors are pooled.

    Returns:
        What is written as JSON: the ``method``; the share of the variance that both axes hold, ``explained`` (PCA);
        the ``points``, each with its language, its label (the number of the sentence, or the token), ``x`` and ``y``;
        and the ``sentences`` by language, numbered from 1. Also links from each sentence with its English (or first)
        translation, pairs of points; there are none of tokens.
    """
    vectors, languages, labels, links, sentences = [], [], [], [], []
    for examples in tables:
        rows, first = range(len(examples)), {}
        for language, column in zip(examples.languages, examples.columns, strict=True):
            first[language] = len(languages)
            if tokens and isinstance(encoder.encoder, SentenceEncoder):
                names, found = token_vectors(encoder.encoder, column, language)
            else:
                names, found = [str(len(sentences) + row + 1) for row in rows], encoder.encode(column, language)
            vectors.append(found)
            labels += names
            languages += [language] * len(names)
        hub = first.pop("en" if "en" in first else examples.languages[0])
        links += [(hub + row, start + row) for start in first.values() for row in rows]
        sentences += [dict(zip(examples.languages, row, strict=True)) for row in zip(*examples.columns, strict=True)]
    projected, explained = project(np.concatenate(vectors), method, seed)
    rows = zip(languages, labels, projected.tolist(), strict=True)
    points = [{"language": language, "label": label, "x": x, "y": y} for language, label, (x, y) in rows]
    values = {"method": method, "explained": explained, "points": points, "sentences": sentences}
    return values, [] if tokens else links


def token_vectors(encoder: SentenceEncoder, sentences: Sequence[str], lang: str | None) -> tuple[list[str], np.ndarray]:
    """Return the subwords of all sentences and their vectors, float32 [subwords, H], without bos and eos."""
    tower, most = encoder.model.tower(lang and canonical(lang)), encoder.text.max_length
    tokenizer, vocabulary = tokenizer_of(encoder.tokenizers, tower), encoder.text.vocabulary(tower)
    lengths = most - vocabulary.special_count
    ids = [np.asarray(tokens[:lengths], dtype=np.int64) for tokens in tokenizer.encode(list(sentences))]
    vectors = dict[int, np.ndarray]()
    with torch.inference_mode():
        for rows in batches_of([len(tokens) + vocabulary.special_count for tokens in ids], BATCH_TOKENS):
            batch = collate([ids[row] for row in rows], vocabulary, most).to(encoder.device)
            states = encoder.model.encode(tower, batch)[1].float().cpu().numpy()
            for row, vector in zip(rows, states, strict=True):
                vectors[row] = vector[vocabulary.leading_count :][: len(ids[row])]
    joined = np.concatenate([vectors[row] for row in range(len(ids))])
    if not np.isfinite(joined).all():
        raise UserError("vectors of tokens are not finite", cure="take an earlier checkpoint")
    # The mark of the start of a word, as a token of its own, decodes to an empty text.
    names = {token: tokenizer.decode([token]) or "▁" for token in set(np.concatenate(ids).tolist())}
    names[tokenizer.unk_id] = "[unk]"
    return [names[token] for tokens in ids for token in tokens.tolist()], joined


def project(vectors: np.ndarray, method: Method, seed: int = 0) -> tuple[np.ndarray, float | None]:
    """Project vectors [P, D] to points [P, 2]; for PCA, also return the share of the variance that they keep.

    The signs of the PCA axes are chosen so that the point farthest from 0 on each axis has a positive value.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    if len(vectors) < 3:
        raise UserError(f"{len(vectors)} points make no picture", cure="give a larger `sentences`")
    if np.abs(centred).max() < 1e-6:
        raise UserError("all vectors are equal", cure="take another checkpoint: this one has collapsed")
    if method == "tsne":
        from sklearn.manifold import TSNE

        model = TSNE(perplexity=min(30.0, (len(vectors) - 1) / 3), init="pca", random_state=seed)
        return model.fit_transform(vectors.astype(np.float32)).astype(np.float64), None
    points = centred @ principal_components(centred, 2).T
    farthest = np.abs(points).argmax(axis=0)
    points *= np.where(points[farthest, [0, 1]] < 0, -1, 1)
    return points, float((points**2).sum() / (centred**2).sum())


def text(values: Mapping[str, Any], kind: str) -> str:
    """Return a description of the plot, followed by the numbered sentences if there are at most 40."""
    explained, points = values["explained"], values["points"]
    kept = "" if explained is None else f"; the two axes hold {100 * explained:.1f}% of the variance"
    languages = " ".join(dict.fromkeys(point["language"] for point in points))
    lines = [f"{len(points)} {kind} of {languages} by {values['method']}{kept}"]
    if len(values["sentences"]) <= 40:
        for number, row in enumerate(values["sentences"], start=1):
            lines += [f"{number:3}  {language}  {sentence}" for language, sentence in row.items()]
    return "\n".join(lines)
