"""Small untrained translators for tests."""

from pathlib import Path
from typing import Any

import torch

from tests.support.encoders import write_model
from tests.support.vocabulary import small_tokenizer
from xrep.data.batch import TextSpec, Vocabulary
from xrep.models.translation import Translation

SMALL: dict[str, Any] = {
    "layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "decoder_layers": 2, "max_positions": 64,
}  # fmt: skip


def make_translator(
    text: TextSpec, *, seed: int = 7, shapes: dict[str, dict[str, Any]] | None = None, **options: Any
) -> Translation:
    """Return random weights that are large enough for different translations and different probabilities of words;
    ``shapes`` are changes of its architecture."""
    with torch.random.fork_rng():
        config = Translation.Config(**{**SMALL, **options})
        model = Translation(config, text).eval()
        if shapes:
            usual = model.architecture().items()
            model = Translation(config, text, {part: {**shape, **shapes[part]} for part, shape in usual}).eval()
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.randn(parameter.shape) * (0.5 if "embedding" in name else 0.4))
            for own in (model.encoder.token_embedding, model.target_embedding):
                if own is not None:
                    own.weight[text.vocabulary("target").pad_id] = 0
    return model


def write_translator(
    path: Path, *, languages: tuple[list[str], list[str]] = (["de"], ["en"]), max_length: int = 48, **options: Any
) -> Path:
    """Write a checkpoint of a translator of (source, target) languages."""
    tokenizer = small_tokenizer()
    source, target = languages
    text = TextSpec(
        vocabularies={"shared": Vocabulary.of(tokenizer)},
        max_length=max_length,
        source_languages=source,
        target_languages=target,
    )
    options_of_run = {"model": {"name": "translation", **SMALL, **options}}
    return write_model(path, make_translator(text, **options), text, tokenizer, options_of_run)
