"""Reading of pretrained encoders from directories of Hugging Face or sentence-transformers."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.interop.sentence_modules import DenseSpec, Prompts, read_modules, read_prompts
from xrep.nn import bert
from xrep.nn.heads import MaskedLanguageHead
from xrep.nn.pooling import Pooling
from xrep.nn.shape import UNLIMITED, EncoderSizes
from xrep.nn.weights import Weights, read_json
from xrep.registry import ENCODERS, one_line
from xrep.text.huggingface import maximum_length
from xrep.text.languages import canonical
from xrep.text.resources import SOURCE_FILE

AUTO = "auto"
"""The encoder type that chooses ``transformer`` if it computes the architecture, and otherwise ``transformers``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pretrained:
    """A trained encoder whose configuration was read, without its weights.

    Attributes:
        path: Folder of the transformer (``config.json``, weights): the directory or ``0_Transformer`` in it.
        tokenizer: Folder of the tokenizer that belongs to it.
        shape: Shape of the encoder; its ``type`` names the class in ``ENCODERS``.
        pooling, normalize: Settings of a sentence-transformers directory; None if the directory has none.
        projection: Dense layer between pooling and normalisation.
        prompts: Texts in front of sentences, which ``SentenceEncoder`` adds and training does not.
        languages: Languages that it was trained for; empty if they are not known, or all.
    """

    path: Path
    tokenizer: Path
    shape: EncoderSizes
    pooling: Pooling | None = None
    normalize: bool | None = None
    projection: DenseSpec | None = None
    prompts: Prompts = field(default_factory=Prompts)
    languages: list[str] = field(default_factory=list)

    @property
    def max_length(self) -> int:
        """Longest sentence in tokens that the directory names or the encoder has positions for; 512 if neither does."""
        positions = self.shape.max_positions
        return min(maximum_length(self.path) or (512 if positions == UNLIMITED else positions), positions)

    def state(self, layers: int | None = None) -> tuple[dict[str, Tensor], list[str]]:
        """Return the float32 state of the encoder's first ``layers`` layers (None: all).

        Returns:
            The state, and the names of the tensors in the directory that it does not use.

        Raises:
            UserError: Weights are missing, damaged or of another shape, tensors have no known use, or the encoder has
                fewer than ``layers`` layers.
        """
        shape = self.shape.first_layers(layers, self.path)
        return ENCODERS.load(shape.type).read_state(self.path, shape)


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
        raise UserError("a file, not the directory of a pretrained encoder", path=path, cure=f"try {path.parent}")
    name = str(name_or_path)
    get = "name a directory (xrep-data list shows encoders that it can fetch)"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise UserError("no such directory", path=path, cure=get)
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        # Newer versions refuse a folder with only the files that transformers fetched, but those are enough here.
        if partial := getattr(error, "snapshot_path", None):
            return Path(partial)
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


def read_pretrained(path: str | Path, encoder_type: str = AUTO) -> Pretrained:
    """Read the configuration of a Hugging Face or sentence-transformers directory, without the encoder's weights.

    Args:
        encoder_type: Name in ``ENCODERS`` of the class that shall compute the encoder, or ``AUTO``.

    Raises:
        UserError: It is not such a directory, a file is damaged, or xrep cannot express the architecture or a module.
    """
    root = Path(path)
    modules = read_modules(root)
    folder = root if modules is None else modules.transformer
    shape = ENCODERS.load(_chosen_type(folder) if encoder_type == AUTO else encoder_type).read_shape(folder)
    if modules is None:
        return Pretrained(path=root, tokenizer=root, shape=shape, languages=declared_languages(root))
    projection = modules.projection
    width = shape.hidden_size if projection is None else projection.weight.size(1)
    if width != shape.hidden_size:
        problem = f"the module Dense takes vectors of {width} numbers, the transformer gives {shape.hidden_size}"
        raise UserError(problem, path=root, cure="fetch the directory again")
    return Pretrained(
        path=folder,
        tokenizer=folder,
        shape=shape,
        pooling=modules.pooling,
        normalize=modules.normalize,
        projection=projection,
        prompts=read_prompts(root),
        languages=declared_languages(root),
    )


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
    path = directory / bert.CONFIG
    if not path.is_file():
        cure = "name a directory of Hugging Face or sentence-transformers"
        raise UserError(f"no {bert.CONFIG}: not the directory of a pretrained encoder", path=directory, cure=cure)
    problem = bert.obstacle(read_json(path))
    if problem is None:
        return "transformer"
    if importlib.util.find_spec("transformers") is None:
        cure = "pip install 'xrep[hf]', with which transformers computes it"
        raise UserError(problem, path=path, cure=cure)
    return "transformers"


