"""Pictures of vectors. "Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast" (figure 3) and
"Universal Sentence Representation Learning with Conditional Masked Language Model" (figure 3) show sentences by t-SNE;
"Dual-Alignment Pre-training for Cross-lingual Sentence Embedding" (figure 1) shows tokens by principal components."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from xrep.config.fields import Seed
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, Precomputed, finite_vectors
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures, PlotOption
from xrep.evaluation.plots import plot_points
from xrep.evaluation.reading import ParallelOptions, read_texts
from xrep.metrics.components import principal_components
from xrep.text.languages import canonical
from xrep.text.sides import tokenizer_of


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
    class Config(EncoderOptions, PlotOption, ParallelOptions):
        method: Literal["pca", "tsne"] = "pca"
        """Projection: principal components, or t-SNE of scikit-learn."""
        tokens: bool = False
        """Show the tokens of the sentences. Precomputed vectors have no tokens."""
        sentences: int = 15
        """Number of sentences of each language, drawn at random."""
        seed: Seed = 0
        """Seed of this draw and of t-SNE."""

    config: Config

    def read(self) -> list[Examples]:
        config = self.config
        if config.plot is None and config.list_sentences is None:
            raise UserError("nothing to draw to", cure="give `plot` FILE.png")
        if config.method == "tsne" and importlib.util.find_spec("sklearn") is None:
            raise UserError("t-SNE needs scikit-learn", cure="pip install 'xrep[plot]', or give `method` pca")
        return draw_rows(read_texts(config), config.sentences, config.seed)

    def measure(self, model: MeasuredEncoder) -> Figures:
        if self.config.tokens and isinstance(model.encoder, Precomputed):
            cure = "name an encoder, or omit `tokens`"
            raise UserError("precomputed vectors have no tokens", path=model.path, cure=cure)
        self.check(model)
        values, links = self.points(model)
        return Figures(
            text=text(values, "tokens" if self.config.tokens else "sentences"),
            values=values,
            settings=self.settings(),
            files=[file for examples in self.tables for file in examples.files],
            plot=lambda picture: plot_points(values, links, picture),
        )

    def points(self, model: MeasuredEncoder) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """Project the vectors of sentences, or of their tokens in the layer from which sentence vectors are pooled.
        Return what is written as JSON: the share of the variance that both axes of PCA hold, ``explained``; the
        ``points``, whose label is the number of the sentence or the token; and the ``sentences`` by language, numbered
        from 1. Also return links from each sentence with its English (or first) translation; there are none of
        tokens."""
        points, vectors, links, sentences = list[dict[str, Any]](), [], list[tuple[int, int]](), list[dict[str, str]]()
        for examples in self.tables:
            rows, first = range(len(examples)), {}
            for language, column in zip(examples.languages, examples.columns, strict=True):
                first[language] = len(points)
                if self.config.tokens:
                    labels, found = token_vectors(model.encoder, column, language)
                else:
                    labels, found = [str(len(sentences) + row + 1) for row in rows], model.encode(column, language)
                points += [{"language": language, "label": label} for label in labels]
                vectors.append(found)
            hub = first.pop("en" if "en" in first else examples.languages[0])
            links += [(hub + row, start + row) for start in first.values() for row in rows]
            lines = zip(*examples.columns, strict=True)
            sentences += [dict(zip(examples.languages, line, strict=True)) for line in lines]
        projected, explained = project(np.concatenate(vectors), self.config.method, self.config.seed)
        points = [{**point, "x": x, "y": y} for point, (x, y) in zip(points, projected.tolist(), strict=True)]
        values = {"method": self.config.method, "explained": explained, "points": points, "sentences": sentences}
        return values, [] if self.config.tokens else links


def draw_rows(tables: Sequence[Examples], count: int, seed: int = 0) -> list[Examples]:
    """Draw ``count`` random rows of each table of parallel sentences."""
    smallest = min(tables, key=len)
    if not 2 <= count <= len(smallest):
        problem = f"`sentences` {count}, but {len(smallest)} of {' '.join(smallest.languages)} with a translation"
        raise UserError(problem, cure=f"give 2 to {len(smallest)}")
    drawn = []
    for examples in tables:
        rows = random.Random(seed).sample(range(len(examples)), count)
        drawn.append(replace(examples, columns=tuple([column[row] for row in rows] for column in examples.columns)))
    return drawn


def token_vectors(encoder: Any, sentences: Sequence[str], lang: str) -> tuple[list[str], np.ndarray]:
    """Return the subwords of all sentences and their vectors, float32 [subwords, H], without bos and eos."""
    import torch  # slow to import, and --help does not wait for it

    from xrep.data.batch import collate

    tower, most = encoder.model.tower(canonical(lang)), encoder.text.max_length
    tokenizer, vocabulary = tokenizer_of(encoder.tokenizers, tower), encoder.text.vocabulary(tower)
    names, vectors = list[str](), list[np.ndarray]()
    for tokens in tokenizer.encode(list(sentences)):
        ids = tokens[: most - vocabulary.special_count]
        batch = collate([np.asarray(ids, dtype=np.int64)], vocabulary, most).to(encoder.device)
        with torch.inference_mode():
            states = encoder.model.encode(tower, batch)[1][0].float().cpu().numpy()
        vectors.append(states[vocabulary.leading_count :][: len(ids)])
        # The mark of the start of a word, as a token of its own, decodes to an empty text.
        names += ["[unk]" if token == tokenizer.unk_id else tokenizer.decode([token]) or "▁" for token in ids]
    return names, finite_vectors(np.concatenate(vectors), encoder.path)


def project(vectors: np.ndarray, method: str, seed: int = 0) -> tuple[np.ndarray, float | None]:
    """Project vectors [P, D] to points [P, 2]; for PCA, also return the share of the variance that they keep. The signs
    of the PCA axes are chosen so that the point farthest from 0 on each axis has a positive value."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
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
