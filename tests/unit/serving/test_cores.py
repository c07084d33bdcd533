"""Tests of the choice of workers, threads and cores."""

import pytest

from serving.workers.cores import WorkerPlan, plan_workers


def single(count: int) -> list[tuple[int, ...]]:
    """Cores with one hardware thread each."""
    return [(cpu,) for cpu in range(count)]


@pytest.mark.parametrize("cores", range(1, 33))
@pytest.mark.parametrize("quota", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("workers", "threads"), [(0, 0), (1, 0), (2, 0), (5, 0), (0, 1), (0, 2), (0, 3)]
)
def test_d01_defaults_stay_within_the_usable_cores(
    cores: int, quota: int, workers: int, threads: int
) -> None:
    """Workers times threads never exceed what affinity and quota leave, unless asked for."""
    usable = min(cores, quota)
    plan = plan_workers(single(cores), usable, workers, threads)
    assert plan.workers * plan.threads <= max(usable, workers, threads)
    assert plan.threads >= 1
    assert len(plan.cpus) == plan.workers


def test_without_a_quota_workers_are_pinned_to_cores_of_their_own() -> None:
    """Each slot gets its share of the affinity mask, whatever the cores' numbers are."""
    assert plan_workers([(8,), (2,), (5,), (7,)], 4, workers=2) == WorkerPlan(
        2, 2, ((2, 5), (7, 8)), owns_cores=True
    )


def test_under_a_quota_nothing_is_pinned() -> None:
    """The scheduler stays free to use whichever core is idle."""
    assert plan_workers(single(32), 2) == WorkerPlan(2, 1, ((), ()), owns_cores=False)


def test_more_threads_than_cores_are_not_pinned() -> None:
    """Settings are followed, but then workers share the cores."""
    plan = plan_workers(single(2), 2, workers=2, threads=4)
    assert plan == WorkerPlan(2, 4, ((), ()), owns_cores=False)
    assert "want 8 cores and 2 are usable" in plan.excess(2)
    assert plan_workers(single(2), 2).excess(2) == ""


def test_one_worker_roams() -> None:
    """With a single worker there is nobody to be kept apart from."""
    assert plan_workers(single(1), 1) == WorkerPlan(1, 1, ((),), owns_cores=True)


def test_many_cores_give_at_most_eight_workers() -> None:
    """Past eight workers more threads help more than more copies of private memory."""
    plan = plan_workers(single(64), 64)
    assert (plan.workers, plan.threads) == (8, 8)


def test_a_pinned_worker_gets_all_hardware_threads_of_its_cores() -> None:
    """Cores are counted, not their hardware threads; the second thread serves what does not run."""
    cores = [(0, 4), (1, 5), (2, 6), (3, 7)]
    two, four = plan_workers(cores, 4, workers=2), plan_workers(cores, 4)
    assert (two.threads, two.cpus) == (2, ((0, 1, 4, 5), (2, 3, 6, 7)))
    assert (four.threads, four.cpus) == (1, ((0, 4), (1, 5), (2, 6), (3, 7)))


@pytest.mark.parametrize(
    ("cores", "usable", "workers", "threads", "is_theirs"),
    [
        (4, 4, 0, 0, True),
        (4, 4, 1, 2, True),
        (4, 4, 4, 2, False),
        (4, 2, 2, 1, False),
        (4, 4, 5, 1, False),
        (1, 1, 1, 1, True),
    ],
)
def test_workers_own_their_cores_where_nobody_else_pays_for_them(
    cores: int, usable: int, workers: int, threads: int, is_theirs: bool
) -> None:
    """Neither another worker's thread nor a CPU quota loses what a core that stays awake takes."""
    plan = plan_workers(single(cores), usable, workers, threads)
    assert plan.owns_cores is is_theirs
    assert plan.busy_poll_us(200) == (200 if is_theirs else 0)
