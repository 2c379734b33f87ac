"""Reading of pretrained encoders from directories of Hugging Face or sentence-transformers."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.interop.sentence_modules import DenseSpec, Prompts, read_chain, read_dense, read_pooling, read_prompts
from xrep.nn import bert
from xrep.nn.pooling import Pooling
from xrep.nn.shape import UNLIMITED, EncoderSizes
from xrep.nn.weights import Weights, read_json
from xrep.registry import ENCODERS, one_line
from xrep.text.huggingface import maximum_length
from xrep.text.languages import canonical
from xrep.text.resources import SOURCE_FILE

AUTO = "auto"
"""The encoder type that chooses ``transformer`` if it computes the architecture, and otherwise ``transformers``."""


State = tuple[dict[str, Tensor], list[str]]


def no_head() -> None:
    """The head of an encoder that was trained without one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """A trained encoder that a model can start from, in a directory of another library or in a checkpoint.

    Its configuration was read, its weights were not: the functions read them when they are called.

    Attributes:
        path: Folder of the transformer (``config.json``, weights), or the checkpoint, or ``TOWER`` in it.
        tokenizer: Folder of the tokenizer that belongs to it.
        shape: Shape of the encoder; its ``type`` names the class in ``ENCODERS``.
        read: Returns the state of the encoder in float32, and the names of the tensors beside it that are not used.
        head: Returns the state of the ``MaskedLanguageHead`` that was trained with the encoder; None if it has none.
        pooling, normalize: Settings of the sentence vectors that it gives; None if it was not trained for them.
        projection: Dense layer between pooling and normalisation.
        prompts: Texts in front of sentences, which ``SentenceEncoder`` adds and training does not.
        languages: Languages that it was trained for; empty if they are not known, or all.
    """

    path: Path
    tokenizer: Path
    shape: EncoderSizes
    read: Callable[[EncoderSizes], State]
    head: Callable[[], dict[str, Tensor] | None] = no_head
    pooling: Pooling | None = None
    normalize: bool | None = None
    projection: DenseSpec | None = None
    prompts: Prompts = field(default_factory=Prompts)
    languages: list[str] = field(default_factory=list)

    @property
    def max_length(self) -> int:
        """Longest sentence in tokens that the directory names or the encoder has positions for. If neither limits it,
        it is 512, but unlimited in a static encoder, as in sentence-transformers."""
        positions = self.shape.max_positions
        usual = 512 if positions == UNLIMITED and self.shape.type != "static" else positions
        return min(maximum_length(self.path) or usual, positions)

    def state(self, layers: int | None = None) -> State:
        """Return the state of the first ``layers`` layers (None: all), and the names of the tensors that it leaves out.
        Raises UserError if weights are missing or damaged, or the encoder has fewer layers."""
        return self.read(self.shape.first_layers(layers, self.path))


def find_pretrained(name_or_path: str | Path, *, download: bool = False) -> Path:
    """Return a directory, or the folder of a model in the local Hugging Face cache.

    Args:
        download: Whether to fetch a model ``organisation/name`` that is not in the cache from the Hugging Face Hub. It
            is not asked for what may be a misspelt path, ``run1/bset`` where there is a folder ``run1``.

    Raises:
        UserError: There is no such directory or model, or it cannot be fetched.
    """
    path = Path(os.path.expanduser(name_or_path))
    if path.is_dir():
        return path
    if path.exists():
        cure = f"try {path.absolute().parent}"
        cure = "give a teacher's vectors by `teacher_vectors`" if path.suffix == ".npy" else cure
        raise UserError("a file, not the directory of a pretrained encoder", path=path, cure=cure)
    name = str(name_or_path)
    get = "name a directory (xrep-data list shows encoders that it can fetch)"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise UserError("no such directory", path=path, cure=get)
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        # Newer versions refuse a folder with only the files that transformers fetched, but those are enough here.
        if fetched := getattr(error, "snapshot_path", None):
            return Path(fetched)
        if download and "/" in name and not path.parent.exists() and not constants.HF_HUB_OFFLINE:
            return _fetch(name)
        problem = f"no such directory, and no such model in the Hugging Face cache {constants.HF_HUB_CACHE}"
        raise UserError(problem, path=path, cure=f"{get}, or run: hf download {name}") from None


