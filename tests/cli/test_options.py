"""The command line of xrep-train."""

import pytest

from xrep.config import runs_of, to_yaml
from xrep.config.resolve import merged_layers, stages_of
from xrep.config.values import strip
from xrep.errors import ConfigError, UserError
from xrep.registry import CRITERIA
from xrep_cli.command import naming_options
from xrep_cli.train_options import parse, train_parser

CHOSEN = ["--task", "bitext", "--criterion", "dual_moco"]


def help_text(*arguments):
    """Return what --help prints, in lines of at most 120 characters."""
    line = parse(arguments)
    values, command = merged_layers(line.layers)
    return train_parser(line.fields, stages_of(values, command)).format_help()


def values(*arguments):
    line = parse(arguments)
    return runs_of(line.layers, line.problems)[0].values


def problems(*arguments):
    line = parse(arguments)
    with pytest.raises(ConfigError) as error:
        runs_of(line.layers, line.problems)
    return error.value.problems


def test_three_spellings(tmp_path):
    (tmp_path / "c.yaml").write_text("task: bitext\ncriterion: {name: dual_moco, queue_size: 512}\n")
    given = (
        "data/ --task bitext --criterion dual_moco --queue-size 512",
        "data/ --task bitext --criterion dual_moco --queue_size=512",
        "task.data=data/ --task bitext --criterion dual_moco criterion.queue_size=512",
        "--data data/ task=bitext criterion=dual_moco --criterion.queue-size 512",
        "data/ task.name=bitext criterion.name=dual_moco --queue-size=512",
        f"--config {tmp_path / 'c.yaml'} data/",
        f"--config={tmp_path / 'c.yaml'} --data=data/ --queue-size 512",
    )
    first, *others = [values(*line.split()) for line in given]
    assert first["criterion.queue_size"] == 512 and first["task.data"] == "data/"
    assert all(other == first for other in others)


def test_without_data_the_demo_recipe_applies():
    demo = values(*CHOSEN, "--lr", "0.1")
    assert (demo["model.hidden_size"], demo["optimizer.lr"], demo["task.data"]) == (192, 0.1, None)
    assert values(*CHOSEN, "data/", "--size", "large")["model.hidden_size"] == 1024
    ranking = values("--task", "bitext", "--criterion", "translation_ranking")
    assert ranking["model.hidden_size"] == 192 and "criterion.queue_size" not in ranking


