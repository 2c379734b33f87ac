"""Decoders that give sentence vectors: those of sentence-transformers, however texts are padded, and after training."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.nn.small_models import edit_json
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.runs import compose_run, make_trainer
from xrep.config import RunConfig
from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.pretrained import read_pretrained
from xrep.models.translation import Translation
from xrep.text.sides import open_tokenizer
from xrep.training.run import train

transformers = pytest.importorskip("transformers", reason="it is in the extra 'hf'")
library = pytest.importorskip("sentence_transformers", reason="compares with the sentence-transformers library")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.slow  # its models take seconds to import

END, POSITIONS = "<|endoftext|>", 64
PROMPTS = {"query": "Instruct: Find the translation\nQuery:", "document": ""}
SENTENCES = [*sentence_pairs(3)[2], "Wo ist der Bahnhof?  ÜBERALL 東京", "a", "", "the old house " * 30]
FAMILIES = ("Qwen3", "Mistral", "Llama", "Gemma3Text")


def write_tokenizer(directory: Path, before: str = "", behind: str = END) -> None:
    """Write a tokenizer of bytes and what is frequent in tests/support/corpus.py, in which no text is unknown."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special, letters = [END, "<|im_end|>", "<bos>"], tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=letters)
    tokenizer.train_from_iterator([text for pair in sentence_pairs(200) for text in pair], trainer)
    ids = [(token, special.index(token)) for token in (before, behind) if token]
    template = " ".join(filter(None, [before, "$A", behind]))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=ids)
    given = {"pad_token": END, "eos_token": "<|im_end|>", "padding_side": "left", "model_max_length": POSITIONS}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given).save_pretrained(directory)


