"""Models: signatures, runtimes, conversion, inspection."""

import os

# ONNX Runtime (from 1.29 on) tells its maker what it runs, with names and hashes of models, unless
# this is set before its library starts. Nothing else here imports it, so this is before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
