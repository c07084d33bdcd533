"""ONNX Runtime by its C interface, out of the shared library that its Python package ships.

The package's own binding holds the interpreter's lock while it destroys a session: a forest of
three million nodes stopped everything else in a worker for 60 to 380 ms. Here a session is made,
run and destroyed without the lock.

The interface is a table of functions that only ever grows at its end (its header says so), so a
place in it means the same in each release. Everything of it that is used stands in ``_FUNCTIONS``.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final

_API_VERSION: Final = 24
_SILENT: Final = 4
_CPU_ARENA: Final = 0
_DEFAULT_MEMORY: Final = 0
INVALID_ARGUMENT: Final = 2
_CODE_NAMES: Final = {
    1: "FAIL", 2: "INVALID_ARGUMENT", 3: "NO_SUCHFILE", 4: "NO_MODEL", 5: "ENGINE_ERROR",
    6: "RUNTIME_EXCEPTION", 7: "INVALID_PROTOBUF", 8: "MODEL_LOADED", 9: "NOT_IMPLEMENTED",
    10: "INVALID_GRAPH", 11: "EP_FAIL",
}  # fmt: skip
# Any address: checking what kind it is of takes as long as the call itself.
_OUT: Final = c_void_p
# Place in the table and what it takes. All return a status, null where it went well.
_FUNCTIONS: Final[dict[str, tuple[int, tuple[Any, ...]]]] = {
    "CreateEnv": (3, (c_int, c_char_p, _OUT)),
    "CreateSessionOptions": (10, (_OUT,)),
    "SetOptimizedModelFilePath": (11, (c_void_p, c_char_p)),
    "SetSessionExecutionMode": (13, (c_void_p, c_int)),
    "DisableMemPattern": (17, (c_void_p,)),
    "DisableCpuMemArena": (19, (c_void_p,)),
    "SetSessionLogSeverityLevel": (22, (c_void_p, c_int)),
    "SetSessionGraphOptimizationLevel": (23, (c_void_p, c_int)),
    "SetIntraOpNumThreads": (24, (c_void_p, c_int)),
    "SetInterOpNumThreads": (25, (c_void_p, c_int)),
    "SessionGetInputCount": (30, (c_void_p, _OUT)),
    "SessionGetOutputCount": (31, (c_void_p, _OUT)),
    "SessionGetInputTypeInfo": (33, (c_void_p, c_size_t, _OUT)),
    "SessionGetOutputTypeInfo": (34, (c_void_p, c_size_t, _OUT)),
    "SessionGetInputName": (36, (c_void_p, c_size_t, c_void_p, _OUT)),
    "SessionGetOutputName": (37, (c_void_p, c_size_t, c_void_p, _OUT)),
    "CreateRunOptions": (39, (_OUT,)),
    "RunOptionsSetRunLogSeverityLevel": (41, (c_void_p, c_int)),
    "RunOptionsSetTerminate": (46, (c_void_p,)),
    "CreateTensorAsOrtValue": (48, (c_void_p, _OUT, c_size_t, c_int, _OUT)),
    "CreateTensorWithDataAsOrtValue": (
        49, (c_void_p, c_void_p, c_size_t, _OUT, c_size_t, c_int, _OUT),
    ),
    "GetTensorMutableData": (51, (c_void_p, _OUT)),
    "FillStringTensor": (52, (c_void_p, _OUT, c_size_t)),
    "GetStringTensorDataLength": (53, (c_void_p, _OUT)),
    "GetStringTensorContent": (54, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)),
    "CastTypeInfoToTensorInfo": (55, (c_void_p, _OUT)),
    "GetOnnxTypeFromTypeInfo": (56, (c_void_p, _OUT)),
    "GetTensorElementType": (60, (c_void_p, _OUT)),
    "GetDimensionsCount": (61, (c_void_p, _OUT)),
    "GetDimensions": (62, (c_void_p, _OUT, c_size_t)),
    "GetSymbolicDimensions": (63, (c_void_p, _OUT, c_size_t)),
    "CreateCpuMemoryInfo": (69, (c_int, c_int, _OUT)),
    "AllocatorFree": (76, (c_void_p, c_void_p)),
    "GetAllocatorWithDefaultOptions": (78, (_OUT,)),
    "AddSessionConfigEntry": (130, (c_void_p, c_char_p, c_char_p)),
    "CreateIoBinding": (134, (c_void_p, _OUT)),
    "BindInput": (136, (c_void_p, c_char_p, c_void_p)),
    "BindOutput": (137, (c_void_p, c_char_p, c_void_p)),
    "GetResizedStringTensorElementBuffer": (252, (c_void_p, c_size_t, c_size_t, _OUT)),
    "GetTensorElementTypeAndShapeDataReference": (
        414, (c_void_p, _OUT, _OUT, _OUT),
    ),
}  # fmt: skip
# These may take long, and others go on meanwhile.
_LONG: Final[dict[str, tuple[int, tuple[Any, ...]]]] = {
    "CreateSession": (7, (c_void_p, c_char_p, c_void_p, _OUT)),
    "CreateSessionFromArray": (8, (c_void_p, c_void_p, c_size_t, c_void_p, _OUT)),
    "Run": (
        9,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    ),
    "RunWithBinding": (133, (c_void_p, c_void_p, c_void_p)),
}
_RELEASES: Final = {
    "ReleaseStatus": 93, "ReleaseValue": 96, "ReleaseRunOptions": 97, "ReleaseTypeInfo": 98,
    "ReleaseSessionOptions": 100, "ReleaseIoBinding": 135,
}  # fmt: skip
_RELEASE_SESSION: Final = 95
_GET_ERROR_CODE: Final = 1
_GET_ERROR_MESSAGE: Final = 2


class OrtError(RuntimeError):
    """What the runtime said went wrong. ``code`` is one of its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"[ONNXRuntimeError] : {code} : {_CODE_NAMES.get(code, '?')} : {message}")
        self.code = code