def test_a_size_is_below_what_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    def of(*line):
        merged = values(*CHOSEN, "data/", *line)
        sizes = tuple(merged[f"model.{name}"] for name in ("layers", "hidden_size", "heads", "feedforward_size"))
        facts = merged["trainer.max_epochs"], merged["optimizer.lr"], merged["criterion.queue_size"]
        return merged["size"], sizes, *facts

    usual = (None, 5e-4, 409600)
    small = ("small", (1, 192, 4, 256), 8, 3e-3, 4096)
    assert of("--device", "cpu") == of("--size", "small", "--device", "cuda") == small
    assert of() == of("size=base", "--device", "cpu") == ("base", (12, 768, 12, 3072), *usual)
    assert of("--size", "tiny", "--lr", "0.1", "--max-steps", "9") == ("tiny", (1, 96, 2, 192), None, 0.1, 4096)
    # Whoever names a size or starts from trained weights gets the usual options of training.
    assert of("--device", "cpu", "--layers", "3") == ("small", (3, 192, 4, 256), *usual)
    for name in ("encoder", "source-encoder", "init"):
        assert of("--device", "cpu", f"--{name}", "somewhere")[2:] == usual
    (tmp_path / "course.yaml").write_text("size: tiny\nstages: [{trainer: {max_steps: 1}}, {seed: 2}]\n")
    course = parse([*CHOSEN, "data/", "--config", str(tmp_path / "course.yaml")])
    runs = runs_of(course.layers)
    assert [run.values["model.hidden_size"] for run in runs] == [96, 96]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--device cpu", (6000, 1024, 2, 3e-3)),
        ("--device cpu --encoder somewhere --max-tokens 99", (6000, 99, 2, 5e-4)),
        ("--device cpu --encoder small/best/source", (6000, 1024, 2, 3e-3)),
        ("--device cpu --encoder base/best", (6000, 1024, 2, 5e-4)),
        ("--size base", (None, 4096, 4, 5e-4)),
    ],
)
def test_a_translator_on_a_cpu_takes_small_steps(line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for size in ("small", "base"):
        (tmp_path / size / "best" / "source").mkdir(parents=True)
        of_encoder = to_yaml(values(*CHOSEN, "data/", "--size", size))
        (tmp_path / size / "best" / "config.yaml").write_text(of_encoder)
    given = "--task translation --criterion label_smoothed_cross_entropy data/"
    merged = values(*given.split(), *line.split())
    names = ("task.vocab_size", "task.max_tokens", "model.decoder_layers", "optimizer.lr")
    assert tuple(merged[name] for name in names) == expected


def test_flags_and_lists():
    given = ["data/", *CHOSEN, "--no-tensorboard", "--mask-equal-sentences", "--exclude", "a", "--exclude=b,c"]
    merged = values(*given, "optimizer.betas=[0.9, 0.98]", "--norm", "pre", "--normalize", "false")
    assert (merged["logging.tensorboard"], merged["criterion.mask_equal_sentences"]) == (False, True)
    assert (merged["task.exclude"], merged["optimizer.betas"]) == (["a", "b", "c"], [0.9, 0.98])
    assert (merged["model.norm"], merged["model.normalize"], merged["task.data"]) == ("pre", False, "data/")
    assert values("./x=1/", *CHOSEN)["task.data"] == "./x=1/"


def test_text_of_languages_is_data(tmp_path):
    text, chosen = f"de={tmp_path}/a.de,en={tmp_path}/b.en", ["--task", "monolingual", "--criterion", "mlm"]
    assert problems(text, *chosen)[0] == "unknown option de; --help lists the options of the chosen parts"
    (tmp_path / "a.de").touch()
    assert values(text, *chosen)["task.data"] == text
    assert problems(text, *chosen, "lr=3") == ["unknown option lr; write optimizer.lr=..."]


def test_what_is_wrong_is_listed():
    given = "data/ --queue-sise 5 --mommentum=1 lr=3 model.layer=2 optimiser.lr=3 --seed=x".split()
    assert problems(*CHOSEN, *given) == [
        "unknown option --queue-sise; did you mean '--queue-size'?",
        "unknown option --mommentum; did you mean '--momentum'?",
        "unknown option lr; write optimizer.lr=...",
        "unknown option --model.layer; did you mean '--model.layers'?",
        "unknown option optimiser.lr; did you mean '--optimizer.lr'?",
        "seed must be an integer, not 'x'",
    ]
    assert problems("data/", *CHOSEN, "more/") == ["'more/': data is given twice"]
    with pytest.raises(UserError, match="argument --lr: expected one argument"):
        parse([*CHOSEN, "--lr", "--seed", "5"])
    # The options of a misspelt part cannot be checked; all others are.
    assert problems("data/", "--task", "bitext", "--criterion", "dual_moko", "--queue-size", "5", "--seed", "x") == [
        "unknown criterion 'dual_moko'; did you mean 'dual_moco'?",
        "seed must be an integer, not 'x'",
    ]


def test_a_name_of_two_parts(tmp_path, monkeypatch):
    """The model and a plugin's criterion both have ``layers``, so each must be named by its key."""
    (tmp_path / "layered_criterion.py").write_text(
        "from dataclasses import dataclass\nfrom xrep.registry import CRITERIA\n"
        "from xrep.criteria.criterion import Criterion\n\n\n"
        "class Layered(Criterion):\n    @dataclass(kw_only=True)\n    class Config:\n        layers: int = 3\n\n\n"
        "CRITERIA.add('layered', 'layered_criterion:Layered')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(CRITERIA, "_targets", dict(CRITERIA._targets))
    given = ["data/", "--task", "bitext", "--criterion", "layered", "--plugin", "layered_criterion"]
    assert problems(*given, "--layers", "4") == [
        "--layers is an option of several parts; write model.layers=... or criterion.layers=..."
    ]
    merged = values(*given, "--model.layers", "4", "criterion.layers=5")
    assert (merged["model.layers"], merged["criterion.layers"]) == (4, 5)
    assert "--criterion.layers INT" in help_text(*given)


def test_help_shows_every_option_with_type_default_and_help():
    shown = " ".join(help_text(*CHOSEN).split())
    for spec in parse(CHOSEN).fields:
        name = f"--{spec.name.replace('_', '-')} "
        assert name in shown and spec.help[:40] in shown, spec.key
    assert "--queue-size INT K: vectors kept of each side, which are the negatives." in shown
    assert "(default: 409600)" in shown and "--norm {post,pre}" in shown
    precisions = "{auto,float32,bf16,bfloat16,fp16,float16}"
    assert "--pooling {auto,mean,max,cls,last} How" in shown and f"--precision {precisions} Type" in shown
    assert "criterion dual_moco: L(x, y) + L(y, x)" in shown
    assert max(map(len, help_text(*CHOSEN).splitlines())) <= 120
    assert "--queue-size INT" not in help_text()


PARTS = """
parts:
- {task: {name: bitext, data: news}, criterion: dual_moco}
- {name: rank, task: {name: bitext, batch_size: 64}, criterion: translation_ranking}
"""


def test_options_of_parts(tmp_path):
    (tmp_path / "c.yaml").write_text(PARTS)
    file = ["--config", str(tmp_path / "c.yaml")]
    given = ["--queue-size", "5", "parts.rank.criterion.temperature=0.5", "--parts.dual_moco.weight", "2"]
    values_of_parts = values(*file, *given, "parts.rank.task.data=d", "--no-momentum-dropout")
    first, second = (strip(values_of_parts, f"parts.{name}.") for name in ("dual_moco", "rank"))
    assert (first["criterion.queue_size"], first["weight"], first["task.batch_size"]) == (5, 2.0, 128)
    assert (second["criterion.temperature"], second["task.batch_size"], second["weight"]) == (0.5, 64, 1.0)
    assert (first["task.data"], second["task.data"], first["criterion.momentum_dropout"]) == ("news", "d", False)
    assert problems(*file, "--temperature", "1") == [
        "--temperature is an option of several parts; "
        "write parts.dual_moco.criterion.temperature=... or parts.rank.criterion.temperature=..."
    ]
    assert problems(*file, "d3/") == [
        "'d3/': several tasks read data; write parts.dual_moco.task.data=d3/ or parts.rank.task.data=d3/"
    ]


def test_help_shows_each_part_and_stage_under_its_own_title(tmp_path):
    (tmp_path / "c.yaml").write_text(PARTS)
    lines = help_text("--config", str(tmp_path / "c.yaml")).splitlines()
    title = lines.index("parts.rank.criterion translation_ranking:")
    assert any(line.startswith("  --parts.rank.criterion.temperature FLOAT") for line in lines[title : title + 40])
    for name in ("--queue-size INT", "--mixing {weight,proportion}"):
        assert any(line.startswith(f"  {name}") for line in lines)
    assert max(map(len, lines)) <= 120

    text = "task: bitext\ncriterion: dual_moco\nstages: [{}, {name: rank, criterion: translation_ranking}]\n"
    (tmp_path / "c.yaml").write_text(text)
    shown = help_text("--config", str(tmp_path / "c.yaml"))
    assert "\ncriterion dual_moco, translation_ranking:\n" in shown and shown.count("\n  --temperature FLOAT") == 1


def test_errors_name_the_options_of_the_command(tmp_path):
    """The library names the field; xrep-train adds the option, but not if several parts have one of this name."""

    def printed(*arguments):
        with pytest.raises(UserError) as error, naming_options(parse(arguments).option_names()):
            raise UserError("too many", cure="lower `queue_size` or `temperature`, or set `task` and `folds`")
        return str(error.value)

    (tmp_path / "c.yaml").write_text(PARTS)
    assert printed(*CHOSEN) == "too many; lower --queue-size or --temperature, or set --task and `folds`"
    assert "lower --queue-size or `temperature`, or" in printed("--config", str(tmp_path / "c.yaml"))
