"""How well translations agree with references: sacrebleu's BLEU and chrF, and BLEU as Moses' multi-bleu.perl counts it.

BLEU depends on how text is cut into words, so it is told with that: sacrebleu cuts plain text itself and says how in a
signature; papers that quote "tokenised BLEU" give multi-bleu.perl text that Moses has tokenised on both sides.
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
"""How sacrebleu cuts text into words: as mteval-v13a and mteval-v14 do, Chinese into characters, everything into
characters, or at white space (text that is tokenised already)."""
TOKENIZERS = get_args(Tokenizer)
References = Sequence[str] | Sequence[Sequence[str]]
"""A reference for each of N hypotheses, or several streams of them, each [N]."""
ORDERS = (1, 2, 3, 4)
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
"""What perl's split knows as white space in bytes: a no-break space stays in its word."""


@dataclass(frozen=True)
class Score:
    """A figure of sacrebleu with what it takes to get it again."""

    name: str
    """``BLEU`` or ``chrF2``."""
    value: float
    """0 to 100."""
    signature: str
    """Version and settings: ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0``."""
    text: str
    """The line that sacrebleu prints."""


@dataclass(frozen=True)
class MultiBleu:
    """BLEU without smoothing, 0 to 100; as text the line of multi-bleu.perl."""

    value: float
    precisions: tuple[float, ...]
    """Of n-grams of 1 to 4 words, in percent."""
    brevity_penalty: float
    hypothesis_length: int
    """Words of all hypotheses."""
    reference_length: int
    """Words of the references that are nearest in length, one for each hypothesis."""

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
    """sacrebleu's BLEU of N hypotheses: case counts, exponential smoothing (Post 2018, "A Call for Clarity").

    Raises:
        ValueError: no hypotheses, or another number of references.
    """
    from sacrebleu.metrics import BLEU

    return _score(BLEU(tokenize=tokenize, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """sacrebleu's chrF2 of N hypotheses: F-score of n-grams of 1 to 6 characters, recall twice as important (Popović
    2015).

    Raises:
        ValueError: no hypotheses, or another number of references.
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def _score(metric: Metric, hypotheses: Sequence[str], references: References) -> Score:
    found = metric.corpus_score(list(hypotheses), _streams(hypotheses, references))
    signature = str(metric.get_signature())
    return Score(found.name, found.score, signature, found.format(signature=signature))


def multi_bleu(hypotheses: Sequence[str], references: References, tokenize: Tokenizer = "none") -> MultiBleu:
    """BLEU of N hypotheses as Moses' multi-bleu.perl counts it (Papineni et al. 2002, "BLEU: a Method for Automatic
    Evaluation of Machine Translation", section 2.3): BP · exp(¼ Σ log pₙ) over n-grams of 1 to 4 words.

    Case counts. An n-gram counts as often as in the reference that has it most often. Of several references the one
    nearest in length counts for BP, of equally near ones the shorter. Without any n-gram of some n in common it is 0.

    Args:
        tokenize: how to cut both sides into words. The script itself takes words between white space.

    Raises:
        ValueError: no hypotheses, or another number of references.
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
    """Streams of references, each as long as the hypotheses."""
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