def read_pooler(pretrained: Pretrained) -> DenseSpec:
    """Return the layer with tanh after [CLS] of a BERT or RoBERTa directory, its ``pooler``.

    In directories of SimCSE (Gao et al., 2021) it is the MLP that sentence vectors have passed through in training.

    Raises:
        UserError: There is none, or it is damaged.
    """
    weights, width = Weights(pretrained.path), pretrained.shape.hidden_size
    named, prefix = bert.named_tensors(weights)
    shapes = {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    bert.refuse(weights.path, [prefix + name for name in shapes.keys() - named.keys()], [])
    weight, bias = (bert.checked(weights, named[name], shape) for name, shape in shapes.items())
    return DenseSpec(weight, bias, "tanh")


def masked_language_head(pretrained: Pretrained) -> MaskedLanguageHead:
    """Return the masked language head of a directory (``cls.predictions`` in BERT, ``lm_head`` in RoBERTa and XLM-R).

    Raises:
        UserError: There is no head, its tensors are not as expected, or its output matrix is not the embedding matrix.
    """
    shape, weights = pretrained.shape, Weights(pretrained.path)
    whole = bert.named_tensors(weights)[0]
    is_bert = any(name.startswith("cls.predictions.") for name in whole)
    base = "cls.predictions." if is_bert else "lm_head."
    dense, norm = ("transform.dense", "transform.LayerNorm") if is_bert else ("dense", "layer_norm")
    named = {name.removeprefix(base): file for name, file in whole.items() if name.startswith(base)}
    if not named:
        problem = "no masked language head: no tensor cls.predictions.* or lm_head.*"
        cure = "give the directory of a masked language model, or train a new head"
        raise UserError(problem, path=weights.path, cure=cure)
    activation = shape.activation if is_bert else "gelu"  # RoBERTa's head uses GELU whatever the encoder uses
    sizes = (shape.hidden_size, shape.vocabulary_size)
    head = MaskedLanguageHead(*sizes, activation=activation, norm_epsilon=shape.norm_epsilon)
    bias = "bias" if "bias" in named else "decoder.bias"  # one tensor under two names; often only one is stored
    modules = {"dense": dense, "norm": norm}
    sources = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in ("weight", "bias")}
    sources["bias"] = bias
    needed = set(sources.values())
    bert.refuse(
        weights.path,
        [base + name for name in needed - named.keys()],
        [named[name] for name in named.keys() - needed - {"decoder.weight", "decoder.bias"}],
    )
    expected = head.state_dict()
    state = {ours: bert.checked(weights, named[name], expected[ours].shape) for ours, name in sources.items()}
    _check_tied(weights, named, whole[bert.WORDS], state["bias"])
    head.load_state_dict(state)
    return head


def _check_tied(weights: Weights, named: dict[str, str], words: str, bias: Tensor) -> None:
    """Refuse a head with its own output matrix, or with two different biases."""
    if "decoder.weight" in named:
        tied = torch.equal(weights[named["decoder.weight"]], weights[words])
    else:
        tied = read_json(weights.path.parent / bert.CONFIG).get("tie_word_embeddings") is not False
    if not tied:
        problem = "the masked language head has an output matrix of its own, xrep's has the embedding matrix"
        raise UserError(problem, path=weights.path, cure="train a new head")
    if "decoder.bias" in named and not torch.equal(weights[named["decoder.bias"]], bias):
        raise UserError("the masked language head has two biases", path=weights.path, cure=bert.TOGETHER)
