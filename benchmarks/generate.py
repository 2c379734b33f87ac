"""Beam search beside that of transformers and of CTranslate2, with the same weights and the same number of tokens.

Each gets a random model of BART's form (6 + 4 layers, width 512, 16,000 words), whose embeddings are drawn wide so that
translations vary. Contestants take turns on the same batches, in float32 unless their names say otherwise, and
CTranslate2 is in processes of its own. The script prints target tokens a second over those of transformers' generate
with its defaults, as ratios of medians, and the share of sentences with the same hypotheses as transformers has, in any
order. "fast products" are those of torch with reduced precision where the processor has it (AMX). "products alone" is
the time of nothing but the float32 products of a decoder step, with weights in torch's order.

  pip install transformers ctranslate2
  python benchmarks/generate.py --repeats 5
  python benchmarks/generate.py --semantic-bias     what HiCTL's bias costs, in beam search and in a training step
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from harness import make_parser, progress, say_absent, take_turns, write_json
from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch, Vocabulary, collate
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.precision import fast_products, float32_precision
from xrep.models.device import to_device
from xrep.models.translation import Translation
from xrep.nn.layers import pack_weights
from xrep.number_types import Precision

PAD, UNK, BOS, EOS, MASK = range(5)
Translate = Callable[[TokenBatch], list[list[list[int]]]]
"""Returns the hypotheses of each sentence of a batch, without special ids."""


def make_model(options: argparse.Namespace) -> Translation:
    vocabulary = Vocabulary(size=options.words, pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS, mask_id=MASK)
    text = TextSpec(
        vocabularies={"shared": vocabulary}, max_length=128, source_languages=["xx"], target_languages=["yy"]
    )
    config = Translation.Config(
        layers=options.layers,
        decoder_layers=options.decoder_layers,
        hidden_size=options.hidden_size,
        heads=options.hidden_size // 64,
        feedforward_size=4 * options.hidden_size,
        max_positions=128,
        tie_embeddings="all",
        semantic_bias=options.semantic_bias,
    )
    sizes = Translation(config, text).architecture()
    sizes = {part: {**shape, "norm_epsilon": 1e-5} for part, shape in sizes.items()}  # BART's
    model = Translation(config, text, sizes).eval()
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
    pack(model)
    return model


def pack(model: Translation) -> None:
    pack_weights(model)
    model.pack_scores()


def copy_in(precision: Precision, model: Translation, options: argparse.Namespace) -> Translation:
    copy = make_model(options)
    copy.load_state_dict(model.state_dict())
    to_device(copy, "cpu", precision).pack_scores()
    return copy


def bart(model: Translation) -> nn.Module:
    """Return the model of transformers that has the same weights."""
    from transformers import BartConfig, BartForConditionalGeneration

    encoder, decoder = model.encoder.shape, model.decoder.shape
    config = BartConfig(
        vocab_size=encoder.vocabulary_size,
        d_model=encoder.hidden_size,
        encoder_layers=encoder.layers,
        decoder_layers=decoder.layers,
        encoder_attention_heads=encoder.heads,
        decoder_attention_heads=decoder.heads,
        encoder_ffn_dim=encoder.feedforward_size,
        decoder_ffn_dim=decoder.feedforward_size,
        max_position_embeddings=encoder.max_positions,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )
    theirs = BartForConditionalGeneration(config).eval()
    state = {"model.shared.weight": model.encoder.token_embedding.weight}
    for side, ours in (("encoder", model.encoder), ("decoder", model.decoder)):
        rows = torch.zeros(2, encoder.hidden_size)  # BART's positions begin at 2
        state[f"model.{side}.embed_positions.weight"] = torch.cat([rows, ours.position_embedding.weight])
        state[f"model.{side}.embed_tokens.weight"] = model.encoder.token_embedding.weight
        state |= _named(f"model.{side}.layernorm_embedding", ours.norm)
        for number, layer in enumerate(ours.layers):
            state |= _layer(f"model.{side}.layers.{number}", layer)
    state["lm_head.weight"] = model.encoder.token_embedding.weight
    bias = torch.zeros(1, encoder.vocabulary_size)
    bias[0, [PAD, BOS, MASK]] = -1e9  # ours never writes these
    state["final_logits_bias"] = bias
    theirs.load_state_dict(state)
    return theirs


def _named(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.weight": module.weight, f"{name}.bias": module.bias}


def _layer(name: str, layer: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    qkv = layer.attention.qkv
    for part, weight, bias in zip("qkv", qkv.weight.chunk(3), qkv.bias.chunk(3), strict=True):
        state |= {f"{name}.self_attn.{part}_proj.weight": weight, f"{name}.self_attn.{part}_proj.bias": bias}
    state |= _named(f"{name}.self_attn.out_proj", layer.attention.output)
    state |= _named(f"{name}.self_attn_layer_norm", layer.attention_norm)
    if hasattr(layer, "source_attention"):
        look = layer.source_attention
        state |= _named(f"{name}.encoder_attn.q_proj", look.query)
        for part, weight, bias in zip("kv", look.key_value.weight.chunk(2), look.key_value.bias.chunk(2), strict=True):
            state |= {f"{name}.encoder_attn.{part}_proj.weight": weight, f"{name}.encoder_attn.{part}_proj.bias": bias}
        state |= _named(f"{name}.encoder_attn.out_proj", look.output)
        state |= _named(f"{name}.encoder_attn_layer_norm", layer.source_attention_norm)
    state |= _named(f"{name}.fc1", layer.feedforward_in) | _named(f"{name}.fc2", layer.feedforward_out)
    return state | _named(f"{name}.final_layer_norm", layer.feedforward_norm)


def ours(model: Translation, options: argparse.Namespace) -> Translate:
    # A hypothesis has one token more, the eos at its end.
    lengths = {"min_length": options.tokens, "max_length_a": 0.0, "max_length_b": options.tokens}
    how = DecodingOptions(beam=options.beam, nbest=options.beam, **lengths)

    def run(batch: TokenBatch) -> list[list[list[int]]]:
        found = search(model, batch, torch.zeros(len(batch), dtype=torch.int64), how)
        return [[each.tokens for each in hypotheses] for hypotheses in found]

    return run


def transformers(theirs: nn.Module, options: argparse.Namespace, fast: bool) -> Translate:
    def run(batch: TokenBatch) -> list[list[list[int]]]:
        with (
            torch.inference_mode(),
            float32_precision("medium") if fast else fast_products(torch.zeros(0, dtype=torch.int8)),
        ):
            found = theirs.generate(
                input_ids=batch.tokens,
                attention_mask=batch.mask.long(),
                num_beams=options.beam,
                num_return_sequences=options.beam,
                min_new_tokens=options.tokens,
                max_new_tokens=options.tokens,
                do_sample=False,
            )
        rows = found[:, 1:].unflatten(0, (len(batch), options.beam))
        return rows.tolist()

    return run


def write_ctranslate2(theirs: nn.Module, words: list[str], folder: Path) -> None:
    """Write a model in the format of CTranslate2 to ``folder``/ct2, by a process of its own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    special = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token", "mask_token"), words, strict=False))
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "hf")
    theirs.config.normalize_before = False  # its converter asks for it
    theirs.save_pretrained(folder / "hf")
    convert = [sys.executable, "-c", "from ctranslate2.converters.transformers import main; main()"]
    subprocess.run([*convert, "--model", str(folder / "hf"), "--output_dir", str(folder / "ct2")], check=True)


