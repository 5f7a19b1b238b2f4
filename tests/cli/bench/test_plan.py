from pomona.cli.bench.plan import Contender, Plan, turns

BARE, POMONA, MLX_LM = Contender.BARE, Contender.POMONA, Contender.MLX_LM


def test_every_second_round_runs_backwards() -> None:
    assert list(turns(Plan(rounds=3))) == [
        *((0, contender) for contender in (BARE, POMONA, MLX_LM)),
        *((1, contender) for contender in (MLX_LM, POMONA, BARE)),
        *((2, contender) for contender in (BARE, POMONA, MLX_LM)),
    ]


def test_without_the_single_stream_only_the_servers_run() -> None:
    assert list(turns(Plan(rounds=2, single=False))) == [(0, POMONA), (0, MLX_LM), (1, MLX_LM), (1, POMONA)]


def test_a_round_has_one_load_for_all_and_shares_no_prompt_with_another() -> None:
    plan = Plan(streams=(1, 8), rounds=2)
    assert plan.load(0, 8) == plan.load(0, 8)
    loads = [plan.load(turn, streams) for turn in range(2) for streams in plan.streams]
    loads += [plan.single_load(turn) for turn in range(2)]
    loads += [warm_up for turn in range(2) for warm_up in plan.warm_ups(turn)]
    prompts = [one.prompt for load in loads for one in load.asks]
    assert len(set(prompts)) == len(prompts)


def test_each_stream_sends_its_share_of_requests_and_few_streams_a_minimum() -> None:
    plan = Plan(requests_per_stream=3, min_requests=4)
    assert [plan.load(0, streams).requests for streams in (1, 2, 16)] == [4, 6, 48]


def test_the_warm_up_takes_every_sampler_path_and_every_width() -> None:
    warm_ups = list(Plan(streams=(1, 8, 16)).warm_ups(0))
    assert [(load.concurrency, load.requests) for load in warm_ups] == [(1, 1), (1, 1), (8, 8), (16, 16)]
    assert [load.temperature > 0 for load in warm_ups] == [False, True, False, False]