class InvalidArgument(OrtError):
    """An input does not fit the graph."""


class _Base(ctypes.Structure):
    _fields_ = (
        ("get_api", ctypes.CFUNCTYPE(c_void_p, c_uint32)),
        ("get_version", ctypes.CFUNCTYPE(c_char_p)),
    )


class OrtLibrary:
    """The functions by name, raising OrtError, and the environment of this process.

    A function called through ``PYFUNCTYPE`` keeps the interpreter's lock: letting go of it and
    taking it again costs more than most of them.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        get_base = self._library.OrtGetApiBase
        get_base.restype = POINTER(_Base)
        table = get_base().contents.get_api(_API_VERSION)
        if not table:
            raise OSError(f"{path.name} does not have version {_API_VERSION} of its interface")
        last = max(place for place, _ in _FUNCTIONS.values())
        self._table = (c_void_p * (last + 1)).from_address(table)
        self.functions: dict[str, Any] = {}
        for kind, group in ((ctypes.PYFUNCTYPE, _FUNCTIONS), (ctypes.CFUNCTYPE, _LONG)):
            for name, (place, takes) in group.items():
                self.functions[name] = kind(c_void_p, *takes)(self._address(place))
        for name, place in _RELEASES.items():
            self.functions[name] = ctypes.PYFUNCTYPE(None, c_void_p)(self._address(place))
        self.release_session = ctypes.CFUNCTYPE(None, c_void_p)(self._address(_RELEASE_SESSION))
        # What each run calls, without a look-up.
        self.tensor_over = self.functions["CreateTensorWithDataAsOrtValue"]
        self.form_of = self.functions["GetTensorElementTypeAndShapeDataReference"]
        self.data_of = self.functions["GetTensorMutableData"]
        self.texts_length = self.functions["GetStringTensorDataLength"]
        self.texts_content = self.functions["GetStringTensorContent"]
        self.release_value = self.functions["ReleaseValue"]
        # Of an address, a size in bytes and whether it is read only.
        self.view_of = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_ssize_t, c_int)(
            ("PyMemoryView_FromMemory", ctypes.pythonapi)
        )
        self._code = ctypes.PYFUNCTYPE(c_int, c_void_p)(self._address(_GET_ERROR_CODE))
        self._message = ctypes.PYFUNCTYPE(c_char_p, c_void_p)(self._address(_GET_ERROR_MESSAGE))
        self.environment = self.made("CreateEnv", _SILENT, b"ramrack")
        self.memory = self.made("CreateCpuMemoryInfo", _CPU_ARENA, _DEFAULT_MEMORY)
        self.allocator = self.made("GetAllocatorWithDefaultOptions")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function, or raise OrtError."""
        status = self.functions[name](*arguments)
        if status:
            raise self.error(status)

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """Return what a function makes through its last argument, or raise OrtError."""
        made = c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def error(self, status: int) -> OrtError:
        """Return a status as an error, and give its memory back."""
        code, message = self._code(status), self._message(status).decode(errors="replace")
        self.functions["ReleaseStatus"](status)
        return (InvalidArgument if code == INVALID_ARGUMENT else OrtError)(code, message)

    def _address(self, place: int) -> int:
        address = self._table[place]
        if not address:
            raise OSError(f"the runtime's interface has no function {place}")
        return int(address)


@functools.lru_cache(maxsize=256)
def list_of(kind: type[Any], count: int) -> Any:
    """Return the type of a C list. Making one anew takes longer than most calls."""
    return kind * count


@functools.cache
def library() -> OrtLibrary:
    """Return the library of this process, opened at the first call.

    Raises ImportError where the installed package has none.
    """
    spec = util.find_spec("onnxruntime")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    version = metadata.version("onnxruntime")
    for folder in folders:
        path = folder / "capi" / f"libonnxruntime.so.{version}"
        if path.is_file():
            return OrtLibrary(path)
    raise ImportError(
        f"onnxruntime {version} has no libonnxruntime.so.{version} where it is installed: "
        "pip install --force-reinstall onnxruntime"
    )
