# syntax=docker/dockerfile:1
# Builds the server only: models are converted where they were trained, and pushed.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY registry registry
COPY models models
COPY serving serving
COPY loadtest loadtest
# Every package by hash, from the lock file. It also holds the tools of the tests; the image is
# larger for that, and what runs in it is what was tested.
RUN python -m venv /opt/ramrack \
    && /opt/ramrack/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock \
    && /opt/ramrack/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin ramrack \
    && install -d -o ramrack -g ramrack /var/lib/ramrack
COPY --from=build /opt/ramrack /opt/ramrack
ENV PATH=/opt/ramrack/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAMRACK_STORE=/var/lib/ramrack \
    RAMRACK_HOST=0.0.0.0
# The admin plane stays on loopback; RAMRACK_ADMIN_HOST=0.0.0.0 needs RAMRACK_ADMIN_TOKEN.
USER 10001
VOLUME /var/lib/ramrack
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/v2/health/live', timeout=3)"]
CMD ["ramrack", "serve"]
