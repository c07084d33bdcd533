"""Whether loaded versions are still what was stored: asked before a new worker maps them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from registry.desired import Key
from registry.errors import Corrupt, RegistryError
from registry.objects import raise_first
from serving.auth import SERVER, Actor
from serving.control.packed_forms import PackedForms
from serving.control.state_writer import StateWriter
from serving.control.worker_versions import PLANNED
from serving.errors import message_of

_KIND: Final = "damaged"
_log = logging.getLogger(__name__)


class ObjectCheck:
    """Compares the objects of loaded versions with their digests. Event-loop thread only.

    ``quietly`` runs blocking work in a thread that steps back behind everything that serves.
    ``is_held``: whether workers are to hold a version; ``take_out`` makes one FAILED.
    """

    def __init__(
        self,
        writer: StateWriter,
        forms: PackedForms,
        quietly: Callable[[Callable[[], None]], Awaitable[None]],
        is_held: Callable[[Key], bool],
        take_out: Callable[[Key, str, str, Actor], Awaitable[None]],
    ) -> None:
        self._writer = writer
        self._forms = forms
        self._quietly = quietly
        self._is_held = is_held
        self._take_out = take_out
        # Where all workers die at once, all their successors ask, and one look is enough.
        self._one_at_a_time = asyncio.Lock()

    async def doubtful(self, suspects: Collection[Key] = ()) -> frozenset[Key]:
        """Return the versions that may be damaged, without reading a byte: those somebody touched.

        ``suspects`` are among them: a disk that fails to read changes nothing that can be seen.
        """
        digests = {key: self._digests(key) for key in self._held(suspects)}
        store = self._writer.store

        def look() -> frozenset[Key]:
            return frozenset(
                key for key, found in digests.items()
                if key in suspects or not store.are_untouched(found)
            )  # fmt: skip

        return await asyncio.to_thread(look)

    async def run(self, suspects: Collection[Key] = ()) -> bool:
        """Make FAILED what is damaged; return whether workers are to hold anything else now.

        Hashes what was touched, and all of the ``suspects``, which come first. Does not wait for
        the workers, for it is one of them that waits for this.
        """
        async with self._one_at_a_time:
            before = self._writer.state.generation
            known: dict[str, Corrupt | None] = {}
            for key in self._held(suspects):
                if not self._is_held(key):
                    continue
                try:
                    await self._verify(key, known, is_thorough=key in suspects)
                except RegistryError as error:
                    await self._fail(key, message_of(error))
                else:
                    await self._forms.check(key, is_thorough=key in suspects)
            return self._writer.state.generation != before

    def _held(self, first: Collection[Key]) -> list[Key]:
        held = filter(self._is_held, self._writer.state.loaded)
        return sorted(held, key=lambda key: (key not in first, key))

    def _digests(self, key: Key) -> frozenset[str]:
        published = self._writer.record(*key).manifest.object_digests
        return self._forms.objects(key).union(published)

    async def _verify(
        self, key: Key, known: dict[str, Corrupt | None], *, is_thorough: bool
    ) -> None:
        """Raise Corrupt where objects are damaged; ``known``: what was hashed for other versions.

        A table that dozens of versions share is hashed once, not once for each of them.
        """
        store = self._writer.store
        digests = self._writer.record(*key).manifest.object_digests

        def verify() -> None:
            for digest in digests - known.keys():
                try:
                    store.verify_objects([digest], thorough=is_thorough)
                except Corrupt as error:
                    known[digest] = error
                else:
                    known[digest] = None

        await self._quietly(verify)
        raise_first([error for digest in digests if (error := known[digest])])

    async def _fail(self, key: Key, reason: str) -> None:
        try:
            await self._take_out(key, reason, _KIND, SERVER)
        except PLANNED as error:
            # The state cannot be written: the worker is started all the same, or none ever would.
            _log.error("%s/%d is damaged and stays loaded: %s", *key, error)
