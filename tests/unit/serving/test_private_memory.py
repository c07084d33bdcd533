"""What loads and unloads are found to take and leave, on a scale that the test drives."""

from __future__ import annotations

from serving.workers.private_memory import PrivateMemory

A, B, C = ("m", 1), ("m", 2), ("n", 1)


class Scale:
    """Anonymous memory of a process that only the test changes."""

    def __init__(self) -> None:
        self.bytes = 1000

    def __call__(self) -> int:
        return self.bytes


def load(memory: PrivateMemory, scale: Scale, key: tuple[str, int], size: int) -> int:
    memory.begin()
    scale.bytes += size
    return memory.loaded(key)


def unload(memory: PrivateMemory, scale: Scale, key: tuple[str, int], freed: int) -> int:
    memory.begin()
    scale.bytes -= freed
    return memory.unloaded(key)


def test_what_an_unload_does_not_give_back_is_told():
    """The difference between before the load and after the unload; nothing where all came back."""
    scale = Scale()
    memory = PrivateMemory(scale)
    assert load(memory, scale, A, 100) == 100
    assert unload(memory, scale, A, 70) == 30
    assert load(memory, scale, A, 70) == 70
    assert unload(memory, scale, A, 70) == 0


def test_what_runs_took_and_kept_counts_too():
    """A version whose runs leave memory behind has not given all back."""
    scale = Scale()
    memory = PrivateMemory(scale)
    load(memory, scale, A, 100)
    scale.bytes += 40
    assert unload(memory, scale, A, 110) == 30


def test_other_versions_that_came_and_went_meanwhile_are_left_out():
    """A swap: the new version is loaded before the old one goes, and an older one went, too."""
    scale = Scale()
    memory = PrivateMemory(scale)
    load(memory, scale, C, 500)
    load(memory, scale, A, 100)
    load(memory, scale, B, 200)
    unload(memory, scale, C, 500)
    assert unload(memory, scale, A, 95) == 5
    assert unload(memory, scale, B, 200) == 0


def test_what_a_failed_load_leaves_is_nobody_else_s():
    """A load that fails between the load and the unload of a version does not count against it."""
    scale = Scale()
    memory = PrivateMemory(scale)
    load(memory, scale, A, 100)
    memory.begin()
    scale.bytes += 33
    memory.failed()
    assert unload(memory, scale, A, 100) == 0


def test_a_heap_that_shrank_meanwhile_is_not_a_negative_size():
    """Both answers are counts of bytes."""
    scale = Scale()
    memory = PrivateMemory(scale)
    assert load(memory, scale, A, -50) == 0
    assert unload(memory, scale, A, 10) == 0


def test_what_the_allocator_keeps_of_a_large_change_is_given_back_before_it_counts() -> None:
    """Small changes are left alone: what it keeps of them is used again."""
    scale = Scale()
    kept = 0

    def give_back() -> None:
        nonlocal kept
        scale.bytes -= kept
        kept = 0

    memory = PrivateMemory(scale, give_back=give_back)
    kept = 30 << 20
    assert load(memory, scale, A, 100 << 20) == 70 << 20
    kept = 1 << 20
    assert unload(memory, scale, A, 69 << 20) == 0
    kept = 1 << 20
    assert load(memory, scale, B, 3 << 20) == 3 << 20
    kept = 8 << 20
    assert load(memory, scale, C, 8 << 20) == 0
