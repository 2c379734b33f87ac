"""Translation metrics: BLEU and chrF of sacrebleu, and BLEU as Moses' multi-bleu.perl computes it.

BLEU depends on how text is split into words, so the tokenisation must be reported with it. sacrebleu splits plain text
itself and describes how in a signature. Papers that report "tokenised BLEU" run multi-bleu.perl on text that Moses has
tokenised on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xrep.metrics.bootstrap import RESAMPLES, resampled_means

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEUScore
    from sacrebleu.metrics.chrf import CHRFScore

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: like mteval-v13a (13a), like mteval-v14 (intl), Chinese into characters (zh),
all text into characters (char), or only at white space (none, for text that is already tokenised)."""
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference for each of N hypotheses, or several lists of references, each [N]; otherwise there is a ValueError."""
_IN_WORDS = {code: 0xF0000 + code for code in range(0x3001) if chr(code).isspace() and chr(code) not in " \t\n\r\f\v"}
"""Characters for private use that replace the white space which is none to perl's split on bytes (no-break spaces)."""


def usual_tokenizer(language: str) -> BleuTokenizer:
    """Return how BLEU of a language, given by its canonical code, is usually computed. Text without spaces between its
    words would be one word for 13a."""
    if language in ("zh", "yue", "wuu"):
        return "zh"
    return "char" if language in ("ja", "th", "lo", "km", "my") else "13a"


def bleu(hypotheses: Sequence[str], references: References, tokenize: BleuTokenizer = "13a") -> tuple[BLEUScore, str]:
    """Return sacrebleu's BLEU of N hypotheses, case-sensitive and with exponential smoothing, and its signature.

    The signature tells the version and the settings that are needed to reproduce the score, for example
    ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0``. See Post (2018), "A Call for Clarity".
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenize, force=True)
    return metric.corpus_score(hypotheses, _streams(hypotheses, references)), str(metric.get_signature())


def resampled_bleu(
    hypotheses: Sequence[str], references: References, tokenize: BleuTokenizer = "13a", resamples: int = RESAMPLES
) -> np.ndarray:
    """Return sacrebleu's BLEU of N hypotheses that are drawn with replacement, float64 [R] (Koehn, 2004)."""
    from sacrebleu.metrics import BLEU

    metric, streams = BLEU(tokenize=tokenize, force=True, effective_order=True), _streams(hypotheses, references)
    each = [metric.sentence_score(line, gold) for line, *gold in zip(hypotheses, *streams, strict=True)]
    counts = np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in each])

    def score(sums: np.ndarray) -> float:
        correct, total = sums[:4].tolist(), sums[4:8].tolist()
        return BLEU.compute_bleu(correct, total, int(sums[8]), int(sums[9]), smooth_method="exp").score

    drawn = np.rint(len(counts) * resampled_means(counts, resamples=resamples)).astype(np.int64)
    return np.array([score(sums) for sums in drawn])


def chrf(hypotheses: Sequence[str], references: References) -> tuple[CHRFScore, str]:
    """Return sacrebleu's chrF2 of N hypotheses (Popović 2015), and its signature.

    This is the F-score of n-grams of 1 to 6 characters, with recall twice as important as precision.
    """
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return metric.corpus_score(hypotheses, _streams(hypotheses, references)), str(metric.get_signature())


def multi_bleu(hypotheses: Sequence[str], references: References, tokenize: BleuTokenizer = "none") -> BLEUScore:
    """Return BLEU of N hypotheses as Moses' multi-bleu.perl computes it.

    This is BP · exp(¼ Σ log pₙ) over n-grams of 1 to 4 words (Papineni et al. 2002, "BLEU: a Method for Automatic
    Evaluation of Machine Translation", section 2.3), case-sensitive. The matches of an n-gram are limited to its
    highest count in any reference. BP uses the reference nearest in length, and the shorter one if two are equally
    near. BLEU is 0 if for some n no n-gram matches. The script itself splits only at white space (``none``). The result
    is a score of sacrebleu, with its attributes.
    """
    from sacrebleu.metrics import BLEU

    sides, cut = [hypotheses, *_streams(hypotheses, references)], BLEU(tokenize=tokenize).tokenizer
    if tokenize != "none":
        sides = [[cut(line.rstrip()) for line in side] for side in sides]
    first, *others = [[line.translate(_IN_WORDS) for line in side] for side in sides]
    return BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(first, others)


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return lists of references, each as long as the hypotheses."""
    streams: Any = [references] if references and isinstance(references[0], str) else references
    if not hypotheses or not streams or any(len(stream) != len(hypotheses) for stream in streams):
        counts = " and ".join(str(len(stream)) for stream in streams) or "no"
        raise ValueError(f"{len(hypotheses)} hypotheses and {counts} references")
    return streams
