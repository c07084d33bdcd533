"""What ONNX Runtime says went wrong, in words that may reach a user."""

from __future__ import annotations

import re
from typing import Final

from models.errors import InputRefused, ModelsError, RunFailed, RunTooLarge

_MAX_CHARACTERS: Final = 400
_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_NODE: Final = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:'[^']*' Status Message: "
)
# Where in its sources the runtime stood: a file with a line, then the function with its arguments.
_SOURCE_FUNCTION: Final = re.compile(
    r"[\w/.-]+\.(?:cc|h|cpp|hpp):\d+ [^()]{1,300}\([^()]{0,300}\)(?: const)? "
)
_SOURCE_NAME: Final = re.compile(r"\b[\w/.-]+\.(?:cc|h|cpp|hpp):\d+ (?:\w+ )?")
_CONDITION: Final = re.compile(r"^[^.]{1,200} was false\. ")
_PATH: Final = re.compile(r"(?<![\w/.])/[^\s\"':,;()\[\]]+")
_NO_MEMORY: Final = re.compile(r"(?i:failed to allocate memory|bad[_ ]alloc|cannot allocate)")
# What kernels complain of when sizes or values of the input do not fit. The weights and the graph
# passed the inspection, so only the input can be the cause.
_INPUT_FAULT: Final = re.compile(
    r"(?i:dimension|broadcast|reshape|shape|mismatch|\brank\b|out of (?:range|bounds)|indices"
    r"|\bsto[a-z]{1,3}\b|overflow|unknown category|must (?:be|match)|by zero)"
)


def clean(text: str) -> str:
    """Return a message of the runtime without codes, source places and paths of this machine."""
    text = " ".join(_CODE.sub("", text).split())
    node = _NODE.search(text)
    text = _NODE.sub("", text)
    text = _SOURCE_FUNCTION.sub("", text)
    text = _SOURCE_NAME.sub("", text)
    text = _CONDITION.sub("", text)
    text = _PATH.sub("<file>", text).removeprefix("Load model from <file> failed:").strip()
    if node:
        text = f"{node[1]}: {text}"
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a failure of the runtime means that memory ran out."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def run_error(error: Exception) -> ModelsError:
    """Return the domain error for a failed run: whose fault it was, in clean words."""
    message = clean(str(error)) or type(error).__name__
    if is_out_of_memory(error):
        return RunTooLarge(f"not enough memory for this input: {message}")
    if type(error).__name__ == "InvalidArgument":
        return InputRefused(message)
    if _NODE.search(str(error)) and _INPUT_FAULT.search(message):
        return InputRefused(message)
    return RunFailed(message)