@contextmanager
def ctranslate2(theirs: nn.Module, options: argparse.Namespace) -> Iterator[dict[str, Translate]]:
    """Context manager that yields CTranslate2 in two precisions, each in a process of its own.

    In one process with torch it slows torch's searches down (by 1.2 in float32 and 1.5 in int8 on one machine).

    Raises:
        ImportError: It is not installed.
    """
    if not find_spec("ctranslate2"):
        raise ImportError("No module named 'ctranslate2'")
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *(f"w{i}" for i in range(5, options.words))]
    ids = {word: i for i, word in enumerate(words)}
    limits = {"num_hypotheses": options.beam, "min_decoding_length": options.tokens}
    limits |= {"beam_size": options.beam, "max_decoding_length": options.tokens}

    def translate(process: ProcessPoolExecutor, batch: TokenBatch) -> list[list[list[int]]]:
        sides = zip(batch.tokens.tolist(), batch.host_lengths.tolist(), strict=True)
        sentences = [[words[i] for i in tokens[:length]] for tokens, length in sides]
        found = process.submit(Translator.run, sentences, limits).result()
        return [[[ids[word] for word in hypothesis] for hypothesis in each] for each in found]

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_ctranslate2(theirs, words, folder)
        contestants: dict[str, Translate] = {}
        for name, precision in (("CTranslate2", "float32"), ("CTranslate2, int8", "int8")):
            start = str(folder / "ct2"), precision, torch.get_num_threads()
            context = get_context("spawn")
            process = ProcessPoolExecutor(1, mp_context=context, initializer=Translator.start, initargs=start)
            contestants[name] = partial(translate, stack.enter_context(process))
        yield contestants


class Translator:
    """The translator of CTranslate2 in a process of its own."""

    loaded: ClassVar[Any]

    @classmethod
    def start(cls, path: str, precision: str, threads: int) -> None:
        import ctranslate2

        cls.loaded = ctranslate2.Translator(path, compute_type=precision, inter_threads=1, intra_threads=threads)

    @classmethod
    def run(cls, sentences: list[list[str]], limits: dict[str, int]) -> list[list[list[str]]]:
        """Return the words of the hypotheses of each sentence."""
        unused = [["<pad>"], ["<s>"], ["<mask>"]]
        found = cls.loaded.translate_batch(sentences, suppress_sequences=unused, **limits)
        return [each.hypotheses for each in found]


