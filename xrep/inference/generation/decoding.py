"""Options of the search for translations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from xrep.config.fields import Count, CountOrZero, NotNegative, Positive

SAMPLING = ("temperature", "top_k", "top_p")


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options of beam search and of sampling."""

    beam: Count = 5
    """Number of hypotheses that are followed at once; 1: greedy search."""
    nbest: Count = 1
    """Number of translations of each sentence, at most beam; with sampling: number of samples."""
    length_penalty: Annotated[float, "[-10, 10]"] = 1.0
    """Exponent α of the length penalty, by which the log-probability of a translation is divided; the length includes
    eos. Above 1 it favours longer translations, below 1 shorter ones; 0: no division."""
    length_penalty_form: Literal["fairseq", "gnmt"] = "fairseq"
    """Form of the length penalty; fairseq: length^α; gnmt: ((5 + length) / 6)^α (Wu et al. 2016, arXiv:1609.08144,
    equation 14, without the coverage penalty)."""
    min_length: CountOrZero = 0
    """Smallest number of tokens in a translation, not counting eos."""
    max_length_a: NotNegative = 2.0
    """The a of the greatest length: a sentence of x tokens has a translation of at most a · x + b tokens, not counting
    special tokens; there eos is forced. The number of positions of the model is a limit as well."""
    max_length_b: CountOrZero = 20
    """The b of the greatest length a · x + b."""
    no_repeat_ngram_size: CountOrZero = 0
    """Size of n-grams that must not occur twice in a translation; 0: any may."""
    sampling: bool = False
    """Sample translations instead of searching for the best."""
    top_k: CountOrZero = 0
    """With sampling, draw from this number of best tokens; 0: from all."""
    top_p: Annotated[float, "(0, 1]"] = 1.0
    """With sampling, draw from the fewest best tokens that together have this probability (nucleus sampling,
    Holtzman et al. 2020, arXiv:1904.09751)."""
    temperature: Positive = 1.0
    """With sampling, divide the logits by this number: below 1, likely tokens become likelier."""
    seed: CountOrZero = 0
    """Seed of the samples. A sentence of the same number gets the same samples, whatever other sentences there are."""

    def problems(self) -> list[str]:
        problems = list[str]()
        if not self.sampling and self.nbest > self.beam >= 1:
            problems.append(f"nbest {self.nbest} is more than the {self.beam} hypotheses of the beam")
        if self.max_length_a == 0 and self.min_length > self.max_length_b >= 0:
            problems.append(f"min_length {self.min_length} is more than the greatest length {self.max_length_b}")
        if self.sampling and self.beam != DEFAULTS.beam:
            problems.append(f"beam {self.beam} is for beam search; nbest is the number of samples")
        changed = [name for name in SAMPLING if vars(self)[name] != vars(DEFAULTS)[name]]
        return problems + [f"{name} is an option of sampling, which is off" for name in changed if not self.sampling]

    @property
    def width(self) -> int:
        """Number of hypotheses of each sentence."""
        return self.nbest if self.sampling else self.beam

    def penalty(self, length: int) -> float:
        """Return the divisor of the log-probability of a translation of ``length`` tokens, including eos."""
        base = length if self.length_penalty_form == "fairseq" else (5 + length) / 6
        return base**self.length_penalty


DEFAULTS = DecodingOptions()
