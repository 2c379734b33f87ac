"""Translators for CTranslate2, in float32 or int8."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.model_card import README, write_card
from xrep.models.directory import Checkpoint, fingerprint, load_model, open_checkpoint
from xrep.models.kinds import expect, model_class
from xrep.models.model import TranslationModel
from xrep.models.translation import Translation
from xrep.nn.encoder import TransformerEncoder
from xrep.text.sides import SIDES, Tokenizers, open_tokenizers, save_tokenizers, tokenizer_of
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer

SENTENCES, TOKENS, SAME = 32, 24, 0.9
"""Number of random sentences that are translated for the comparison, the most tokens that they and their translations
have, and the least share of the same translations: sometimes two words are equally likely."""
NEVER = -1e9
"""Bias of the words that no translation has."""
_Precision = Literal["float32", "int8"]
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh"}
_READERS = {
    True: ("sentencepiece.SentencePieceProcessor", '.encode("...", out_type=str)', "{}"),
    False: ("tokenizers.Tokenizer.from_file", '.encode("...", add_special_tokens=False).tokens',
            "[target.token_to_id(token) for token in {}]"),
}  # fmt: skip
"""By whether SentencePiece runs a tokenizer: how it is opened, how it makes tokens, and what it decodes of tokens."""


def export_ctranslate2(
    path: str | Path, checkpoint: Checkpoint | None, directory: Path, precision: _Precision, **facts: Any
) -> dict[Path, str]:
    """Write the translator at ``path``, or the mean over several checkpoints of a run there, with its tokenizers and a
    card. Returns the directory with a line of Python that opens it, and raises UserError as ``write_ctranslate2``, or
    if this is no translator."""
    expect(path if checkpoint is None else checkpoint.path, TranslationModel)
    checkpoint = checkpoint or open_checkpoint(path)
    if not issubclass(model_class(checkpoint.path) or Translation, Translation):
        raise UserError("CTranslate2 cannot compute its model", path=path, cure="translate with xrep-generate")
    model, text, tokenizers = load_model(checkpoint).eval(), checkpoint.text, open_tokenizers(checkpoint.tokenizer)
    source, target = (", ".join(languages) for languages in (text.source_languages, text.target_languages))
    facts |= {"name": directory.name, "path": checkpoint.path, "fingerprint": partial(fingerprint, model, text)}
    facts["about"] = f"A translator from {source} into {target}, trained with xrep, for CTranslate2 in {precision}."
    with naming(directory), directory_aside(directory) as aside:
        lines, kind = usage(model, tokenizers, str(directory)), ("ctranslate2", "translation")
        write_card(aside, kind, text.languages, **facts, lines=lines)
        save_tokenizers(tokenizers, aside)
        write_ctranslate2(model, {side: pieces_of(tokenizer_of(tokenizers, side)) for side in SIDES}, aside, precision)
    return {directory: f"import ctranslate2; ctranslate2.Translator({json.dumps(str(directory))})  # see {README}"}


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id, as the library that runs the tokenizer writes the subwords of a sentence."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.pieces()
    library = importlib.import_module("tokenizers").Tokenizer.from_buffer(tokenizer.model)
    return [library.id_to_token(i) or f"<unused {i}>" for i in range(tokenizer.vocabulary_size)]


def write_ctranslate2(
    model: Translation, pieces: Mapping[str, list[str]], directory: Path, precision: _Precision
) -> None:
    """Write a translator into a directory, and compare its translations in float32, greedy and by beam search.

    The target vocabulary has a token for each target language behind its words (``language_token``), with which a
    translation begins in the place of bos. CTranslate2 adds it, unless there are several, and the special tokens of a
    source. Words that are never written have no share of the probability; in xrep they have one, about ε / V after
    training with label smoothing ε. In int8, the quantisation of CTranslate2 changes some translations.

    Args:
        pieces: The subwords of ``source`` and ``target``, as ``pieces_of`` returns them.

    Raises:
        UserError: CTranslate2 is not installed, cannot compute this model, or finds other translations.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        raise UserError("ctranslate2 is not installed", cure="pip install 'xrep[ctranslate2]'")
    library, names = importlib.import_module("ctranslate2"), {side: [*own] for side, own in pieces.items()}
    here, there = asdict(model.source_vocabulary), asdict(model.target_vocabulary)
    for role in ("unk_id", "bos_id", "eos_id"):  # one name serves both sides
        if here[role] is not None and there[role] is not None:
            names["source"][here[role]] = names["target"][there[role]]
    languages = [language_token(language) for language in model.target_languages]
    names["target"] += languages
    names["source"] += languages if model.config.tie_embeddings == "all" else []  # so that one table serves both
    problem = None
    if model.semantic_scale is not None:
        problem = "CTranslate2 has no logits that depend on the source sentence, which its `semantic_bias` adds"
    elif not isinstance(model.encoder, TransformerEncoder):
        problem = f"CTranslate2 cannot compute its encoder of type {model.encoder.shape.type}, only type transformer"
    elif any(len({*own}) < len(own) for own in names.values()):
        problem = f"CTranslate2 needs a name for each subword, and two have the same, or that of {languages[0]}"
    if problem:
        raise UserError(problem, cure="translate with xrep-generate")
    for kind in dict.fromkeys(["float32", precision]):
        with torch.no_grad():
            spec = _specification(library.specs, model, names)
            spec.optimize(quantization=kind)
        spec.save(str(directory))
        if kind == "float32":
            _compare(library.Translator(str(directory), intra_threads=torch.get_num_threads()), model, names)