def products_alone(model: Translation, options: argparse.Namespace) -> Translate:
    """Return the matrix products of the decoder's steps and of the vocabulary, with their numbers of rows."""
    weights = [m.weight for layer in model.decoder.layers for m in layer.modules() if isinstance(m, nn.Linear)]
    skipped = {id(layer.source_attention.key_value.weight) for layer in model.decoder.layers}
    weights = [weight for weight in weights if id(weight) not in skipped] + [model.encoder.token_embedding.weight]

    def run(batch: TokenBatch) -> list[list[list[int]]]:
        rows = {size: torch.randn(len(batch) * options.beam, size) for size in {w.size(1) for w in weights}}
        with torch.inference_mode(), fast_products(weights[0]):
            for _ in range(options.tokens):
                for weight in weights:
                    nn.functional.linear(rows[weight.size(1)], weight)
        return []

    return run


def training_step(model: Translation, options: argparse.Namespace) -> Translate:
    """Return the loss and the gradients of a batch whose targets are as long as the translations."""
    draw = np.random.default_rng(1)
    targets = [draw.integers(5, options.words, size=options.tokens) for _ in range(options.batch)]
    target = collate(targets, model.target_vocabulary, 128)

    def run(batch: TokenBatch) -> list[list[list[int]]]:
        found = model.predict(batch, target, torch.zeros(len(batch), dtype=torch.int64))
        loss = linear_cross_entropy(
            found.vectors, found.matrix, found.labels, bias=found.bias, groups=found.sentences, label_smoothing=0.1
        )
        model.zero_grad()
        loss.loss.backward()
        return []

    return run


def same(found: list[list[list[int]]], expected: list[list[list[int]]]) -> float:
    """Return the share of sentences with the same hypotheses, in any order, in percent."""
    pairs = zip(found, expected, strict=True)
    return 100 * statistics.fmean(sorted(map(tuple, a)) == sorted(map(tuple, b)) for a, b in pairs)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=6, help="layers of the encoder")
    add("--decoder-layers", type=int, default=4, help="layers of the decoder")
    add("--hidden-size", type=int, default=512, help="width of the token vectors")
    add("--words", type=int, default=16000, help="size of the vocabulary")
    add("--beam", type=int, default=5, help="hypotheses of each sentence")
    add("--batch", type=int, default=32, help="sentences in a batch")
    add("--tokens", type=int, default=50, help="new tokens of each sentence")
    add("--repeats", type=int, default=5, help="rounds after the warm-up")
    add("--semantic-bias", action="store_true", help="compare ours with and without HiCTL's bias, and no others")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = make_model(options)
    draw = np.random.default_rng(0)
    vocabulary = model.source_vocabulary
    sources = [draw.integers(5, options.words, size=n) for n in draw.integers(10, 40, size=options.batch)]
    batch = collate(sorted(sources, key=len), vocabulary, 128)
    rows = []
    with ExitStack() as stack:
        contestants = {"xrep": ours(model, options)}
        if options.semantic_bias:
            plain = make_model(argparse.Namespace(**{**vars(options), "semantic_bias": False}))
            rows += report({"plain": ours(plain, options), "semantic bias": contestants["xrep"]}, batch, options)
            contestants = {"plain, training": training_step(plain, options)}
            contestants["semantic bias, training"] = training_step(model, options)
        else:
            theirs = bart(model)
            contestants = {
                "transformers": transformers(theirs, options, fast=False),
                "transformers, fast products": transformers(theirs, options, fast=True),
                **contestants,
                "xrep, bfloat16": ours(copy_in("bfloat16", model, options), options),
                "xrep, int8": ours(copy_in("int8", model, options), options),
                "products alone": products_alone(model, options),
            }
            try:
                contestants |= stack.enter_context(ctranslate2(theirs, options))
            except ImportError as error:
                say_absent("CTranslate2", error)
        rows += report(contestants, batch, options)
    write_json(options.json, {"threads": torch.get_num_threads(), "options": vars(options), "rows": rows})


def report(contestants: dict[str, Translate], batch: TokenBatch, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print and return the speed of each contestant over that of the first, and its share of the same hypotheses."""
    turns = take_turns(contestants, [batch] * (options.repeats + 1))
    medians, outputs = turns.medians(), turns.results
    first, *_ = contestants
    if outputs[first]:
        different = len({tuple(tokens) for each in outputs[first] for tokens in each})
        words = len({word for each in outputs[first] for tokens in each for word in tokens})
        progress(f"{torch.get_num_threads()} threads; {different} different hypotheses of {words} words")
    rows = []
    for name, taken in medians.items():
        share = same(outputs[name], outputs[first]) if outputs[name] else None
        rows.append({"name": name, "speed": medians[first] / taken, "same": share})
        agreement = "" if share is None else f"   same hypotheses {share:5.1f}%"
        print(f"{name:30} {rows[-1]['speed']:5.2f}x{agreement}")
    return rows


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
