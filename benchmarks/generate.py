"""Beam search beside that of transformers and of CTranslate2, with the same weights and the same number of tokens.

Each gets a random model of the form of BART, whose embeddings are drawn wide so that translations vary. Short sources
have 12 tokens and their translations 12, long ones 80 and 60. CTranslate2 runs in processes of its own, because in one
process with torch it slows torch down. It is printed how often the hypotheses are those of transformers.

  python benchmarks/generate.py
"""

import argparse
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import contest, make_parser, multiplies_bfloat16, progress, say_absent, texts_of
from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch, Vocabulary, collate
from xrep.inference.ctranslate import write_ctranslate2
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.models.device import to_device
from xrep.models.translation import Translation
from xrep.nn.layers import pack_weights
from xrep.number_types import Precision
from xrep.text.sides import SIDES

PAD, UNK, BOS, EOS, MASK = range(5)
LENGTHS = {"short": (12, 12), "mixed": (40, 30), "long": (80, 60)}
"""Tokens of a source, on average, and of its translation."""
PAIRS = {
    "xrep, float32": ["transformers", "CTranslate2"],
    "xrep, bfloat16": ["transformers"],
    "xrep, int8": ["transformers", "CTranslate2, int8"],
}
BART = {
    "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.output": ["self_attn.out_proj"],
    "attention_norm": ["self_attn_layer_norm"],
    "source_attention.query": ["encoder_attn.q_proj"],
    "source_attention.key_value": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "source_attention.output": ["encoder_attn.out_proj"],
    "source_attention_norm": ["encoder_attn_layer_norm"],
    "feedforward_in": ["fc1"],
    "feedforward_out": ["fc2"],
    "feedforward_norm": ["final_layer_norm"],
}
"""The parts of a layer, and the names of their pieces in BART."""
Translate = Callable[[TokenBatch], list[list[list[int]]]]
"""Returns the hypotheses of each sentence of a batch, without special ids."""


def make_model(options: argparse.Namespace) -> Translation:
    torch.manual_seed(0)
    vocabulary = Vocabulary(size=options.words, pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS, mask_id=MASK)
    languages = {"source_languages": ["xx"], "target_languages": ["yy"]}
    text = TextSpec(vocabularies={"shared": vocabulary}, max_length=128, **languages)
    config = Translation.Config(
        layers=options.layers, decoder_layers=options.decoder_layers, hidden_size=options.hidden_size,
        heads=options.hidden_size // 64, feedforward_size=4 * options.hidden_size, max_positions=128,
        tie_embeddings="all",
    )  # fmt: skip
    sizes = Translation(config, text).architecture().items()
    model = Translation(config, text, {part: {**shape, "norm_epsilon": 1e-5} for part, shape in sizes}).eval()  # BART's
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.size(1) ** -0.5)
        words = model.encoder.token_embedding.weight
        words.normal_(std=0.12)
        for layer in model.decoder.layers:  # otherwise a word predicts itself again and again
            layer.feedforward_out.weight.mul_(8)
            layer.source_attention.output.weight.mul_(4)
        model.language_embedding.weight.copy_(words[BOS : BOS + 1])
    pack_weights(model)
    model.pack_scores()
    return model


