"""The interface to a trained translator: sentences in, translations out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from xrep.config.fields import check_options
from xrep.data.batch import TextSpec, batches_of, collate
from xrep.errors import UserError
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DEFAULTS, DecodingOptions
from xrep.inference.generation.hypotheses import Hypothesis
from xrep.models.device import to_device
from xrep.models.directory import fingerprint, load_model, open_checkpoint
from xrep.models.kinds import expect
from xrep.models.model import TranslationModel
from xrep.models.translation import Translation
from xrep.number_types import Precision
from xrep.text.languages import canonical, refuse_pair
from xrep.text.sides import Tokenizers, open_tokenizers, tokenizer_of

LOGITS = 1 << 26
"""Largest number of logits in a step (256 MB in float32). It limits the batch size if the vocabulary is large."""

_BREAKS = str.maketrans("\n\r", "  ")
"""What a translation, which is a line, has in place of the line breaks that a model of bytes may write."""


@dataclass(frozen=True)
class Source:
    """Sentences as the model reads them.

    Attributes:
        tokens: Ids of each sentence without special tokens; empty if the sentence has no text.
        cut, unknown: Indices of the sentences that were longer than the model can read, and of those in which half or
            more of the subwords are unknown to it. (SentencePiece splits an unknown word into a known piece for its
            space and an unknown one, so half means all words.)
    """

    tokens: list[np.ndarray]
    cut: list[int]
    unknown: list[int]


class Translator:
    """A trained translator with its tokenizers.

    Examples:
        >>> translator = Translator.load("nmt/best")                             # doctest: +SKIP
        >>> translator.translate(["Guten Tag"])[0][0].text                       # doctest: +SKIP
        'good day'

    Attributes:
        path: Where it was loaded from.
        training_hashes: Files of the hashes of its training sentences, if there are any.
        longest_source: Largest number of subwords of a sentence that is not cut, without special tokens.
    """

    def __init__(
        self,
        model: Translation,
        tokenizers: Tokenizers,
        text: TextSpec,
        *,
        path: str,
        training_hashes: Sequence[Path],
    ) -> None:
        self.model, self.tokenizers, self.text = model.eval(), tokenizers, text
        self.path, self.training_hashes = path, training_hashes
        self.longest_source = text.max_length - model.source_vocabulary.special_count

    @classmethod
    def load(cls, path: str | Path, device: str | None = None, dtype: Precision = "float32") -> Translator:
        """Load a checkpoint directory such as ``nmt/best``; ``device`` and ``dtype`` are as for ``SentenceEncoder``. A
        UserError says if there is no checkpoint, it is damaged, or it belongs to another kind of model."""
        expect(path, TranslationModel)
        checkpoint = open_checkpoint(path)
        model = to_device(load_model(checkpoint), device, dtype)
        model.pack_scores()
        tokenizers, hashes = open_tokenizers(checkpoint.tokenizer), checkpoint.training_hashes
        return cls(model, tokenizers, checkpoint.text, path=str(path), training_hashes=hashes)

    def fingerprint(self) -> str:
        """Return a digest that changes when the translations change."""
        return fingerprint(self.model, self.text)

    def target(self, language: str | None) -> int:
        """Return the index of a target language, which need not be named if the model has only one; a UserError if the
        model does not translate into it."""
        known: list[str] = self.model.target_languages
        if language is None and len(known) > 1:
            cure = f"give `target_lang`, one of {', '.join(known)}"
            raise UserError("the model has several target languages", path=self.path, cure=cure)
        refuse_pair(language or "", "target_lang", known)
        code = known[0] if language is None else canonical(language)
        if code not in known:
            raise UserError(f"the model does not translate into {language!r}", cure=f"known: {', '.join(known)}")
        return known.index(code)

    def read(self, sentences: Sequence[str]) -> Source:
        """Tokenize sentences, and cut those that are too long."""
        unk, most = self.model.source_vocabulary.unk_id, self.longest_source
        encoded = tokenizer_of(self.tokenizers, "source").encode(list(sentences))
        tokens = [np.asarray(ids[:most], dtype=np.int64) for ids in encoded]
        cut = [row for row, ids in enumerate(encoded) if len(ids) > most]
        unknown = [row for row, ids in enumerate(tokens) if 2 * np.count_nonzero(ids == unk) >= len(ids) > 0]
        return Source(tokens, cut, unknown)

    def translate(
        self,
        sentences: Sequence[str] | Source,
        target_language: str | None = None,
        options: DecodingOptions = DEFAULTS,
        max_tokens: int = 4096,
        first: int = 0,
        progress: Callable[[int, int], None] = lambda sentences, tokens: None,
    ) -> list[list[Hypothesis]]:
        """Return ``options.nbest`` translations of each sentence, best first; a sentence without text has an empty one.
        They do not depend on the other sentences (except for rounding).

        Args:
            sentences: text, or the result of ``read`` (which says what was cut).
            target_language: needed if the model has several.
            max_tokens: size of a batch: length of the longest sentence times sentences times hypotheses of each.
            first: number of the first sentence, on which samples depend.
            progress: called after each batch with its number of sentences and of tokens in their best translations.

        Raises:
            UserError: the options are invalid, the beam has more hypotheses than the vocabulary has subwords, the model
                does not write so much, or it does not have the target language.
            TypeError: ``sentences`` is one string.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not one string")
        check_options(options)
        target, words = self.target(target_language), self.model.target_vocabulary.size
        if not options.sampling and options.beam > words:
            problem = f"`beam` {options.beam} is more than the {words:,} subwords of the vocabulary"
            raise UserError(problem, path=self.path, cure="4 to 10 hypotheses are usual")
        if options.min_length > (longest := self.model.max_target_length - 1):
            problem = f"`min_length` {options.min_length} is more than the {longest} subwords that the model writes"
            raise UserError(problem, path=self.path, cure="lower it")
        source = sentences if isinstance(sentences, Source) else self.read(sentences)
        tokenizer, device = tokenizer_of(self.tokenizers, "target"), next(self.model.parameters()).device
        translated = [[Hypothesis([], 0.0, [])] for _ in source.tokens]
        with_text = np.flatnonzero([len(ids) for ids in source.tokens])
        special = self.model.source_vocabulary.special_count
        lengths = [len(source.tokens[row]) + special for row in with_text]
        most = max(1, LOGITS // (options.width * words))
        for indices in batches_of(lengths, max_tokens // options.width, most):
            rows = with_text[indices]
            batch = collate([source.tokens[row] for row in rows], self.text.vocabulary("source"), self.text.max_length)
            languages, numbers = torch.full((len(rows),), target, device=device), torch.from_numpy(rows + first)
            hypotheses = search(self.model, batch.to(device), languages, options, numbers)
            for row, best in zip(rows, hypotheses, strict=True):
                texts = (tokenizer.decode(found.tokens).translate(_BREAKS) for found in best)
                translated[row] = [replace(found, text=text) for found, text in zip(best, texts, strict=True)]
            progress(len(rows), sum(len(best[0].token_scores) for best in hypotheses))
        return translated
