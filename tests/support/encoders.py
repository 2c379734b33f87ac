"""Small untrained encoders for tests, written as checkpoint directories."""

from pathlib import Path
from typing import Any

from torch import nn, random

from tests.support.vocabulary import small_tokenizer
from xrep.config import to_yaml
from xrep.data.batch import TextSpec, Vocabulary
from xrep.models.directory import Snapshot, write_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.models.model import Model
from xrep.text.tokenizer import Tokenizer


def write_encoder(
    path: Path,
    *,
    towers: str = "shared",
    languages: tuple[list[str], list[str]] = (["de"], ["en"]),
    normalize: bool = True,
    seed: int = 7,
    size: int = 16,
    sentences: list[str] | None = None,
    vocabulary_size: int = 120,
    options: dict[str, Any] | None = None,
    model_options: dict[str, Any] | None = None,
) -> Path:
    """Return an encoder of (source, target) languages with one layer, vectors [N, size] and random weights.

    ``options`` are those of its run beside the model's, ``model_options`` more of the model's.
    """
    tokenizer = small_tokenizer(vocabulary_size, sentences)
    vocabularies = {"shared": Vocabulary.of(tokenizer)}
    source, target = languages
    text = TextSpec(vocabularies=vocabularies, max_length=64, source_languages=source, target_languages=target)
    shape = {"layers": 1, "hidden_size": size, "heads": 2, "feedforward_size": 16, "max_positions": 64}
    own = {"towers": towers, "normalize": normalize, **shape, **(model_options or {})}
    with random.fork_rng():
        random.manual_seed(seed)
        model = DualEncoder(DualEncoder.Config(**own), text)
    return write_model(path, model, text, tokenizer, {"model": {"name": "dual_encoder", **own}, **(options or {})})


def write_model(path: Path, model: Model, text: TextSpec, tokenizer: Tokenizer, options: dict[str, Any]) -> Path:
    """Write a checkpoint of step 1 of a run with these options."""
    snapshot = Snapshot.of(
        step=1,
        config_yaml=to_yaml(options),
        text=text,
        save_tokenizers=tokenizer.save,
        model=model,
        criterion=nn.Linear(1, 1),
        training_state={},
    )
    write_checkpoint(path, snapshot)
    return path