def language_token(language: str) -> str:
    """Return the token of the target vocabulary with which translations into a language begin."""
    return f"<2{language}>"


def usage(model: Translation, tokenizers: Tokenizers, address: str) -> list[str]:
    """Return lines of Python that translate a sentence, with the limits of ``Translator``, from a directory that also
    has the tokenizers."""
    own = {side: tokenizer_of(tokenizers, side) for side in SIDES}
    source, target = (_READERS[isinstance(own[side], SentencePieceTokenizer)] for side in SIDES)
    files = [Path(address, side if side in tokenizers else "", own[side].model_file) for side in SIDES]
    languages = [language_token(language) for language in model.target_languages]
    prefix = f", [[{json.dumps(languages[0])}]]" if len(languages) > 1 else ""
    limits = f"max_input_length={model.text.max_length}, max_decoding_length={model.max_target_length - 1}"
    return [
        "import ctranslate2",
        *sorted({f"import {reader[0].partition('.')[0]}" for reader in (source, target)}),
        "",
        f"translator = ctranslate2.Translator({json.dumps(address)})",
        *(f"{side} = {_READERS[isinstance(own[side], SentencePieceTokenizer)][0]}({json.dumps(str(file))})"
          for side, file in zip(SIDES, files, strict=True)),
        f"(found,) = translator.translate_batch([source{source[1]}]{prefix}, beam_size=5, {limits})",
        f"print(target.decode({target[2].format('found.hypotheses[0]')}))",
    ]  # fmt: skip


