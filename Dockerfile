# Two images from one file. `serving`, the default target, has no torch, no compiler and no pip; `worker` trains.
#     docker build -t sgformer-serving .
#     docker build -t sgformer-worker --target worker .
#     docker build -t sgformer-serving:gpu --build-arg VARIANT=gpu .
# `--build-arg REVISION=$(git rev-parse HEAD)` puts the commit into the labels.
# Python is Debian's own 3.11. The serving image installs the files whose hashes are in deploy/serving.lock; the worker's image, and
# VARIANT=gpu, the versions of constraints.txt. The base's packages are those of its tag: their security updates come with a later
# DEBIAN. Python is what the mirrors have on the day of the build, as they keep no older one; `docker build --no-cache` takes a later one.
ARG DEBIAN=12.12-slim
# The version in pyproject.toml, for the labels.
ARG VERSION=0.2.0

FROM debian:${DEBIAN} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sgformer \
    && install -d -o sgformer -g sgformer /var/lib/sgformer/store /var/lib/sgformer/store/models /var/lib/sgformer/data /var/lib/sgformer/cache
# The models, and beside them the check-points of training: one volume.
ENV PATH=/opt/sgformer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SGF_STORE=/var/lib/sgformer/store/models \
    SGF_DATA_ROOT=/var/lib/sgformer/data
WORKDIR /var/lib/sgformer

FROM scratch AS code
COPY sgformer /sgformer
COPY sgformer_client /sgformer_client
COPY model_store /model_store
COPY service /service
COPY training /training

FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/sgformer
WORKDIR /src
# Before any code is there, the project is an empty package with all of its dependencies: a layer that new code does not change.
COPY pyproject.toml constraints.txt README.md LICENSE ./
# As a variable, constraints reach into pip's isolated builds too, which `-c` does not: what builds packages is pinned as well.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt

FROM build AS build-serving
COPY deploy/serving.lock ./
# cpu, or gpu: ONNX Runtime and torch for CUDA.
ARG VARIANT=cpu
RUN if [ "$VARIANT" = cpu ]; then set -- --require-hashes -r serving.lock; else set -- ".[${VARIANT}]"; fi \
    && /opt/pip/bin/pip --python /opt/sgformer/bin/python install "$@"
COPY --from=code / ./
# Built with the setuptools of the lock, if there is a lock, and without the registry.
RUN if [ "$VARIANT" = cpu ]; then set -- --no-build-isolation; fi \
    && /opt/pip/bin/pip --python /opt/sgformer/bin/python install --no-deps --force-reinstall "$@" . \
    && /opt/pip/bin/pip --python /opt/sgformer/bin/python uninstall --yes setuptools

FROM build AS build-worker
# PyTorch's own index of CPU builds: on PyPI, torch is a CUDA build of some gigabytes, and this image trains on CPUs.
# Empty: the package registry alone. See deploy/README.md.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN /opt/pip/bin/pip --python /opt/sgformer/bin/python install \
    ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} ".[cpu,train]"
COPY --from=code / ./
RUN /opt/pip/bin/pip --python /opt/sgformer/bin/python install --no-deps --force-reinstall .

FROM python AS worker
COPY --from=build-worker /opt/sgformer /opt/sgformer
ARG VERSION
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sgformer-worker" \
      org.opencontainers.image.description="Takes retraining jobs of sgformer-serving from Redis, and trains." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# torch keeps caches in the home folder, which is not writable otherwise.
ENV HOME=/tmp
USER 10001:10001
# The worker has no port; Redis knows which workers live. See deploy/README.md.
HEALTHCHECK NONE
STOPSIGNAL SIGTERM
ENTRYPOINT ["sgf-worker"]

FROM python AS serving
COPY --from=build-serving /opt/sgformer /opt/sgformer
ARG VERSION
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sgformer-serving" \
      org.opencontainers.image.description="Exact answers of a graph transformer, for nodes the graph has never seen." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV SGF_HOST=0.0.0.0 \
    SGF_PORT=8000
USER 10001:10001
EXPOSE 8000
# Ready, not only alive: a version is verified, warmed up and has passed its probes.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as web; web.urlopen(f'http://127.0.0.1:{os.environ[\"SGF_PORT\"]}/health/ready', timeout=2)"]
# The server is process 1 and gets SIGTERM: it accepts no more requests, answers those in flight, and ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["sgf-serve"]
