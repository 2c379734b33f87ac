# xrep on CPUs. The first line builds the image. The second one lists the commands, which work in the current folder:
#
#   docker build --tag xrep --build-arg PIP_EXTRA_INDEX_URL=URL .
#   docker run --rm --user "$(id -u):$(id -g)" --volume xrep:/xrep --volume "$PWD:/work" xrep --help
#
# URL is PyTorch's index of wheels for CPUs, which its page on installation names. Without it, pip takes the build for
# GPUs, which is some gigabytes larger. Downloads and caches stay in the volume /xrep.
FROM python:3.12-slim

ARG PIP_EXTRA_INDEX_URL=""
ARG EXTRAS="plot,senteval,hf,parquet,zstd,onnx"
WORKDIR /src
COPY LICENSE README.md constraints.txt pyproject.toml setup.py ./
COPY xrep xrep
COPY xrep_cli xrep_cli
RUN pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"

# Any user may write here, because `docker run --user` names the one that is to own the files in /work.
ENV XREP_HOME=/xrep HOME=/xrep USER=xrep
RUN mkdir --mode 1777 /xrep /work
VOLUME /xrep
WORKDIR /work
USER 10001
ENTRYPOINT ["xrep"]
CMD ["--help"]
