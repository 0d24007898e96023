"""The simulation of fleets: queueing theory where there is a formula, and what no request may suffer."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
import pytest
import simpy

from tests.benchmarks.fleet_simulation import (
    LONGEST_WAIT,
    Fleet,
    Outcome,
    Worker,
    failure,
    rollout,
    simulate,
)
from tests.benchmarks.loop_simulation import Client, closed_loop, open_loop
from tests.benchmarks.service_times import MOST_WINDOWS, Batch, Pace, ServiceTimes

SERVICE = 0.001
NO_CLIENT = Client()
TIMES = ServiceTimes({n: [Batch(0.0002 + 0.0001 * n, 0.0002 + 0.00015 * n)] for n in (1, 8, 32)})


def constant(seconds: float) -> ServiceTimes:
    return ServiceTimes({1: [Batch(seconds, seconds)]})


def p99(outcome: Outcome) -> float:
    return float(np.quantile(outcome.latencies, 0.99))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_window_a_batch_waits_as_long_as_the_formula_of_m_d_1_says(load: float) -> None:
    env, latencies, rng = simpy.Environment(), list[float](), Random(1)
    worker = Worker(
        env,
        constant(SERVICE),
        rng,
        answer=lambda due: latencies.append(env.now - due),
        refuse=lambda due: pytest.fail("a request was refused"),
        most_windows=1,
    )

    def requests() -> simpy.events.ProcessGenerator:
        for _ in range(30_000):
            yield env.timeout(rng.expovariate(load / SERVICE))
            worker.submit(env.now)

    env.process(requests())
    env.run()

    wait = load * SERVICE / (2 * (1 - load))
    assert np.mean(latencies) - SERVICE == pytest.approx(wait, rel=0.05)


def test_a_lone_caller_has_the_time_of_a_batch_of_one_and_of_the_client() -> None:
    outcome = closed_loop(constant(SERVICE), callers=1, seconds=0.1, client=Client(0.0001, 0.0002), seed=1)

    assert outcome.latencies == pytest.approx([SERVICE + 0.0003] * round(0.1 / (SERVICE + 0.0003)))


def test_callers_that_fill_every_batch_get_the_throughput_of_full_batches() -> None:
    outcome = closed_loop(TIMES, callers=128, seconds=5, client=NO_CLIENT, seed=1)

    assert len(outcome.latencies) / outcome.seconds == pytest.approx(32 / TIMES.mean_seconds(32), rel=0.01)


def test_a_worker_is_at_work_behind_the_last_answer_of_a_batch() -> None:
    after = dict.fromkeys(TIMES.measured, 0.001)
    times = ServiceTimes(TIMES.measured, after=after)

    lone, many = (
        closed_loop(times, callers=callers, seconds=5, client=NO_CLIENT, seed=1) for callers in (1, 128)
    )

    assert lone.latencies[0] == pytest.approx(TIMES.measured[1][0].first)
    assert len(many.latencies) / many.seconds == pytest.approx(times.most_per_second(), rel=0.01)
    assert times.most_per_second() == pytest.approx(32 / (TIMES.mean_seconds(32) + 0.001))


def test_a_batch_takes_longer_while_many_requests_wait() -> None:
    times = ServiceTimes(TIMES.measured, backlog={64: 1.0, 128: 2.0})

    some, many = (
        closed_loop(times, callers=callers, seconds=5, client=NO_CLIENT, seed=1) for callers in (64, 128)
    )

    assert len(some.latencies) / some.seconds == pytest.approx(times.most_per_second(), rel=0.01)
    assert len(many.latencies) / many.seconds == pytest.approx(times.most_per_second() / 2, rel=0.01)


def test_requests_that_arrive_while_others_are_read_join_their_batch() -> None:
    measured = {n: [Batch(0.001 + 0.0001 * n, 0.001 + 0.0001 * n)] for n in (1, 2, 32)}

    apart, joined = (
        open_loop(ServiceTimes(measured, read_seconds=read), rate=1000, seconds=5, client=NO_CLIENT, seed=1)
        for read in (0.0, 0.0001)
    )

    assert np.mean(joined.latencies) < np.mean(apart.latencies)


def test_requests_that_arrive_while_a_batch_is_computed_make_it_longer_and_others_do_not() -> None:
    measured = {n: [Batch(0.001, 0.001 + 0.0001 * n)] for n in (1, 32)}

    free, costly = (
        [
            run(ServiceTimes(measured, arrival_seconds=arrival), seconds=2, client=NO_CLIENT, seed=1)
            for run in (partial(open_loop, rate=1000), partial(closed_loop, callers=1))
        ]
        for arrival in (0.0, 0.0002)
    )

    at_random, alone = zip(free, costly, strict=True)
    assert np.mean(at_random[1].latencies) > 1.1 * np.mean(at_random[0].latencies)
    assert alone[1] == alone[0]


def test_a_batch_of_a_size_between_two_measured_ones_takes_a_time_between_theirs() -> None:
    times = ServiceTimes({8: [Batch(0.001, 0.002)], 16: [Batch(0.002, 0.004)]})

    assert times.typical(12) == pytest.approx(Batch(0.0015, 0.003))


def test_an_idle_worker_replays_lone_batches_in_the_order_of_their_measurement() -> None:
    seconds = [0.001, 0.002, 0.003, 0.004]
    times = ServiceTimes({1: [Batch(each, each) for each in seconds], 32: [Batch(0.01, 0.01)]})

    played = closed_loop(times, callers=1, seconds=0.015, client=NO_CLIENT, seed=1).latencies

    first = seconds.index(round(played[0], 6))
    assert played == pytest.approx([seconds[(first + place) % 4] for place in range(len(played))])


def test_a_pause_of_a_busy_worker_lasts_as_long_as_it_was_measured_whatever_batches_it_meets() -> None:
    pace = Pace([(0.001, 0.001), (0.009, 0.001), (0.001, 0.001)])

    assert pace.seconds(0.0, 0.001) == pytest.approx(0.001)
    assert pace.seconds(0.0, 0.002) == pytest.approx(0.010)
    assert pace.seconds(0.0055, 0.001) == pytest.approx(0.005)  # half of the pause is over
    assert pace.seconds(0.001, 0.003) == pytest.approx(0.011)  # ends in the next round


def test_work_takes_its_measured_time_on_average() -> None:
    pace, now = Pace([(0.001, 0.002), (0.005, 0.002)]), 0.0

    for _ in range(1000):
        now += pace.seconds(now, 0.00037)

    assert now == pytest.approx(1000 * 0.00037 * 0.006 / 0.004, rel=0.01)


def test_every_request_of_a_fleet_has_one_outcome_whatever_happens() -> None:
    fleet = Fleet(units=4000, replicas=4, workers=2)
    troubles = [None, failure(at=0.2, seconds=1), rollout(at=0.2, lame_duck=0.1, seconds=0.2)]

    outcomes = [simulate(fleet, TIMES, seconds=2, seed=3, trouble=trouble) for trouble in troubles]

    assert [outcome.requests for outcome in outcomes] == [8000] * 3


def test_a_killed_replica_loses_what_it_held_and_the_others_take_its_load() -> None:
    fleet = Fleet(units=6000, replicas=2, workers=1)

    whole = simulate(fleet, TIMES, seconds=3, seed=3)
    struck = simulate(fleet, TIMES, seconds=3, seed=3, trouble=failure(at=0.6, seconds=2))

    assert whole.lost == struck.refused == 0
    assert 0 < struck.lost < 64
    assert p99(struck) > p99(whole)


def test_a_rollout_with_lame_duck_time_loses_nothing_and_one_without_does() -> None:
    fleet = Fleet(units=8000, replicas=4, workers=1)

    kind, rude = (
        simulate(fleet, TIMES, seconds=3, seed=3, trouble=rollout(at=0.5, lame_duck=wait, seconds=0.2))
        for wait in (0.2, 0.0)
    )

    assert kind.lost == 0
    assert rude.lost > 0


def test_a_request_that_waited_longer_than_admission_allows_is_refused() -> None:
    batch = 0.1

    overload = open_loop(constant(batch), rate=2 * MOST_WINDOWS / batch, seconds=5, client=NO_CLIENT, seed=1)

    assert overload.refused > 0
    assert max(overload.latencies) <= LONGEST_WAIT + batch + 1e-9


def with_replicas(count: int) -> Outcome:
    return simulate(Fleet(units=6000 * count, replicas=count, workers=2), TIMES, seconds=1, seed=3)


def test_a_share_of_replicas_and_units_has_the_latency_of_the_whole_or_little_more() -> None:
    """A balancer with fewer replicas finds the idle one less often."""
    part, whole = with_replicas(3), with_replicas(6)

    assert np.median(part.latencies) == pytest.approx(np.median(whole.latencies), rel=0.05)
    assert p99(whole) <= p99(part) <= 1.12 * p99(whole)


def test_the_same_seed_gives_the_same_fleet() -> None:
    fleet = Fleet(units=2000, replicas=2, workers=2)

    first, second, other = (simulate(fleet, TIMES, seconds=1, seed=seed) for seed in (7, 7, 8))

    assert first == second
    assert first != other