def write_decoder(directory: Path, family: str, pooling: str = "lasttoken", **around: str) -> Path:
    """Write a model of random weights as sentence-transformers does; Gemma's reads in both directions, and has two
    dense layers behind the pooling."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 360, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 12, "max_position_embeddings": POSITIONS}
    sizes |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": 0}
    dense: list[Any] = []
    if family == "Gemma3Text":
        layers = ["sliding_attention", "full_attention"]
        sizes |= {"use_bidirectional_attention": True, "sliding_window": 4, "layer_types": layers}
        dense = [Dense(32, 40, bias=False, activation_function=torch.nn.Identity()), Dense(40, 24)]
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**sizes))
    for parameter in model.parameters():  # larger than at initialisation, so that an error is visible
        parameter.data.mul_(3)
    model.save_pretrained(directory / "transformer")
    write_tokenizer(directory / "transformer", **around)
    modules = [Transformer(str(directory / "transformer")), Pooling(32, pooling), *dense, Normalize()]
    library.SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").save(str(directory / "whole"))
    return directory / "whole"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"), "Qwen3")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("raw"), train=200, valid=20, test=5)


@pytest.mark.parametrize(
    "around", [{}, {"before": "<bos>"}, {"behind": ""}, {"before": "<bos>", "behind": ""}], ids=str
)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, family: str, around: dict[str, str]) -> None:
    """With and without a token before and behind a text, padded on either side, alone and among others."""
    path = write_decoder(tmp_path, family, "mean" if family == "Gemma3Text" else "lasttoken", **around)
    ours, theirs = SentenceEncoder.load(path, device="cpu"), library.SentenceTransformer(str(path), device="cpu")
    assert ours.model.pooling == {"shared": "mean" if family == "Gemma3Text" else "last"}
    for side in ("left", "right"):
        theirs.tokenizer.padding_side = side
        for name in (None, "query", "document"):
            expected = theirs.encode(SENTENCES, prompt_name=name)
            np.testing.assert_allclose(ours.encode(SENTENCES, prompt_name=name), expected, atol=1e-5)
    alone = np.stack([ours.encode(sentence) for sentence in SENTENCES])
    np.testing.assert_allclose(alone, ours.encode(SENTENCES), atol=1e-5)


def test_a_decoder_without_modules_is_pooled_at_the_last_token(decoder: Path, tmp_path: Path) -> None:
    """As in sentence-transformers, if its configuration calls it a causal language model. Weights may be bfloat16."""
    path = shutil.copytree(decoder.parent / "transformer", tmp_path / "m")
    assert read_pretrained(path).pooling is None
    transformers.Qwen3ForCausalLM.from_pretrained(path, dtype=torch.bfloat16).save_pretrained(path)
    expected = library.SentenceTransformer(str(path), device="cpu", model_kwargs={"dtype": torch.float32})
    vectors = SentenceEncoder.load(path, device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(vectors, expected.encode(SENTENCES, normalize_embeddings=True), atol=1e-5)
    edit_json(path / "config.json", is_causal=False)
    assert read_pretrained(path).pooling is None


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    """The file of e5-mistral's tokenizer puts no end token behind a text, but its ``add_eos_token`` asks for one."""
    whole, path = (write_decoder(tmp_path / end, "Mistral", before="<bos>", behind=end) for end in (END, ""))
    edit_json(path / "tokenizer_config.json", add_bos_token=True, add_eos_token=True, eos_token=END)
    expected = SentenceEncoder.load(whole, device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(SentenceEncoder.load(path, device="cpu").encode(SENTENCES), expected, atol=1e-6)
    export_path(path, tmp_path / "out", "sentence-transformers")  # what is put around a text is in the file there
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(theirs.encode(SENTENCES), expected, atol=1e-5)


def test_prompts_that_are_not_pooled(decoder: Path, tmp_path: Path) -> None:
    """The last token is not one of the prompt; a mean without the prompt is refused."""
    path = shutil.copytree(decoder, tmp_path / "m")
    edit_json(path / "1_Pooling" / "config.json", include_prompt=False)
    expected = library.SentenceTransformer(str(path), device="cpu").encode(SENTENCES[:3], prompt_name="query")
    vectors = SentenceEncoder.load(path, device="cpu").encode(SENTENCES[:3], prompt_name="query")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    edit_json(path / "1_Pooling" / "config.json", pooling_mode="mean")
    with pytest.raises(UserError, match="the module Pooling has include_prompt False, xrep reads True alone"):
        read_pretrained(path)


def test_what_is_refused(decoder: Path, tmp_path: Path, cli: Commands) -> None:
    """A tokenizer without padding, an activation between dense layers, and a translation that would never end."""
    write_lines(tmp_path / "de.txt", ["das Haus"])
    path = shutil.copytree(decoder, tmp_path / "m")
    edit_json(path / "tokenizer_config.json", pad_token=None)
    result = cli("encode", "--device", "cpu", "--path", path, "--input", "de.txt", "--output", "v.npy")
    cure = "name one of its pieces as pad_token in special_tokens_map.json, such as <|im_end|>"
    assert result.code == 2 and result.err.count("\n") == 1, result.err
    assert f"no pad token: the vocabulary has no [PAD] or <pad>; {cure}" in result.err
    (path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|im_end|>"}))
    assert open_tokenizer(path).pad_id == 1

    dense = write_decoder(tmp_path / "g", "Gemma3Text", "mean", behind="") / "2_Dense"
    edit_json(dense / "config.json", activation_function="torch.nn.modules.activation.Tanh")
    with pytest.raises(UserError, match="two modules Dense, and the activation tanh between them"):
        read_pretrained(dense.parent)
    vocabularies = {"shared": Vocabulary.of(open_tokenizer(dense.parent))}
    text = TextSpec(vocabularies=vocabularies, max_length=9, source_languages=["de"], target_languages=["en"])
    with pytest.raises(UserError, match="puts no token behind a sentence, which is needed here"):
        Translation(Translation.Config(layers=1), text)


def run_of(decoder: Path, raw: Path, folder: Path, **more: Any) -> RunConfig:
    given = {"criterion": "translation_ranking", "encoder": decoder, "lora_rank": 4, "lora_alpha": 8, "max_length": 40}
    given |= {"attention_dropout": 0, "batch_size": 24, "warmup_steps": 0, "lr": 0.02, "lr_scheduler": "constant"}
    return compose_run(raw, folder, **given, **more)


def gradients_of(run: RunConfig, folder: Path) -> list[torch.Tensor]:
    """Return the gradients of LoRA's factors, which are those of all linear layers, in a first step."""
    trainer = make_trainer(run, folder)
    lora, found = trainer.step.update.lora, list[torch.Tensor]()
    assert lora is not None and {name.split(".")[-2] for name in lora.targets} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    factors = [*lora.a, *lora.b]
    with lora.changing(), torch.no_grad():
        for number, factor in enumerate(factors):
            factor.normal_(std=0.1, generator=torch.Generator().manual_seed(number))
    hook = trainer.step.update.optimizer.register_step_pre_hook
    hook(
        lambda *_: found.__setitem__(slice(None), [factor.grad.clone() for factor in factors])
    )  # of a class and its base
    trainer.train()
    return found


def test_gradients_in_pieces_are_those_of_the_whole_batch(decoder: Path, raw: Path, tmp_path: Path) -> None:
    whole, pieces = (
        gradients_of(run_of(decoder, raw, tmp_path, max_steps=1, clip_norm=0, **options), tmp_path / str(number))
        for number, options in enumerate(({}, {"micro_batch": 7}))
    )
    assert len(whole) == 28
    for one, other in zip(whole, pieces, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5 * float(one.abs().max()))


def test_a_decoder_is_trained_with_prompts_and_exported(decoder: Path, raw: Path, tmp_path: Path) -> None:
    prompts = {"source_prompt": PROMPTS["query"], "target_prompt": "Text: "}
    options = {"max_steps": 30, "micro_batch": 8, "log_every": 1, "activation_checkpointing": None, **prompts}
    run = train(run_of(decoder, raw, tmp_path / "run", **options)).directory
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    ours = SentenceEncoder.load(run / "last", device="cpu")
    assert ours.prompts == {"query": PROMPTS["query"], "document": "Text: "} and ours.default_prompt_name is None
    assert SentenceEncoder(ours.model, ours.tokenizers, ours.text).prompts == ours.prompts  # as in a validation
    export_path(run / "last", tmp_path / "out", "sentence-transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    for name in (None, "query", "document"):
        expected = theirs.encode(SENTENCES, prompt_name=name)
        np.testing.assert_allclose(ours.encode(SENTENCES, prompt_name=name), expected, atol=1e-5)
        vectors = SentenceEncoder.load(tmp_path / "out", device="cpu").encode(SENTENCES, prompt_name=name)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
