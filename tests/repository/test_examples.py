"""Every shipped recipe is a valid configuration."""

import re
from pathlib import Path

import pytest

from tests.repository.test_docs import check_command
from xrep.config import read_recipe, recipe_names, runs_of
from xrep.config.values import strip

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_composes(name):
    runs = runs_of([(name, read_recipe(name))])
    # What a recipe learns does not depend on the clock: a slow or busy machine must not stop earlier.
    assert [run.configs["trainer"].max_minutes for run in runs] == [None] * len(runs)


@pytest.mark.parametrize(
    "readme", sorted(ROOT.glob("examples/*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_the_commands_of_a_readme_parse(readme, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^ *(?:xrep-|torchrun ).*", text, flags=re.MULTILINE)
    assert commands
    for command in commands:
        check_command(re.sub(r" \$(pairs|change)\b", "", command))  # they stand for options


def test_recipes_do_not_share_a_directory():
    """Recipes can run one after the other, because none finds the run of another in its directory."""
    courses = [runs_of([(name, read_recipe(name))]) for name in recipe_names()]
    directories = [run.directory for course in courses for run in course]
    assert len(set(directories)) == len(directories)


def test_the_recipe_with_nli_has_the_values_of_appendix_b():
    both, paper = (read_recipe(f"moco_bert/{name}") for name in ("nli", "en-zh"))
    shared = {key: value for key, value in paper.items() if key.startswith(("task.", "criterion."))}
    moco, nli = strip(both, "parts.moco."), strip(both, "parts.nli.")
    assert {key: moco[key] for key in shared} == shared
    assert nli["weight"] == 0.1 and 4 * nli["task.batch_size"] == 128
    options = nli["criterion.head"], nli["criterion.head_size"], nli["criterion.scale_vectors"]
    assert options == ("mlp", 256, False)


FROZEN = {"criterion.learnable_temperature": True, "task.batch_size": 200, "optimizer.lr": 5e-5}
NLI = {"optimizer.lr": 1e-5, "criterion.temperature": 0.05}
PUBLISHED = [
    ("moco_bert/en-zh", 0, {
        "criterion.queue_size": 409600, "criterion.temperature": 0.04, "criterion.momentum": 0.999,
        "optimizer.lr": 4e-5, "optimizer.weight_decay": 1e-4, "lr_scheduler.warmup_steps": 400,
        "trainer.max_epochs": 15, "trainer.clip_norm": 10, "task.batch_size": 256,
        "model.dropout": 0.1, "model.pooling": "mean",
    }),
    ("frozen_source/zh-en", 0, {**FROZEN, "criterion.queue_size": 200_000}),
    ("frozen_source/zh-en", 1, NLI),
    ("frozen_source/zh-en", 2, {
        **FROZEN, "task.batch_size": 400, "optimizer.lr": 2e-4, "criterion.queue_size": 10_000,
        "model.source_encoder": "runs/frozen_source/zh-en/nli/best/source",
    }),
    ("frozen_source/zh-en", 3, {**NLI, "task.batch_size": 128}),
    ("frozen_source/nli", 0, {**NLI, "task.batch_size": 128}),
    ("hictl/hictl", 0, {
        "optimizer.lr": 2.5e-4, "optimizer.betas": [0.9, 0.98], "model.projection_size": 768,
        "trainer.max_steps": 200_000,
    }),
    ("hictl/hictl_large", 0, {
        "optimizer.lr": 1e-4, "optimizer.betas": [0.9, 0.999], "model.projection_size": 1024,
        "trainer.max_steps": 200_000,
    }),
    ("hictl/nmt_iwslt14_de-en", 0, {"trainer.max_steps": 100_000, "trainer.freeze": ["encoder", "semantic_scale"]}),
    ("hictl/nmt_wmt14_en-de", 1, {"model.decoder_layers": 6, "validation.beam": 4, "validation.lenpen": 0.6}),
    ("cmlm/cmlm-br", 0, {"trainer.max_steps": 1_500_000}),
    ("cmlm/cmlm-cmlm+br", 1, {"trainer.max_steps": 1_000_000}),
    ("labse/labse", 1, {
        "criterion.margin": 0.3, "task.batch_size": 4096 // 8, "criterion.cross_rank_negatives": True,
        "criterion.directions": "both", "model.pooling": "cls", "model.layers": 12,
    }),
    ("e5/e5", 0, {
        "criterion.temperature": 0.01, "task.batch_size": 32768 // 8, "trainer.max_steps": 30_000,
        "task.batch_by": "corpus", "model.pooling": "mean",
    }),
    ("cmlm/english", 0, {
        "optimizer.lr": 1e-3, "optimizer.betas": [0.9, 0.999], "lr_scheduler.warmup_steps": 10_000,
        "trainer.max_steps": 1_000_000, "task.batch_size": 2048 // 8, "task.max_length": 256, "task.units": "adjacent",
        "criterion.projections": 15, "criterion.mask_rate": 80 / 256,
    }),
]  # fmt: skip
"""Recipe, number of its stage, and its values in table 9, table 6 (and section 4.2.3), table 9 and section 4 of the
papers."""


@pytest.mark.parametrize(("recipe", "stage", "published"), PUBLISHED)
def test_recipes_have_the_values_of_their_papers(recipe, stage, published):
    run = runs_of([("", read_recipe(recipe))])[stage]
    parts = {name: name.split(".") for name in published}
    assert {name: getattr(run.configs[part], option) for name, (part, option) in parts.items()} == published


def test_the_source_of_a_frozen_source_starts_from_the_first_stage():
    _, nli, last, _ = runs_of([("", read_recipe("frozen_source/zh-en"))])
    assert last.init is None and nli.init == "runs/frozen_source/zh-en/A/best"


def test_an_encoder_under_a_fresh_decoder_has_the_papers_rate():
    for name in ("nmt_iwslt14_de-en", "nmt_wmt14_en-de", "nmt_pair"):
        for run in runs_of([("", read_recipe(f"hictl/{name}"))]):
            (multiplier,) = run.configs["optimizer"].lr_multipliers
            assert run.configs["optimizer"].lr * float(multiplier.rpartition("=")[2]) == pytest.approx(2e-5, rel=0.01)
