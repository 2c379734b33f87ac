"""Hierarchical contrastive learning (HiCTL): sentence contrast, word contrast and a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, only_tower, percentage
from xrep.criteria.in_batch import InBatch, Temperature, negative_vectors, with_own_negatives
from xrep.criteria.masked_language import MaskedLanguage
from xrep.criteria.tlm import read_together
from xrep.data.batch import Batch, Movable, TextSpec, TokenBatch, Vocabulary
from xrep.data.masking import Masked, maskable
from xrep.errors import UserError
from xrep.kernels.gather import current_group
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.word_infonce import word_infonce
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.encoder import require_words
from xrep.tasks.task import ExampleKind, Task
from xrep.text.sides import SHARED

MASK_RATES = {"tlm": 0.25, "mlm": 0.15}
"""Default mask rates of the two kinds of language model (table 9)."""
BATCHES = 100
"""Number of recent steps averaged into p⁺ (equation 6)."""


class PositiveProbability(nn.Module):
    """The exponent ζ · p⁺ of equation 6, where p⁺ is the mean of exp(-L_S) over the last 100 optimizer steps.

    L_S is the loss of a step over the pairs of all ranks and batches, with the negatives as hard as they were in that
    step. With fewer steps so far, p⁺ is the mean of those; before the first step it is 0, so negatives begin unchanged.
    The history is a buffer, so checkpoints contain it, and it is the same on all ranks. ``slack`` is ζ.
    """

    history: Tensor
    steps: Tensor

    def __init__(self, slack: float) -> None:
        super().__init__()
        self.slack = slack
        self.register_buffer("history", torch.zeros(BATCHES))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._loss: Tensor | None = None
        self._sentences = 0

    def p_positive(self) -> Tensor:
        """Return p⁺, a scalar tensor."""
        return self.history.sum() / self.steps.clamp(1, BATCHES)

    def exponent(self) -> Tensor:
        return self.slack * self.p_positive()

    def note(self, loss: Tensor, sentences: int) -> None:
        """Record a batch of the current step: the summed loss of its queries, and how many they are."""
        loss = loss.detach().double()
        self._loss = loss if self._loss is None else self._loss + loss
        self._sentences += sentences

    @torch.no_grad()
    def update(self) -> None:
        """Add the current step to the history. Call it after each optimizer step, on every rank."""
        if self._loss is None:
            return
        both = torch.stack([self._loss, torch.full_like(self._loss, self._sentences)])
        if current_group() is not None:
            dist.all_reduce(both)
        loss, sentences = both
        place, there_are_some = self.steps.reshape(1) % BATCHES, sentences > 0
        p_positive = torch.exp(-loss / sentences.clamp(min=1)).to(self.history.dtype)
        before = self.history.index_select(0, place)
        self.history.index_copy_(0, place, torch.where(there_are_some, p_positive, before))
        self.steps += there_are_some
        self._loss, self._sentences = None, 0


class HiCTL(ContrastiveCriterion):
    """Contrast of sentences and contrast of words, with a language model (HiCTL, Wei et al., 2021).

    The loss is L = L_LM + L_S + L_W of *On Learning Universal Representations Across Languages*, equation 9.

    L_S (equations 2-4): each of the 2n sentences of n pairs must find its translation; its negatives are the 2n - 2
    sentences of the other pairs, of both sides. Similarity is the cosine of r = f(g(M(x))): g is the model's pooling
    ([CLS] in the paper) and f is its projection (``projection_size``), which export can leave out. Negatives are made
    harder as the model gets better (equations 5 and 6). Mined negatives (option ``negatives`` of the task) join those
    of their own x where it is the query, as they are.

    L_W (equations 7 and 8): the encoder reads x and y as one sequence. Its first vector must find, by cosine, the
    embedding of each subword of the pair among those of sampled subwords.

    L_LM: ``tlm`` on x and y as one sequence, or ``mlm`` on x alone, for monolingual data whose y is x reordered.

    Use:
        - Needs: pairs (task bitext), or monolingual text (``units: reordered``, with ``monolingual``); one tower, best
            XLM-R. Every token is encoded twice, alone and as part of a pair.
        - Choose it: to go on pretraining an encoder that will be fine-tuned as well as used for sentence vectors.
        - Related: translation_ranking is L_S without harder negatives; tlm and mlm are L_LM alone; dap aligns words,
            too.
        - Left open: the subwords for L_W are sampled by softmax of the same logits as in the loss; each pair has its
            own samples; special tokens are neither in the bag of words nor sampled. The distances of equation 5 are
            between the model's vectors, which the paper does not normalise (``normalize: false``).

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion hictl --towers shared --normalize false --temperature 0.05
        ```

    Raises:
        UserError: the languages have separate towers, or there is no [MASK].
    """

    reads = (ExampleKind.TRANSLATIONS, ExampleKind.REORDERED)
    needs = DualEncoder
    exchanges = True

    @dataclass(kw_only=True)
    class Config(InBatch):
        language_model: bool = True
        """Train a language model as well (L_LM): translation language modelling, or, with monolingual, masked language
        modelling of x."""
        monolingual: bool = False
        """The data is monolingual and y is x reordered. The language model then reads only x, since y would reveal the
        masked tokens."""
        sentence_contrast: bool = True
        """Contrast sentences (L_S). Off: 'w/o Sentence-CTL' of table 3."""
        hard_negatives: bool = True
        """Make the negatives of L_S harder (HNS in table 1). Off: they are the unchanged sentences of the batch."""
        word_contrast: bool = True
        """Contrast words (L_W). Off: 'w/o Word-CTL' of table 3."""
        mask_rate: Annotated[float, "(0, 1]"] | None = None
        """Share of the subwords that is masked for the language model. none: 0.25, or 0.15 for monolingual
        text (table 9)."""
        temperature: Temperature = 1.0
        """Cosines of L_S are divided by this value. The paper has no temperature, which equals 1; p+ then stays near 1
        / (2n - 1) whatever the model does, and hard negatives hardly differ from plain ones. Use 0.05 for small models
        and batches."""
        slack: Annotated[float, "(0, 1)"] = 0.9
        """zeta of equation 6, which keeps negatives from becoming too hard."""
        word_temperature: Temperature = 1.0
        """Cosines of L_W are divided by this value, in the loss and when words are sampled. The paper has no
        temperature, which equals 1."""
        word_samples: Count = 512
        """m: number of subwords sampled as negatives for each pair (section 4.1)."""
        word_query: Literal["masked", "unmasked"] = "masked"
        """Which first vector must find the words. masked: that of the pass for TLM, whose words are partly masked.
        unmasked: that of a separate pass that sees all words. Without TLM it is always the separate pass."""

        def problems(self) -> list[str]:
            problems = super().problems()
            if not (self.sentence_contrast or self.word_contrast or self.language_model):
                off = "language_model, sentence_contrast and word_contrast are all off"
                problems.append(f"{off}, so nothing is left to train")
            for name, is_set in (("matryoshka", self.matryoshka), ("mask_margin", self.mask_margin is not None)):
                if is_set and not self.sentence_contrast:
                    problems.append(f"{name} is for sentence_contrast, which is off")
            return problems

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model)
        only_tower("hictl", model)
        self._text, self.uses_hard_negatives = text, config.sentence_contrast
        self.trains_vectors = config.sentence_contrast or config.word_contrast
        self._vocabulary = text.vocabulary(SHARED)
        shape = model.encoders[SHARED].shape
        self._limit = shape.max_positions
        self._objective = "mlm" if config.monolingual else "tlm"
        self.masked_lm: MaskedLanguage | None = None
        if config.language_model:
            rate = MASK_RATES[self._objective] if config.mask_rate is None else config.mask_rate
            self.masked_lm = MaskedLanguage(model, text, rate=rate)
        hardens = config.sentence_contrast and config.hard_negatives
        self.hardness = PositiveProbability(config.slack) if hardens else None
        if config.word_contrast:
            require_words(model.encoders[SHARED], "word_contrast")
            # Embeddings beyond the vocabulary belong to no word.
            special = [*self._vocabulary.special_ids, *range(self._vocabulary.size, shape.vocabulary_size)]
            self.register_buffer("special", torch.tensor(special), persistent=False)
        self.idle_parameters = len(model.projections) > 0 and not config.sentence_contrast

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        if task.gives is ExampleKind.REORDERED and not self.config.monolingual:
            problem = "hictl: a sentence and its reordered words reveal each other's masked words"
            raise UserError(problem, cure="set `monolingual` to true")

    def plan_rows(self, batch: Batch, generator: torch.Generator) -> Planned:
        sizes: dict[str, float] = {}
        masked = words = None
        together = read_together(batch.source, batch.target, self._vocabulary, self._limit)
        if self.masked_lm is not None:
            masked = self.masked_lm.mask(SHARED, batch.source if self.config.monolingual else together, generator)
            sizes[self._objective] = len(masked.labels)
        if self.config.sentence_contrast:
            sizes["sentence"] = 2 * len(batch)
        if self.config.word_contrast:
            words = bag_of_words(together, self._vocabulary)
            sizes["word"] = len(batch)
        return Planned(batch, sizes, (masked, words))

    def vectors(self, model: DualEncoder, planned: Planned) -> tuple[Tensor, ...]:
        if not self.config.sentence_contrast:
            return ()
        return super().encode(model, planned).vectors + negative_vectors(model, planned.batch, self._text)

    def encode(self, model: DualEncoder, planned: Planned) -> Encoded:
        vectors = self.vectors(model, planned)
        loss, encoder, first = Loss({}), model.encoders[SHARED], None
        masked: Masked | None
        words: Words | None
        masked, words = planned.details
        if masked is not None:
            assert self.masked_lm is not None
            states = encoder(masked.batch)
            first = states[:, 0]
            result = self.masked_lm(SHARED, encoder, masked.at_positions(states), masked.labels)
            loss.terms[self._objective] = Term(result.loss)
            loss.metrics["masked_accuracy"] = percentage(result.correct)
            loss.rows["masked_accuracy"] = len(masked.labels)
        if words is not None:
            if masked is None or self.config.monolingual or self.config.word_query == "unmasked":
                first = encoder(words.together)[:, 0]
            assert first is not None
            tau, samples = self.config.word_temperature, self.config.word_samples
            given = (first, encoder.token_embedding.weight, words.words, words.bag, tau)
            result = word_infonce(*given, special=self.get_buffer("special"), samples=samples)
            share = result.correct.sum(1) / words.bag.sum(1).clamp(min=1)
            loss.terms["word"] = Term(result.loss.sum())
            loss.metrics["word_accuracy"] = 100 * share.sum() / max(len(words.words), 1)
        return Encoded(vectors, loss)

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        if not self.config.sentence_contrast:
            return Loss({})
        hardness = self.hardness
        options = self.config.options(planned)
        exponent = 0.0 if hardness is None else hardness.exponent()
        (source, target, *negative), tau = vectors, self.config.temperature
        result = hard_infonce(source, target, tau, exponent=exponent, **options)
        forward, correct = result.forward, result.forward_correct
        if negative:
            x, y, *hard = [F.normalize(side, dim=1) for side in (source, target, *negative)]
            given = forward, correct, x, y, hard, planned.batch, tau
            forward, correct = with_own_negatives(*given, judge=options["judge"])
        loss = (forward + result.backward).sum()
        metrics = {"sentence_accuracy": percentage(torch.cat([correct, result.backward_correct]))}
        if hardness is not None:
            metrics["p_positive"] = hardness.p_positive()
            mixed = result.forward_interpolation.sum() + result.backward_interpolation.sum()
            metrics["lambda"] = mixed / max(2 * len(planned.batch), 1)
        return Loss({"sentence": Term(loss)}, metrics)

    def remember(self, vectors: tuple[Tensor, ...], planned: Planned, loss: Loss) -> None:
        if self.hardness is not None:
            self.hardness.note(loss.terms["sentence"].sum, 2 * len(planned.batch))

    def after_step(self, model: DualEncoder) -> None:
        if self.hardness is not None:
            self.hardness.update()

    def warnings(self, task: Task) -> list[str]:
        notes, temperature = [] if self.masked_lm is None else self.masked_lm.notes, self.config.temperature
        if self.hardness is None or temperature <= 0.5:
            return notes
        problem = f"hard negatives hardly differ from plain ones at a `temperature` of {temperature}, where p+ stays"
        return [*notes, f"{problem} near 1 / (2n - 1); lower it, or set `hard_negatives` to false"]


@dataclass
class Words(Movable):
    """Pairs of sentences, each as one sequence, with their subwords.

    Attributes:
        together: [CLS] x [SEP] y [SEP] in each row.
        words: int64 [B, T], the subwords of each row, sorted.
        bag: bool [B, T], which of them count: each distinct one once, special tokens never.
    """

    together: TokenBatch
    words: Tensor
    bag: Tensor


def bag_of_words(batch: TokenBatch, vocabulary: Vocabulary) -> Words:
    """Return sentences with their subwords."""
    words = batch.tokens.masked_fill(~maskable(batch, vocabulary), vocabulary.pad_id).sort(dim=1).values
    again = torch.zeros_like(words, dtype=torch.bool)
    again[:, 1:] = words[:, 1:] == words[:, :-1]
    return Words(batch, words, ~again & (words != vocabulary.pad_id))
