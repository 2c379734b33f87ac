"""Translation metrics: BLEU and chrF of sacrebleu, and BLEU as Moses' multi-bleu.perl computes it.

BLEU depends on how text is split into words, so the tokenisation must be reported with it. sacrebleu splits plain text
itself and describes how in a signature. Papers that report "tokenised BLEU" run multi-bleu.perl on text that Moses has
tokenised on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xrep.metrics.bootstrap import RESAMPLES, resampled_means

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Tokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: like mteval-v13a (13a), like mteval-v14 (intl), Chinese into characters (zh),
all text into characters (char), or only at white space (none, for text that is already tokenised)."""
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference for each of N hypotheses, or several lists of references, each [N]."""
_IN_WORDS = {code: 0xF0000 + code for code in range(0x3001) if chr(code).isspace() and chr(code) not in " \t\n\r\f\v"}
"""Characters for private use that replace the white space which is none to perl's split on bytes (no-break spaces)."""


@dataclass(frozen=True)
class Score:
    """A score of sacrebleu with the settings that are needed to reproduce it."""

    name: str
    """``BLEU`` or ``chrF2``."""
    value: float
    """Score from 0 to 100."""
    signature: str
    """Version and settings, for example ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0``."""
    text: str
    """The line that sacrebleu prints."""


@dataclass(frozen=True)
class MultiBleu:
    """BLEU without smoothing, from 0 to 100; ``str`` gives the line that multi-bleu.perl prints."""

    value: float
    precisions: tuple[float, ...]
    """Precisions of n-grams of 1 to 4 words, in percent."""
    brevity_penalty: float
    hypothesis_length: int
    """Number of words of all hypotheses."""
    reference_length: int
    """Number of words of the references, counting for each hypothesis the one nearest in length."""

    @property
    def ratio(self) -> float:
        return self.hypothesis_length / self.reference_length if self.reference_length else 0.0

    def __str__(self) -> str:
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        lengths = f"hyp_len={self.hypothesis_length}, ref_len={self.reference_length}"
        return (
            f"BLEU = {self.value:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={self.ratio:.3f}, {lengths})"
        )


def bleu(hypotheses: Sequence[str], references: References, tokenize: Tokenizer = "13a") -> Score:
    """Return sacrebleu's BLEU of N hypotheses, case-sensitive and with exponential smoothing.

    See Post (2018), "A Call for Clarity".

    Raises:
        ValueError: There are no hypotheses, or the number of references differs.
    """
    from sacrebleu.metrics import BLEU

    return _score(BLEU(tokenize=tokenize, force=True), hypotheses, references)


def resampled_bleu(
    hypotheses: Sequence[str], references: References, tokenize: Tokenizer = "13a", resamples: int = RESAMPLES
) -> np.ndarray:
    """Return sacrebleu's BLEU of N hypotheses that are drawn with replacement, float64 [R] (Koehn, 2004).

    Raises:
        ValueError: There are no hypotheses, or the number of references differs.
    """
    from sacrebleu.metrics import BLEU

    metric, streams = BLEU(tokenize=tokenize, force=True, effective_order=True), _streams(hypotheses, references)
    each = [metric.sentence_score(line, list(own)) for line, *own in zip(hypotheses, *streams, strict=True)]
    counts = np.array([[*own.counts, *own.totals, own.sys_len, own.ref_len] for own in each])

    def score(sums: np.ndarray) -> float:
        correct, total = sums[:4].tolist(), sums[4:8].tolist()
        return BLEU.compute_bleu(correct, total, int(sums[8]), int(sums[9]), smooth_method="exp").score

    drawn = np.rint(len(counts) * resampled_means(counts, resamples=resamples)).astype(np.int64)
    return np.array([score(sums) for sums in drawn])


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Return sacrebleu's chrF2 of N hypotheses (Popović 2015).

    This is the F-score of n-grams of 1 to 6 characters, with recall twice as important as precision.

    Raises:
        ValueError: There are no hypotheses, or the number of references differs.
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def _score(metric: Metric, hypotheses: Sequence[str], references: References) -> Score:
    score = metric.corpus_score(list(hypotheses), _streams(hypotheses, references))
    signature = str(metric.get_signature())
    return Score(score.name, score.score, signature, score.format(signature=signature))


def multi_bleu(hypotheses: Sequence[str], references: References, tokenize: Tokenizer = "none") -> MultiBleu:
    """Return BLEU of N hypotheses as Moses' multi-bleu.perl computes it.

    This is BP · exp(¼ Σ log pₙ) over n-grams of 1 to 4 words (Papineni et al. 2002, "BLEU: a Method for Automatic
    Evaluation of Machine Translation", section 2.3), case-sensitive. The matches of an n-gram are limited to its
    highest count in any reference. BP uses the reference nearest in length, and the shorter one if two are equally
    near. BLEU is 0 if for some n no n-gram matches.

    Args:
        tokenize: How to split both sides into words. The script itself splits only at white space.

    Raises:
        ValueError: There are no hypotheses, or the number of references differs.
    """
    from sacrebleu.metrics import BLEU

    sides, cut = [hypotheses, *_streams(hypotheses, references)], BLEU(tokenize=tokenize).tokenizer
    if tokenize != "none":
        sides = [[cut(line.rstrip()) for line in side] for side in sides]
    first, *others = [[line.translate(_IN_WORDS) for line in side] for side in sides]
    score = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(first, others)
    return MultiBleu(score.score, tuple(score.precisions), score.bp, score.sys_len, score.ref_len)


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return lists of references, each as long as the hypotheses."""
    streams: Any = [references] if references and isinstance(references[0], str) else references
    if not hypotheses or not streams or any(len(stream) != len(hypotheses) for stream in streams):
        counts = " and ".join(str(len(stream)) for stream in streams) or "no"
        raise ValueError(f"{len(hypotheses)} hypotheses and {counts} references")
    return [list(stream) for stream in streams]
