"""Translation metrics: BLEU and chrF of sacrebleu, and BLEU as Moses' multi-bleu.perl computes it.

BLEU depends on how text is split into words, so the tokenisation must be reported with it. sacrebleu splits plain text
itself and describes how in a signature. Papers that report "tokenised BLEU" run multi-bleu.perl on text that Moses has
tokenised on both sides.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Tokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: like mteval-v13a (13a), like mteval-v14 (intl), Chinese into characters (zh),
all text into characters (char), or only at white space (none, for text that is already tokenised)."""
TOKENIZERS = get_args(Tokenizer)
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference for each of N hypotheses, or several lists of references, each [N]."""
ORDERS = (1, 2, 3, 4)
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
"""White space of perl's split on bytes; a no-break space is not white space and stays in its word."""


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


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Return sacrebleu's chrF2 of N hypotheses (Popović 2015).

    This is the F-score of n-grams of 1 to 6 characters, with recall twice as important as precision.

    Raises:
        ValueError: There are no hypotheses, or the number of references differs.
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def _score(metric: Metric, hypotheses: Sequence[str], references: References) -> Score:
    found = metric.corpus_score(list(hypotheses), _streams(hypotheses, references))
    signature = str(metric.get_signature())
    return Score(found.name, found.score, signature, found.format(signature=signature))


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
    split = _words(tokenize)
    correct, total = Counter[int](), Counter[int]()
    hypothesis_length = reference_length = 0
    for hypothesis, *several in zip(hypotheses, *_streams(hypotheses, references), strict=True):
        words, sentences = split(hypothesis), [split(reference) for reference in several]
        hypothesis_length += len(words)
        reference_length += min((abs(len(other) - len(words)), len(other)) for other in sentences)[1]
        for order in ORDERS:
            grams, most = _grams(words, order), Counter[tuple[str, ...]]()
            for other in sentences:
                most |= _grams(other, order)
            total[order] += grams.total()
            correct[order] += (grams & most).total()
    precisions = [correct[order] / total[order] if total[order] else 0.0 for order in ORDERS]
    penalty = 1.0
    if hypothesis_length < reference_length:
        penalty = math.exp(1 - reference_length / hypothesis_length) if hypothesis_length else 0.0
    mean = math.exp(sum(map(math.log, precisions)) / len(ORDERS)) if all(precisions) else 0.0
    percent = tuple(100 * precision for precision in precisions)
    return MultiBleu(100 * penalty * mean, percent, penalty, hypothesis_length, reference_length)


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return lists of references, each as long as the hypotheses."""
    if references and isinstance(references[0], str):
        streams = [list(cast("Sequence[str]", references))]
    else:
        streams = [list(stream) for stream in references]
    if not hypotheses or not streams or any(len(stream) != len(hypotheses) for stream in streams):
        counts = " and ".join(str(len(stream)) for stream in streams) or "no"
        raise ValueError(f"{len(hypotheses)} hypotheses and {counts} references")
    return streams


def _words(tokenize: Tokenizer) -> Callable[[str], list[str]]:
    if tokenize == "none":
        return _split
    from sacrebleu.metrics import BLEU

    cut = BLEU(tokenize=tokenize).tokenizer
    return lambda text: _split(cut(text.rstrip()))


def _split(text: str) -> list[str]:
    return [word for word in _SPACE.split(text) if word]


def _grams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))
