"""Natural language inference: pairs with a class, or triplets of an anchor, its positive and its hard negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.data.batch import Batch, TokenBatch, pad
from xrep.data.nli_table import NliOptions, prepare_nli
from xrep.data.table import Table
from xrep.tasks.task import ExampleKind, TableTask, VocabularyOptions, given_tokenizers, ids_of, text_spec
from xrep.text.languages import canonical
from xrep.text.nli import LABELS
from xrep.text.sides import SIDES, tokenizer_of


@dataclass(kw_only=True)
class SentencesOptions(VocabularyOptions):
    """Options of tasks whose examples are several sentences with a label."""

    data: str
    language: str = "en"
    """Language of files that do not name it (dev-de.tsv does, and CNSD is Chinese)."""
    target_languages: list[str] = field(default_factory=lambda: ["en"])
    """Languages of the target side, if the sides have separate towers or tokenizers; all other languages belong to
    the source side."""
    batch_size: Count = 128
    """Number of examples in a batch."""
    max_length: Annotated[int, "[3, inf)"] = 128
    """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""

    def of_table(self) -> dict[str, Any]:
        """Return the values of ``NliOptions`` in which these tasks differ."""
        raise NotImplementedError


class NliTask(TableTask):
    """Natural language inference data of one or several languages, as it is published (``xrep.text.nli``).

    It is tokenised once and kept on disk. The tokenizer is that of the pretrained encoder, or ``tokenizer``, or one
    that is trained on the text.

    Raises:
        UserError: the data is missing or damaged, or two different tokenizers are named.
    """

    default_validation = "nli"

    @dataclass(kw_only=True)
    class Config(SentencesOptions):
        data: str
        """File or directory of inference data: SNLI, MNLI, XNLI or CNSD as downloaded; s1.train with s2.train and
        labels.train; SimCSE's nli_for_simcse.csv; or a directory of such directories."""
        form: Literal["pairs", "triplets"] = "pairs"
        """Form of the examples. pairs: premise, hypothesis and label (criterion nli). triplets: premise, a sentence it
        entails and a sentence that contradicts it (criterion nli_triplet)."""
        cross_lingual: bool = False
        """Give each premise a hypothesis in another language. This needs files that are translations of each other line
        by line, such as train-de.tsv and train-fr.tsv."""

        def of_table(self) -> dict[str, Any]:
            return {"form": self.form, "cross_lingual": self.cross_lingual}

    def __init__(self, config: SentencesOptions, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self._options = NliOptions(
            language=config.language,
            target_languages=[canonical(language) for language in config.target_languages],
            vocabulary_size=config.vocab_size,
            exclude=config.exclude,
            **config.of_table(),
        )
        kinds = {"triplets": ExampleKind.TRIPLETS, "scored": ExampleKind.SCORED_PAIRS}
        self.gives = kinds.get(self._options.form, ExampleKind.LABELLED_PAIRS)
        data = prepare_nli(config.data, self._options, given_tokenizers(config.tokenizer, tokenizers or {}))
        self._languages: list[str] = data.manifest["languages"]
        sides = [self._options.side(language) for language in self._languages]
        self._is_target = np.array([side == "target" for side in sides])
        of_sides = {
            f"{side}_languages": sorted(code for code, own in zip(self._languages, sides, strict=True) if own == side)
            for side in SIDES
        }
        super().__init__(config, seed, data, data.splits, text_spec(data.tokenizers, config.max_length, **of_sides))

    def as_text(self, table: Table, number: int) -> str:
        sides = ["target" if target else "source" for target in self._is_target[table["languages"].values[number]]]
        columns = zip(sides, self._options.columns, strict=True)
        texts = [repr(tokenizer_of(self.tokenizers, side).decode(table[name][number])) for side, name in columns]
        label, form = table["labels"].values[number], self._options.form
        labels = [] if form == "triplets" else [f"{label:.3g}" if form == "scored" else LABELS[label]]
        return f"example {number}: {' ||| '.join([*texts, *labels])}"

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        (table,), rows = tables, examples[:, 1]
        languages = table["languages"].values[rows]
        is_target = self._is_target[languages]
        known = np.array([self.text.languages.index(language) for language in self._languages])
        places = np.empty(is_target.shape, dtype=np.int64)
        sides, first = dict[str, TokenBatch](), 0
        for side, chosen in zip(SIDES, (~is_target, is_target), strict=True):
            most = self.text.max_length - self.text.vocabulary(side).special_count
            columns = enumerate(self._options.columns)
            gathered = [table[name].gather(rows[chosen[:, column]], most) for column, name in columns]
            ids, lengths = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
            # Number the sentences column by column, in the order in which they were gathered.
            places.T[chosen.T] = np.arange(first, first + len(lengths))
            sides[side] = pad(ids, lengths, self.text.vocabulary(side))
            first += len(lengths)
        return Batch.of(
            sides,
            places,
            labels=table["labels"].values[rows],
            ids=ids_of(tables, examples[:, 0], rows),
            indices=rows,
            languages=known[languages],
        )