def _fetch(name: str) -> Path:
    """Fetch a model from the Hugging Face Hub, without code and without the weights of other frameworks."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    wanted = ["*.json", "*.txt", "*.model", "*.yaml", "*.npy", "*.safetensors"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["onnx/*", "openvino/*"]))
        if not any(folder.rglob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*wanted, "*pytorch_model*.bin"]))
    except (HfHubHTTPError, OSError, ValueError) as error:
        problem = f"no such directory, and {name} cannot be fetched from the Hugging Face Hub: {one_line(error)[:200]}"
        raise UserError(problem, cure="check the name and the network, or name a directory") from None
    return folder


def read_pretrained(path: str | Path, encoder_type: str = AUTO) -> Start:
    """Read the configuration of a Hugging Face or sentence-transformers directory, without the encoder's weights.

    Args:
        encoder_type: Name in ``ENCODERS`` of the class that shall compute the encoder, or ``AUTO``.

    Raises:
        UserError: It is not such a directory, a file is damaged, or xrep cannot express the architecture or a module.
    """
    root = Path(path)
    modules = read_chain(root)
    folder = modules.get("StaticEmbedding") or modules.get("Transformer", root)
    if encoder_type == AUTO:
        encoder_type = "static" if "StaticEmbedding" in modules else _chosen_type(folder)
    encoder_class = ENCODERS.load(encoder_type)
    shape, prompts = encoder_class.read_shape(folder), read_prompts(root) if modules else Prompts()
    if "Pooling" in modules:
        pooling = read_pooling(modules["Pooling"], prompts)
    else:
        pooling = "mean" if modules else _pooling_of(folder)
    return Start(
        path=folder,
        tokenizer=folder,
        shape=shape,
        read=partial(encoder_class.read_state, folder),
        head=partial(_head, folder) if shape.type == "transformer" else no_head,
        pooling=pooling,
        normalize="Normalize" in modules if modules else None,
        projection=read_dense(modules["Dense"], modules.get("Second Dense")) if "Dense" in modules else None,
        prompts=prompts,
        languages=declared_languages(root),
    )


def _pooling_of(folder: Path) -> Pooling | None:
    """Return the pooling that sentence-transformers chooses for a transformer alone, if it is not the mean."""
    place = folder / bert.HF_CONFIG
    config = read_json(place) if place.is_file() else {}  # encoders of plugins have none
    is_decoder = str((config.get("architectures") or [""])[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    return "last" if is_decoder else None


def declared_languages(directory: Path) -> list[str]:
    """Return the languages in the header of a directory's model card, or those that ``xrep-data`` noted there; empty if
    there are none, or if they are all languages."""
    card, noted = directory / "README.md", directory / SOURCE_FILE
    text = ""
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            header = re.match(r"---\n(.*?)\n---", file.read(1 << 16), re.DOTALL)
        text = "".join(re.findall(r"^language:(.*(?:\n *-.*)*)", header[1], re.MULTILINE) if header else ())
    if not text and noted.is_file():
        text = str(read_json(noted).get("languages", ""))
    codes = dict.fromkeys(canonical(code) for code in re.findall(r"[A-Za-z][\w-]*", text))
    return [] if {"multilingual", "mul"} & codes.keys() else list(codes)


def _chosen_type(directory: Path) -> str:
    """Return the type of encoder that computes a directory: xrep's own one if it can, otherwise the library's."""
    path = directory / bert.HF_CONFIG
    if not path.is_file():
        cure = "name a directory of Hugging Face or sentence-transformers"
        raise UserError(f"no {bert.HF_CONFIG}: not the directory of a pretrained encoder", path=directory, cure=cure)
    problem = bert.obstacle(read_json(path))
    if problem is None:
        return "transformer"
    if importlib.util.find_spec("transformers") is None:
        cure = "pip install 'xrep[hf]', with which transformers computes it"
        raise UserError(problem, path=path, cure=cure)
    return "transformers"


def pooler_of(start: Start) -> DenseSpec:
    """Return the layer with tanh after [CLS] of a BERT or RoBERTa directory, its ``pooler``.

    In directories of SimCSE (Gao et al., 2021) it is the MLP that sentence vectors have passed through in training.
    """
    tensors = partial(_tensors_of_pooler, start.path)
    return DenseSpec(output_size=start.shape.hidden_size, bias=True, activation="tanh", tensors=tensors)


def _tensors_of_pooler(directory: Path) -> dict[str, Tensor]:
    weights = Weights(directory)
    names = bert.named_tensors(weights)
    try:
        return {part: weights[names[f"pooler.dense.{part}"]] for part in ("weight", "bias")}
    except KeyError as error:
        cure = "leave out `pooler`, or start from an encoder that has one"
        raise UserError(f"no pooler: no tensor {error.args[0]}", path=weights.path, cure=cure) from None


def _head(directory: Path) -> dict[str, Tensor] | None:
    """Return the state of the masked language head of a directory (``cls.predictions`` in BERT, ``lm_head`` in RoBERTa
    and XLM-R). Raises UserError if its output matrix is not the embedding matrix."""
    weights = Weights(directory)
    whole = bert.named_tensors(weights)
    is_bert = any(name.startswith("cls.predictions.") for name in whole)
    base = "cls.predictions." if is_bert else "lm_head."
    names = {name.removeprefix(base): file for name, file in whole.items() if name.startswith(base)}
    if not names:
        return None
    _check_tied(weights, names.get("decoder.weight"), whole[bert.WORDS])
    dense, norm = ("transform.dense", "transform.LayerNorm") if is_bert else ("dense", "layer_norm")
    modules = (("dense", dense), ("norm", norm))
    sources = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in modules for part in ("weight", "bias")}
    # The bias is one tensor under two names; often only one is stored.
    sources["bias"] = "bias" if "bias" in names else "decoder.bias"
    return {ours: weights[names[theirs]] for ours, theirs in sources.items() if theirs in names}


def _check_tied(weights: Weights, decoder: str | None, words: str) -> None:
    """Refuse a head with an output matrix of its own."""
    if decoder is not None:
        tied = torch.equal(weights[decoder], weights[words])
    else:
        tied = read_json(weights.path.parent / bert.HF_CONFIG).get("tie_word_embeddings") is not False
    if not tied:
        problem = "the masked language head has an output matrix of its own, xrep's has the embedding matrix"
        raise UserError(problem, path=weights.path, cure="train a new head")
