"""What xrep is made of, what it needs and the commands it installs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "xrep" / "version.py").read_text(encoding="utf-8"))
assert VERSION is not None
PLOT = ["matplotlib>=3.8", "scikit-learn>=1.4"]
SENTEVAL = ["scikit-learn>=1.6"]
HF = ["transformers>=5"]  # encoders of any architecture
ONNX = ["onnxruntime>=1.20", "onnxscript>=0.5"]  # not among the tests' packages, because they are large
OPENVINO = ["openvino>=2025.0", "onnxscript>=0.5"]
CTRANSLATE2 = ["ctranslate2>=4.5"]
WANDB = ["wandb>=0.17"]
DOCS = ["mkdocs-material>=9.5", "mkdocstrings[python]>=1"]
PARQUET = ["pyarrow>=15"]
ZSTD = ["zstandard>=0.22"]
RAY = ["ray>=2.49"]  # has ray symmetric-run
S3 = ["s3fs>=2025.2"]  # creates a file only if there is none
SERVE = ["fastapi>=0.115", "uvicorn>=0.30"]
GCS = ["gcsfs>=2025.2"]
TRITON = "triton>=3.4; platform_machine == 'x86_64'"  # torch's CUDA build brings it; its CPU build does not
PEERS = ["sentence-transformers>=5"]  # the tests of what goes in and out compare with it
DATASETS = ["datasets>=5.2"]  # since version 4 it executes no code of data sets
ALL = [*PLOT, *SENTEVAL, *HF, *PARQUET, *ZSTD, *WANDB, *RAY]  # all that users can ask for
ALL += [*S3, *GCS, *SERVE, *ONNX, *OPENVINO, *CTRANSLATE2, *DATASETS]
TRAINERS = ["accelerate>=1.0", *DATASETS]  # with which transformers and sentence-transformers train
BENCH = [*PEERS, *HF, *ONNX, *OPENVINO, *TRAINERS, *CTRANSLATE2, "liger-kernel>=0.5", "nncf>=2.14"]
PYRIGHT = "pyright[nodejs]>=1.1.407"  # Node.js and the checker itself are in the wheels, so a run needs no network
PYTEST = ["hypothesis>=6.100", "pytest>=8.2", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]
MOTO = ["moto[server]>=5.1"]  # an object store on this machine
TEST = [*PYTEST, "matplotlib>=3.8", "ruff>=0.12", PYRIGHT, TRITON, *PEERS]
TEST += [*HF, *PARQUET, *ZSTD, *RAY, *S3, *SERVE, *CTRANSLATE2, *MOTO, *DATASETS]

setup(
    name="xrep",
    version=VERSION[1],
    description="Trains, evaluates and uses cross-lingual sentence encoders",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The xrep authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["xrep", "xrep.*", "xrep_cli", "xrep_cli.*"]),
    package_data={
        "xrep": [
            "py.typed",
            "recipes/**/*.yaml",
            "inference/card.md.jinja",
            "inference/search.html",
            "report/page.html",
            "text/languages.tsv",
            "text/resources.json",
        ],
        "xrep_cli": ["py.typed"],
    },
    install_requires=[
        "torch>=2.9,<3",
        "sentencepiece>=0.2.3",  # gives places in characters
        "numpy>=1.26",
        "faiss-cpu>=1.8",
        "sacrebleu>=2.4",
        "scipy>=1.11",
        "tensorboard>=2.14",
        "omegaconf>=2.3",
        "safetensors>=0.4.3",
        "tokenizers>=0.20.1",
        "tqdm>=4.65",
        "huggingface_hub>=0.24",  # tokenizers brings it
        "packaging>=22",  # huggingface_hub brings it
        "jinja2>=3.1",  # torch brings it
        "shtab>=1.7",
    ],
    extras_require={
        "plot": PLOT,
        "senteval": SENTEVAL,
        "hf": HF,
        "parquet": PARQUET,
        "zstd": ZSTD,
        "wandb": WANDB,
        "ray": RAY,
        "s3": S3,
        "gcs": GCS,
        "serve": SERVE,
        "onnx": ONNX,
        "openvino": OPENVINO,
        "ctranslate2": CTRANSLATE2,
        "datasets": DATASETS,
        "all": ALL,
        "docs": DOCS,
        "test": TEST,
        "bench": BENCH,
        "dev": [*PLOT, *ONNX, *TEST, "uv>=0.5"],
    },
    entry_points={
        "console_scripts": [
            "xrep=xrep_cli.xrep:main",
            "xrep-train=xrep_cli.train:main",
            "xrep-eval=xrep_cli.eval:main",
            "xrep-preprocess=xrep_cli.preprocess:main",
            "xrep-data=xrep_cli.data:main",
            "xrep-export=xrep_cli.export:main",
            "xrep-encode=xrep_cli.encode:main",
            "xrep-mine=xrep_cli.mine:main",
            "xrep-score=xrep_cli.score:main",
            "xrep-search=xrep_cli.search:main",
            "xrep-jobs=xrep_cli.jobs:main",
            "xrep-generate=xrep_cli.generate:main",
            "xrep-predict=xrep_cli.predict:main",
            "xrep-report=xrep_cli.report:main",
            "xrep-sweep=xrep_cli.sweep:main",
            "xrep-recipes=xrep_cli.recipes:main",
            "xrep-doctor=xrep_cli.doctor:main",
        ],
        "xrep.plugins": [
            "task.classification=xrep.understanding.labels:ClassificationTask",
            "task.question_answering=xrep.understanding.questions:QuestionAnsweringTask",
            "task.tagging=xrep.understanding.tags:TaggingTask",
            "model.classifier=xrep.understanding.classifier:Classifier",
            "criterion.classification=xrep.understanding.labels:Classification",
            "criterion.span=xrep.understanding.questions:Span",
            "criterion.tagging=xrep.understanding.tags:Tagging",
            "predictor.classifier=xrep.understanding.sentence_classifier:SentenceClassifier",
            "validation.annotation=xrep.understanding.evaluations:AnnotationValidator",
            "evaluation.amazon=xrep.understanding.evaluations:Amazon",
            "evaluation.ner=xrep.understanding.evaluations:NamedEntities",
            "evaluation.pawsx=xrep.understanding.evaluations:PawsX",
            "evaluation.pos=xrep.understanding.evaluations:PartsOfSpeech",
            "evaluation.qa=xrep.understanding.evaluations:Questions",
            "evaluation.xnli=xrep.understanding.evaluations:Xnli",
            "format.questions=xrep.understanding.formats:QuestionText",
            "format.tagged=xrep.understanding.formats:TaggedText",
        ],
    },
)
