"""One table of objectives: what each is given, and its equation. ``test_objectives`` proves the same of all of them."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from torch import nn

from tests.criteria import equations_vectors as of_vectors
from tests.criteria import equations_words as of_words
from tests.criteria.by_hand import Expected
from tests.criteria.equations_vectors import DE, EN, ES
from tests.support.corpus import sentence_pairs, spanish_pairs, write_lines
from tests.support.once import made_once
from tests.support.planning import single, with_negatives
from xrep.criteria.criterion import Criterion, Planned
from xrep.data.batch import Batch, TextSpec
from xrep.data.table import Table
from xrep.models.dual_encoder import DualEncoder
from xrep.models.translation import Translation
from xrep.registry import CRITERIA
from xrep.tasks.bitext import BitextTask

SMALL = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 96, "dropout": 0.0,
         "attention_dropout": 0.0}  # fmt: skip
EVERYTHING = 10_000
"""More samples than words: all words are sampled."""


@dataclass(frozen=True)
class Objective:
    """A criterion with some options.

    Attributes:
        kind: Its name in the registry.
        equation: Computes, from model, criterion and plan in float64, what the criterion gives for a batch.
        options: Options of the criterion.
        model: Options of the model.
        batch: "pairs", "negatives" (pairs with mined ones), "languages" (pairs of three languages), "sentences",
            "labelled", "triplets" or "scored".
    """

    kind: str
    equation: Callable[[Any, Any, Planned], Expected]
    options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    batch: str = "pairs"


KINDS: dict[str, Objective] = {
    "translation_ranking": Objective("translation_ranking", of_vectors.translation_ranking, {"temperature": 0.3}),
    "simcse": Objective("simcse", of_vectors.simcse, {"temperature": 0.3}, {"dropout": 0.2, "attention_dropout": 0.2}),
    "dual_moco": Objective(
        "dual_moco", of_vectors.dual_moco, {"queue_size": 0, "temperature": 0.3}, {"towers": "separate"}
    ),
    "frozen_source": Objective("frozen_source", of_vectors.frozen_source, {"temperature": 0.3}, {"towers": "separate"}),
    "hictl": Objective("hictl", of_vectors.hictl, {"word_samples": EVERYTHING}, {"normalize": False, "pooling": "cls"}),
    "dap": Objective("dap", of_vectors.dap, {"temperature": 0.3}, {"layers": 3, "pooling": "cls"}, "languages"),
    "cmlm": Objective("cmlm", of_words.cmlm, {"projections": 3}),
    "mlm": Objective("mlm", of_words.mlm),
    "tlm": Objective("tlm", of_words.tlm),
    "nli": Objective("nli", of_vectors.nli, {"head_size": 12, "head_dropout": 0.0}, {"normalize": False}, "labelled"),
    "nli_triplet": Objective("nli_triplet", of_vectors.nli_triplet, {"temperature": 0.3}, batch="triplets"),
    "cosent": Objective("cosent", of_vectors.scored, {"temperature": 0.3}, {"normalize": False}, "scored"),
    "angle": Objective("angle", of_vectors.scored, {"temperature": 0.3}, {"normalize": False}, "scored"),
    "label_smoothed_cross_entropy": Objective("label_smoothed_cross_entropy", of_words.translation),
}
"""The defaults of each kind."""
OF_MODELS = {
    option.name for config in (DualEncoder.Config, Translation.Config) for option in dataclasses.fields(config)
}


def of(kind: str, batch: str = "", **options: Any) -> Objective:
    """Return an objective of a kind with other options, of the criterion or of the model."""
    own = KINDS[kind]
    of_model = {name: value for name, value in options.items() if name in OF_MODELS}
    rest = {name: value for name, value in options.items() if name not in OF_MODELS}
    return dataclasses.replace(
        own, options={**own.options, **rest}, model={**own.model, **of_model}, batch=batch or own.batch
    )


rank = partial(of, "translation_ranking")
simcse, moco, frozen = partial(of, "simcse"), partial(of, "dual_moco"), partial(of, "frozen_source")
hictl, align, cmlm, mlm, tlm = (partial(of, kind) for kind in ("hictl", "dap", "cmlm", "mlm", "tlm"))
nli, triplet, translation = partial(of, "nli"), partial(of, "nli_triplet"), partial(of, "label_smoothed_cross_entropy")
ALONE = {"language_model": False, "word_contrast": False}
GUIDED = {"guide": "guide.npy", "mask_margin": 0.4, "mask_margin_relative": True}
OWN = {"rtl_vocabulary": "target-language"}
OBJECTIVES = {
    "translation_ranking": rank(),
    "translation_ranking, masked": rank(towers="separate", mask_equal_sentences=True),
    "translation_ranking, margin": rank(margin=0.3),
    "translation_ranking, forward": rank(margin=0.2, directions="forward", mask_equal_sentences=True),
    "translation_ranking, negatives": rank("negatives", margin=0.2, matryoshka=[8, 4]),
    "translation_ranking, negatives forward": rank("negatives", directions="forward"),
    "translation_ranking, too near": rank("negatives", margin=0.2, mask_margin=-0.1, matryoshka=[8, 4]),
    "translation_ranking, guide": rank("negatives", mask_equal_sentences=True, matryoshka=[8], **GUIDED),
    "translation_ranking, matryoshka": rank(towers="separate", matryoshka=[15, 8, 2]),
    "simcse": simcse(),
    "simcse, source": simcse(side="source", mask_equal_sentences=True),
    "simcse, target alone": simcse(towers="separate", side="target"),
    "simcse, masked": simcse(towers="separate", mask_equal_sentences=True, matryoshka=[7]),
    "simcse, guide": simcse(guide="guide.npy", mask_margin=-0.7),
    "dual_moco": moco(),
    "dual_moco, masked": moco(mask_equal_sentences=True, matryoshka=[7]),
    "dual_moco, negatives": moco("negatives", mask_margin=0.01),
    "dual_moco, guide": moco(**GUIDED),
    "frozen_source": frozen(projection_size=20),
    "frozen_source, masked": frozen(mask_equal_sentences=True, matryoshka=[7]),
    "frozen_source, negatives": frozen("negatives", source_side="target", learnable_temperature=False),
    "frozen_source, too near": frozen(mask_margin=-0.1, mask_margin_relative=True, matryoshka=[7]),
    "frozen_source, guide": frozen(**GUIDED),
    "frozen_source, trained, guide": frozen("negatives", source="trained", source_side="target", **GUIDED),
    "frozen_source, mse": frozen(loss="mse", source_side="target"),
    "frozen_source, trained": frozen("negatives", source="trained", source_side="target"),
    "frozen_source, multilingual": frozen(towers="shared", source="trained", mask_equal_sentences=True),
    "hictl": hictl(),
    "hictl, cool, of a projection": hictl(temperature=0.1, word_temperature=0.5, projection_size=12),
    "hictl, unmasked query": hictl(word_query="unmasked", pooling="mean"),
    "hictl, monolingual": hictl(monolingual=True, norm="pre"),
    "hictl, more masked": hictl(mask_rate=0.5),
    "hictl, no language model": hictl(language_model=False, temperature=0.2),
    "hictl, no sentences": hictl(sentence_contrast=False, projection_size=12),
    "hictl, plain negatives": hictl(word_contrast=False, hard_negatives=False, temperature=0.1),
    "hictl, sentences": hictl(**ALONE, normalize=True, mask_equal_sentences=True, temperature=0.1, matryoshka=[8]),
    "hictl, negatives": hictl("negatives", **ALONE, temperature=0.2),
    "hictl, too near": hictl("negatives", **ALONE, temperature=0.2, mask_margin=0.02, matryoshka=[8]),
    "hictl, guide": hictl(**ALONE, temperature=0.2, **GUIDED),
    "hictl, words": hictl(language_model=False, sentence_contrast=False),
    "hictl, language model": hictl(sentence_contrast=False, word_contrast=False),
    "dap": align(),
    "dap, one layer": align("negatives", rtl_layers=1, matryoshka=[7]),
    "dap, too near": align(mask_margin=0.0, directions="both"),
    "dap, from the pivot": align(rtl_direction="from_pivot", directions="both"),
    "dap, both": align(rtl_direction="both"),
    "dap, own subwords": align(**OWN, norm="pre", rtl_layers=3),
    "dap, half of the tokens": align(reconstruction_ratio=0.5),
    "dap, both, half": align(**OWN, reconstruction_ratio=0.5, rtl_direction="both"),
    "dap, sentences": align(rtl_average="sentences", reconstruction_ratio=0.3),
    "dap, sentences, own subwords": align(**OWN, rtl_average="sentences", rtl_direction="both"),
    "dap, pooled by the mean": align(pooling="mean"),
    "dap, below the last layer": align(pooled_layer=2, rtl_layers=1),
    "cmlm": cmlm(),
    "cmlm, one vector": cmlm(projections=1),
    "cmlm, raw": cmlm(vector_embedding="raw", projections=2),
    "cmlm, pre-norm": cmlm(norm="pre", projections=5),
    "cmlm, pre-norm, raw": cmlm(norm="pre", vector_embedding="raw"),
    "cmlm, skip": cmlm(skip=True),
    "cmlm, proj": cmlm(projection="spaces", projection_spaces=3),
    "cmlm, all": cmlm(projection="spaces", projection_spaces=3, skip=True),
    "cmlm, cls": cmlm(pooling="cls", mask_rate=0.5),
    "cmlm, max of the first layer": cmlm(pooling="max", pooled_layer=1),
    "cmlm, linear projection": cmlm(projection_size=16, projections=2),
    "mlm": mlm(),
    "mlm, two towers": mlm(towers="separate", mask_rate=0.3),
    "mlm, sentences": mlm("sentences"),
    "tlm": tlm(),
    "tlm, less masked": tlm(mask_rate=0.15),
    "tlm, next sentence": tlm(next_sentence=True),
    "nli": nli(),
    "nli, mlp": nli(towers="separate", head="mlp"),
    "nli, not scaled": nli(scale_vectors=False, features=["product", "premise"]),
    "nli_triplet": triplet(towers="separate"),
    "nli_triplet, too near": triplet(mask_margin=-0.02, matryoshka=[7]),
    "nli_triplet, guide": triplet(towers="separate", **GUIDED),
    "nli_triplet, masked": triplet(mask_equal_sentences=True, matryoshka=[7]),
    "cosent": of("cosent"),
    "cosent, separate": of("cosent", towers="separate", matryoshka=[7]),
    "angle": of("angle"),
    "angle, separate": of("angle", towers="separate", matryoshka=[6, 7]),
    "translation": translation(),
    "translation, bias": translation(semantic_bias=True, label_smoothing=0.6),
    "translation, no smoothing": translation(label_smoothing=0.0),
}
FIRST = [name for name in OBJECTIVES if "," not in name]
"""The first of each kind."""


class Maker:
    """Makes model, criterion and batch of an objective; their weights are large and all different."""

    def __init__(self, text: TextSpec, make_batch: Callable[[Any], Batch] | None = None) -> None:
        self.text, self.make_batch = text, make_batch
        self.languages = dataclasses.replace(text, source_languages=["de", "en"], target_languages=["en", "es"])

    def __call__(self, name: str, dtype: torch.dtype = torch.float64, **model: Any) -> tuple[Any, Criterion, Any]:
        own = OBJECTIVES[name]
        return *self.build(own, dtype, **model), self.batch(own.batch)

    def build(self, own: Objective, dtype: torch.dtype = torch.float64, **given: Any) -> tuple[Any, Criterion]:
        torch.manual_seed(0)
        text = self.languages if own.batch == "languages" else self.text
        options, more = {**SMALL, **own.model, **given}, guide_files() if "guide" in own.options else {}
        if own.kind == "label_smoothed_cross_entropy":
            model: nn.Module = Translation(Translation.Config(decoder_layers=1, **options), text)
        else:
            model = DualEncoder(DualEncoder.Config(**{"towers": "shared", **options}), text)
        shake(model)
        kind = CRITERIA.load(own.kind)
        criterion = kind(kind.Config(**{**own.options, **more}), model, text)
        shake(criterion)
        if getattr(criterion, "hardness", None) is not None:
            criterion.hardness.history[:3] = torch.tensor([0.5, 0.9, 0.7])
            criterion.hardness.steps.fill_(3)
        if getattr(criterion, "theta", None) is not None:
            criterion.theta.data.fill_(-1.2)
        if "teacher" in own.options:
            drawn = lambda hashes: [np.random.default_rng(n).normal(size=16) for n in hashes]  # noqa: E731
            criterion._teacher = Mock(read=lambda hashes: np.reshape(drawn(hashes), (-1, 16)))
        if "rtl_vocabulary" in own.options:
            criterion.prepare(self.task([("de", "en")]))
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(parameter_name.startswith(f"{part}.") for part in criterion.frozen))
        nn.ModuleList([model, criterion]).to(dtype).train()
        return model, criterion

    def task(self, pairs: list[tuple[str, str]]) -> BitextTask:
        """A task of translations whose languages have some of the subwords of the batch."""
        batch = self.batch("languages")
        every = sorted({*batch.source.tokens.flatten().tolist(), *batch.target.tokens.flatten().tolist()})
        own = {name: [*every[place:-20:2], 11, 12] for place, name in enumerate(("de", "en", "es"))}
        tables = [Table("-".join(pair), {}, {"languages": pair}) for pair in pairs]
        return Mock(spec=BitextTask, train=tables, subwords=own.__getitem__)

    def batch(self, kind: str) -> Any:
        """Nine ragged examples; one sentence of each side is repeated with another translation."""
        assert self.make_batch is not None
        some = sentence_pairs(12)
        given = [*some[:7], (some[0][0], some[7][1]), (some[8][0], some[1][1])]
        pairs = self.make_batch([(german * (1 + n % 2), english) for n, (german, english) in enumerate(given)])
        pairs.ids[7, 0] = pairs.ids[0, 0]  # of the sentence that is written once and twice
        if kind == "negatives":
            others = self.make_batch([some[n] for n in (9, 10, 11, 3, 5, 0)]).target
            return with_negatives(pairs, others, [1, 1, 2, 4, 4, 4])
        if kind == "languages":
            mixed = [pair for german, (spanish, other) in zip(given, spanish_pairs(), strict=False)
                     for pair in (german, (other, spanish))]  # fmt: skip
            made = self.make_batch([(one * (1 + n % 3 // 2), other) for n, (one, other) in enumerate(mixed[:9])])
            languages, indices = torch.tensor([(DE, EN), (EN, ES)] * 5)[:9], torch.tensor([4, 7, 1, 2, 2, 9, 3, 5, 8])
            return replace(made, facts={**made.facts, "languages": languages, "indices": indices})
        if kind == "sentences":
            return single(pairs)
        if kind in ("labelled", "triplets", "scored"):
            return nli_batch(pairs, kind)
        return pairs


def guide_files() -> dict[str, str]:
    """Return the files of a guide that knows the sentences of the batches, except for one."""

    def write(folder: Path) -> None:
        lines = [line for german, english in sentence_pairs(24) for line in (german, german * 2, english)]
        lines.remove(sentence_pairs(3)[2][1])
        write_lines(folder / "guide.txt", lines)
        np.save(folder / "guide.npy", np.random.default_rng(0).normal(size=(len(lines), 5)))

    folder = made_once("guide", write)
    return {"guide": str(folder / "guide.npy"), "guide_text": str(folder / "guide.txt")}


def nli_batch(pairs: Batch, kind: str) -> Batch:
    """Return examples of inference from pairs, triplets, or pairs with a score. Second sentences are of either side."""
    count = len(pairs)
    own = torch.arange(count)
    columns = [own, own + count, own.flip(0) + count]
    columns[1][count // 2 :] = own[: count - count // 2]
    places = torch.stack(columns[: 2 + (kind == "triplets")], dim=1)
    labels = own % 3 if kind == "labelled" else torch.full_like(own, -1)
    labels = (own * 3 % 4) / 4 if kind == "scored" else labels
    facts = {"labels": labels, "ids": pairs.ids.T.flatten()[places], "indices": own}
    return Batch(pairs.sides, {**facts, "languages": torch.zeros_like(places)}, places)


@torch.no_grad()
def shake(part: nn.Module) -> None:
    for parameter in part.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


def both(model: nn.Module, criterion: Criterion) -> nn.ModuleDict:
    return nn.ModuleDict({"model": model, "criterion": criterion})


def copied(model: nn.Module, criterion: Criterion) -> tuple[Any, Any]:
    return copy.deepcopy(model), copy.deepcopy(criterion)