def bart(model: Translation) -> nn.Module:
    """Return the model of transformers that has the same weights."""
    from transformers import BartConfig, BartForConditionalGeneration

    encoder, decoder = model.encoder.shape, model.decoder.shape
    config = BartConfig(
        vocab_size=encoder.vocabulary_size, d_model=encoder.hidden_size, max_position_embeddings=encoder.max_positions,
        encoder_layers=encoder.layers, encoder_attention_heads=encoder.heads, encoder_ffn_dim=encoder.feedforward_size,
        decoder_layers=decoder.layers, decoder_attention_heads=decoder.heads, decoder_ffn_dim=decoder.feedforward_size,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    words, rows = model.encoder.token_embedding.weight, torch.zeros(2, encoder.hidden_size)
    bias = torch.zeros(1, encoder.vocabulary_size)
    bias[0, [PAD, BOS, MASK]] = -1e9  # ours never writes these
    state = {"model.shared.weight": words, "lm_head.weight": words, "final_logits_bias": bias}
    for side, ours in (("model.encoder", model.encoder), ("model.decoder", model.decoder)):
        state[f"{side}.embed_tokens.weight"] = words
        # BART's positions begin at 2.
        state[f"{side}.embed_positions.weight"] = torch.cat([rows, ours.position_embedding.weight])
        state |= pieces(ours.norm, side, ["layernorm_embedding"])
        for number, layer in enumerate(ours.layers):
            for part, names in BART.items():
                if side == "model.decoder" or not part.startswith("source"):
                    state |= pieces(layer.get_submodule(part), f"{side}.layers.{number}", names)
    theirs = BartForConditionalGeneration(config).eval()
    theirs.load_state_dict(state)
    return theirs


def pieces(module: nn.Module, prefix: str, names: list[str]) -> dict[str, Tensor]:
    """Return the weight and the bias of a module, each cut into as many pieces as there are names."""
    state: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        parts = getattr(module, kind).chunk(len(names))
        state |= {f"{prefix}.{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
    return state


def ours(model: Translation, options: argparse.Namespace) -> Translate:
    # A hypothesis has one token more, the eos at its end.
    lengths = {"min_length": options.tokens, "max_length_a": 0.0, "max_length_b": options.tokens}
    how = DecodingOptions(beam=options.beam, nbest=options.beam, **lengths)

    def run(batch: TokenBatch) -> list[list[list[int]]]:
        found = search(model, batch, torch.zeros(len(batch), dtype=torch.int64), how)
        return [[each.tokens for each in hypotheses] for hypotheses in found]

    return run


def transformers(theirs: nn.Module, options: argparse.Namespace) -> Translate:
    def run(batch: TokenBatch) -> list[list[list[int]]]:
        with torch.inference_mode():
            found = theirs.generate(
                input_ids=batch.tokens, attention_mask=batch.mask.long(), do_sample=False,
                num_beams=options.beam, num_return_sequences=options.beam,
                min_new_tokens=options.tokens, max_new_tokens=options.tokens,
            )  # fmt: skip
        return found[:, 1:].unflatten(0, (len(batch), options.beam)).tolist()

    return run


def export(options: argparse.Namespace, words: list[str], folder: Path) -> None:
    """Write the model for CTranslate2, in a process of its own."""
    write_ctranslate2(make_model(options), dict.fromkeys(SIDES, words), folder, "float32")


@cache
def translator(path: str, precision: str, threads: int) -> Any:
    """Return the model of CTranslate2, which each process loads once."""
    import ctranslate2

    return ctranslate2.Translator(path, compute_type=precision, inter_threads=1, intra_threads=threads)


def translated(how: tuple[str, str, int], sentences: list[list[str]], limits: dict[str, Any]) -> list[list[list[str]]]:
    """Return the words of the hypotheses of each sentence by CTranslate2."""
    return [each.hypotheses for each in translator(*how).translate_batch(sentences, **limits)]


def ctranslate2(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Translate]:
    """Return CTranslate2 in two precisions, each in a process of its own, which ends with the stack."""
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *(f"w{i}" for i in range(5, options.words))]
    ids = {word: i for i, word in enumerate(words)}
    limits = {"num_hypotheses": options.beam, "min_decoding_length": options.tokens, "beam_size": options.beam}
    limits["max_decoding_length"] = options.tokens
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(export, options, words, folder).result()

    def translate(process: ProcessPoolExecutor, precision: str, batch: TokenBatch) -> list[list[list[int]]]:
        sides = zip(batch.tokens.tolist(), batch.host_lengths.tolist(), strict=True)
        sentences = [[words[i] for i in tokens[1 : length - 1]] for tokens, length in sides]  # it adds bos and eos
        how = str(folder), precision, torch.get_num_threads()
        found = process.submit(translated, how, sentences, limits).result()
        return [[[ids[word] for word in hypothesis] for hypothesis in each] for each in found]

    found: dict[str, Translate] = {}
    for name, precision in (("CTranslate2", "float32"), ("CTranslate2, int8", "int8")):
        process = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        found[name] = partial(translate, process, precision)
    return found


def measure(options: argparse.Namespace, kind: str, folder: Path) -> None:
    source, options.tokens = LENGTHS[kind]
    model, draw = make_model(options), np.random.default_rng(0)
    lengths = sorted(draw.integers(source // 2, source + source // 2, size=options.batch))
    sources = [draw.integers(5, options.words, size=length) for length in lengths]
    batch = collate(sources, model.source_vocabulary, 128)
    theirs = bart(model)
    contestants = {"transformers": transformers(theirs, options), "xrep, float32": ours(model, options)}
    precisions: list[Precision] = ["bfloat16", "int8"] if multiplies_bfloat16() else ["int8"]
    for precision in precisions:
        copy = make_model(options)
        to_device(copy, "cpu", precision).pack_scores()
        contestants[f"xrep, {precision}"] = ours(copy, options)
    with ExitStack() as stack:
        if find_spec("ctranslate2"):
            contestants |= ctranslate2(options, folder, stack)
        else:
            say_absent("CTranslate2", "it is not installed")
        found = contest(options, "generate", kind, contestants, PAIRS, [batch] * (options.repeats + 1)).results
    for name, hypotheses in found.items():
        pairs = zip(hypotheses, found["transformers"], strict=True)
        share = 100 * statistics.fmean(sorted(ours) == sorted(theirs) for ours, theirs in pairs)
        progress(f"{name}: the hypotheses of transformers in {share:.0f}% of the sentences")


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=6, help="layers of the encoder")
    add("--decoder-layers", type=int, default=4, help="layers of the decoder")
    add("--hidden-size", type=int, default=512, help="width of the token vectors")
    add("--words", type=int, default=16000, help="size of the vocabulary")
    add("--beam", type=int, default=5, help="hypotheses of each sentence")
    add("--batch", type=int, default=32, help="sentences in a batch")
    options = parser.parse_args()
    for kind, _, folder in texts_of(options):
        measure(options, kind, folder)


if __name__ == "__main__":
    main()