def _specification(specs: Any, model: Translation, names: dict[str, list[str]]) -> Any:
    """Return the model with its vocabularies as CTranslate2 describes it."""
    encoder, decoder, words = model.encoder, model.decoder, model.target_vocabulary
    assert isinstance(encoder, TransformerEncoder)
    sides = []
    for part, kind in ((encoder, specs.TransformerEncoderSpec), (decoder, specs.TransformerDecoderSpec)):
        shape, pre = part.shape, part.norm_first
        activation = specs.Activation[_ACTIVATIONS[shape.activation]]
        side = kind(shape.layers, shape.heads, pre_norm=pre, activation=activation, layernorm_embedding=not pre)
        side.scale_embeddings = False
        _copy(part.norm, side.layer_norm if pre else side.layernorm_embedding)
        for ours, theirs in zip(part.layers, side.layer, strict=True):
            _copy(ours.attention.qkv, theirs.self_attention.linear[0])
            _copy(ours.attention.output, theirs.self_attention.linear[1])
            _copy(ours.attention_norm, theirs.self_attention.layer_norm)
            if part is decoder:
                for place, name in enumerate(("query", "key_value", "output")):
                    _copy(getattr(ours.source_attention, name), theirs.attention.linear[place])
                _copy(ours.source_attention_norm, theirs.attention.layer_norm)
            _copy(ours.feedforward_in, theirs.ffn.linear_0)
            _copy(ours.feedforward_out, theirs.ffn.linear_1)
            _copy(ours.feedforward_norm, theirs.ffn.layer_norm)
        sides.append(side)
    table, scores = (torch.cat([own, model.language_embedding.weight]) for own in (model._words, model._scores))
    read = encoder.token_embedding.weight[: model.source_vocabulary.size]
    sides[0].embeddings[0].weight = table if len(names["source"]) > len(read) else read
    types = 0 if encoder.type_embedding is None else encoder.type_embedding.weight[0]
    sides[0].position_encodings.encodings = encoder.position_embedding.weight[encoder.shape.position_offset :] + types
    sides[1].position_encodings.encodings = decoder.position_embedding.weight
    sides[1].embeddings.weight, sides[1].projection.weight = table, scores
    bias = sides[1].projection.bias = torch.zeros(len(table))
    bias[[*words.unwritten, *range(words.size, len(table))]] = NEVER
    spec, bos = specs.TransformerSpec(*sides), model.source_vocabulary.bos_id
    spec.config.unk_token, spec.config.eos_token = names["target"][words.unk_id], names["target"][words.end]
    spec.config.bos_token = spec.config.eos_token if bos is None else names["source"][bos]
    spec.config.add_source_bos = bos is not None
    spec.config.add_source_eos = model.source_vocabulary.eos_id is not None
    spec.config.decoder_start_token = names["target"][-1] if len(model.target_languages) == 1 else None
    spec.config.layer_norm_epsilon = encoder.shape.norm_epsilon
    spec.register_source_vocabulary(names["source"])
    spec.register_target_vocabulary(names["target"])
    spec.validate()
    return spec


def _copy(module: Any, spec: Any) -> None:
    """Set the weights of a linear layer or of a normalisation."""
    weight, bias = ("gamma", "beta") if isinstance(module, nn.LayerNorm) else ("weight", "bias")
    setattr(spec, weight, module.weight)
    setattr(spec, bias, module.bias)


def _compare(translator: Any, model: Translation, names: dict[str, list[str]]) -> None:
    """Raise UserError if CTranslate2 and xrep differ in their translations of random sentences."""
    draw, words, most = np.random.default_rng(0), model.source_vocabulary, model.text.max_length
    ordinary = np.setdiff1d(np.arange(words.size), words.special_ids)
    lengths = draw.integers(1, min(TOKENS, most - words.special_count), SENTENCES, endpoint=True)
    sources, longest = [draw.choice(ordinary, length) for length in lengths], min(TOKENS, model.max_target_length - 1)
    targets = torch.from_numpy(draw.integers(0, len(model.target_languages), SENTENCES))
    prefixes = [[language_token(model.target_languages[i])] for i in targets.tolist()]
    tokens = [[names["source"][i] for i in source] for source in sources]
    given = (tokens, prefixes) if len(model.target_languages) > 1 else (tokens,)
    searched, never = copy.copy(model), torch.tensor(model.target_vocabulary.unwritten, dtype=torch.int64)
    searched.score = lambda states: model.score(states).index_fill_(2, never, -torch.inf)
    for beam in (1, 4):
        limits = {"beam_size": beam, "max_decoding_length": longest, "min_decoding_length": 0}
        theirs = [found.hypotheses[0] for found in translator.translate_batch(*given, **limits)]
        options = DecodingOptions(beam=beam, max_length_a=0.0, max_length_b=longest)
        found = search(searched, collate(sources, words, most), targets, options)
        ours = [[names["target"][i] for i in best.tokens] for best, *_ in found]
        # Where beam search is cut off, the choice differs, because only xrep adds the probability of eos there.
        ended = [beam == 1 or max(map(len, pair)) < longest for pair in zip(ours, theirs, strict=True)]
        same = [ours[row] == theirs[row] for row in np.flatnonzero(ended)]
        if sum(same) < SAME * len(same):
            problem = f"CTranslate2 finds other translations in {len(same) - sum(same)} of {len(same)} random sentences"
            raise UserError(problem, cure="translate with xrep-generate, and report it with what xrep doctor prints")
