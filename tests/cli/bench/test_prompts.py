from itertools import islice, repeat

from pomona.cli.bench.prompts import unique_prompts


def first(seed: str, count: int = 200, words: int = 6) -> list[str]:
    return list(islice(unique_prompts(seed, repeat(words)), count))


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert first("7") == first("7")


def test_no_two_prompts_begin_alike_whatever_the_seed() -> None:
    starts = [prompt[:12] for seed in ("0", "1", "0 warm-up") for prompt in first(seed)]
    assert len(set(starts)) == len(starts)


def test_a_prompt_draws_as_many_words_as_asked_for() -> None:
    short, long = first("0", 1, 5)[0], first("0", 1, 50)[0]
    assert len(long.split()) - len(short.split()) == 45


def test_each_prompt_has_the_words_that_were_drawn_for_it() -> None:
    short, long = unique_prompts("0", iter([5, 50]))
    assert len(long.split()) - len(short.split()) == 45
