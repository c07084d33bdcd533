# syntax=docker/dockerfile:1
# The server alone: models are converted where they were trained, and pushed.
# Pin the base by its digest where a build must be repeatable: --build-arg PYTHON=python:3.11-slim@sha256:...
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
# requirements.lock instead also holds the training libraries, for versions that are served by
# their own library (ramrack push says so); the image is then several times as large.
ARG LOCK=requirements-server.lock
WORKDIR /src
COPY requirements-server.lock requirements.lock requirements-build.lock ./
# Every package by hash, the tools that build ours as well.
RUN python -m venv /opt/ramrack \
    && /opt/ramrack/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r ${LOCK} \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY registry registry
COPY models models
COPY serving serving
COPY loadtest loadtest
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /wheel \
    && /opt/ramrack/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl \
    && /opt/ramrack/bin/python -m compileall -q /opt/ramrack/lib

FROM ${PYTHON}
# A number, so that Kubernetes can see that it is not root. Nothing of the image is writable for it
# but the store.
RUN groupadd --gid 10001 ramrack \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin ramrack \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/ramrack
COPY --from=build /opt/ramrack /opt/ramrack
ENV PATH=/opt/ramrack/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RAMRACK_STORE=/var/lib/ramrack \
    RAMRACK_HOST=0.0.0.0
# The admin plane stays on loopback; RAMRACK_ADMIN_HOST=0.0.0.0 needs RAMRACK_ADMIN_TOKEN.
USER 10001:10001
WORKDIR /var/lib/ramrack
VOLUME ["/var/lib/ramrack"]
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "serving.healthcheck"]
CMD ["ramrack", "serve"]
