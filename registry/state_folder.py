"""The documents of one store: each by its name, replaced as a whole, and missed if it is gone."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from registry import layout
from registry.documents import read_document, write_document
from registry.errors import Corrupt, InvalidInput
from registry.files import Files
from registry.ident import shown
from registry.manifest import JsonObject
from registry.reserve import Reserve

_DOCUMENT_NAME: Final = re.compile("[a-z][a-z0-9_-]{0,63}")


class StateFolder:
    """Reads and writes documents, and marks each that exists. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        temporary_dir: Path,
        files: Files,
        reserve: Reserve,
        *,
        is_read_only: bool,
    ) -> None:
        self._folder = folder
        self._temporary_dir = temporary_dir
        self._files = files
        self._reserve = reserve
        self._is_read_only = is_read_only
        self._lock = threading.Lock()
        self._marked: set[str] = set()

    def read(self, name: str) -> JsonObject | None:
        """Return a document, None where it was never written; Corrupt where it is damaged or gone.

        A document that was there and is not any more is no new store: who takes it for one loses
        all that it held.
        """
        document = read_document(self._path(name), f"document {name}")
        if document is None and self._mark_path(name).exists():
            raise Corrupt(
                f"document {name} is gone: restore {layout.STATE_DIR}/{name}.json of the store's "
                f"folder from a backup; or, to begin without what it held, remove "
                f"{layout.STATE_DIR}/{self._mark_path(name).name}"
            )
        if document is not None and not self._is_read_only:
            self._mark(name)
        return document

    def write(self, name: str, document: JsonObject) -> None:
        """Replace a document, durably and as a whole.

        After StoreFull or StoreFailed it is the old or the new one, and never a mix.
        """
        path, what = self._path(name), f"document {name}"
        with self._lock:
            self._reserve.run(
                lambda: write_document(self._files, self._temporary_dir, path, document, what)
            )
            self._mark(name)

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with documents, by the words that name each."""
        damaged: dict[str, str] = {}
        for name in sorted({path.stem for path in self._folder.glob("*.*")}):
            try:
                self.read(name)
            except (Corrupt, InvalidInput) as error:
                damaged[f"document {name}"] = str(error)
        return damaged

    def _mark(self, name: str) -> None:
        """Note that a document exists; a mark that a crash or a full disk kept out comes later."""
        path = self._mark_path(name)
        if name in self._marked or path.exists():
            return
        with suppress(OSError):
            self._files.close(self._files.create(path))
            self._files.fsync_dir(path.parent)
            self._marked.add(name)

    def _mark_path(self, name: str) -> Path:
        return self._path(name).with_suffix(".kept")

    def _path(self, name: str) -> Path:
        if not _DOCUMENT_NAME.fullmatch(name):
            raise InvalidInput(
                f"document name {shown(name)} is not allowed: use {_DOCUMENT_NAME.pattern}"
            )
        return self._folder / f"{name}.json"
