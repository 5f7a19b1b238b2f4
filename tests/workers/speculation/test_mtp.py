"""A model's own prediction head: loaded under the right contract, and fed with true hidden states."""

import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache
from safetensors.numpy import load_file

from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.models.error import ModelError
from pomona.workers.models.load import load
from pomona.workers.row import Row
from pomona.workers.sampling.draw import distribution
from pomona.workers.speculation import mtp as mtp_module
from pomona.workers.speculation.anatomy import trunk
from pomona.workers.speculation.corrector import Corrector, identity
from pomona.workers.speculation.mtp import Mtp, open_mtp
from pomona.workers.speculation.mtp_head import Contract, MtpHead, load_mtp_head, settle_contract
from pomona.workers.speculation.mtp_weights import read_mtp_weights
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.speculation.tap import Hidden, Tap
from tests.support.tiny_model import build_tiny_model
from tests.workers.engines import tiny, words
from tests.workers.speculation.drafts import HOT, commit, row_of
from tests.workers.speculation.heads import after, any_tokens, known, orbit, random_pair, save
from tests.workers.speculation.test_corrector import account


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pair(tmp_path_factory.mktemp("pair") / "model")


@pytest.fixture(scope="module")
def embedding_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known(tmp_path_factory.mktemp("embedding") / "model", "embedding")


class Driver:
    """Rows in a batch, whose forwards a proposer follows; what they commit is told."""

    def __init__(self, mtp: Mtp, rows: Sequence[Row]) -> None:
        self.mtp, self.rows = mtp, rows
        self.batch = Batch(mtp.model)
        for row in rows:
            caches = make_prompt_cache(mtp.model)
            if row.tokens[:-1]:
                mtp.model(mx.array([row.tokens[:-1]]), cache=caches)
            self.batch.join(row, caches)

    def step(self, *commits: Sequence[int], drafts: Sequence[Sequence[int]] | None = None) -> None:
        """Each row feeds its last token and its drafts; the first of these are what it commits, save for one more."""
        logits = self.batch.forward() if drafts is None else self.batch.verify(drafts)
        self.mtp.launched(self.batch, drafts)
        mx.eval(logits)
        for row, tokens in zip(self.rows, commits, strict=True):
            commit(row, tokens)
        if drafts is None:
            self.batch.inputs = mx.array([row.last_token for row in self.rows], dtype=mx.int32)
        else:
            self.batch.settle([len(tokens) for tokens in commits])


def propose(mtp: Mtp, *asks: tuple[Row, int]) -> list[Proposal]:
    return mtp.propose(Batch(mtp.model), [Ask(row, depth) for row, depth in asks])


def expected(head: MtpHead, model: Any, row: Row, since: int, depth: int) -> list[mx.array]:
    """Logits [1, vocabulary] of the greedy drafts, from a head that takes the whole history at once."""
    tap, tokens = Tap(model, 999), row.tokens
    tap.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(model))
    true = tap.take()
    assert true is not None
    cache = KVCache()
    made = head(head.of(true)[:, since:], mx.array([tokens[since + 1 :]]), cache)
    found = []
    for _ in range(depth):
        last = Hidden(made.pre[:, -1:], made.post[:, -1:])
        found.append(head.logits(last)[:, 0])
        made = head(head.of(last), mx.argmax(found[-1], axis=-1)[:, None], cache)
    return found


def test_drafts_follow_from_true_hidden_states_whatever_was_refused(pair: Path) -> None:
    model, _ = load(pair)
    mtp, head = open_mtp(pair, model, any_tokens(0, 20), "pair"), load_mtp_head(pair, model)
    assert mtp is not None
    assert head is not None
    settle_contract(head, model, any_tokens(0, 20), "pair")
    source = random.Random(3)
    rows = [row_of(f"r{length}", words(length, length)) for length in (1, 4, 11)]
    since = [len(row.tokens) - 1 for row in rows]
    driver, drafts = Driver(mtp, rows), [Proposal().tokens for _ in rows]
    for _ in range(8):
        kept = [drafted[: source.randint(0, len(drafted))] for drafted in drafts]
        driver.step(*([*own, source.randrange(3, 320)] for own in kept), drafts=drafts if any(drafts) else None)
        asking = [(row, source.randint(1, 3)) for row in rows if source.random() < 0.7]
        proposals = dict(zip([row.request.id for row, _ in asking], propose(mtp, *asking), strict=True))
        for row, depth in asking:
            logits = expected(head, model, row, since[rows.index(row)], depth)
            assert proposals[row.request.id] == Proposal(tuple(int(mx.argmax(each)) for each in logits))
        drafts = [proposals.get(row.request.id, Proposal()).tokens for row in rows]


def test_what_sampled_drafts_were_drawn_from_is_told(pair: Path) -> None:
    model, _ = load(pair)
    mtp, head = open_mtp(pair, model, any_tokens(0, 20), "pair"), load_mtp_head(pair, model)
    assert mtp is not None
    assert head is not None
    settle_contract(head, model, any_tokens(0, 20), "pair")
    row = row_of("r", words(1, 6), **HOT, top_k=5)
    Driver(mtp, [row]).step([9])
    (proposal,) = propose(mtp, (row, 2))
    assert proposal.distributions is not None
    own = distribution(expected(head, model, row, 5, 1)[0], [row.law()])
    np.testing.assert_allclose(np.array(proposal.distributions[0]), np.array(own[0]), atol=1e-5)
    assert all(proposal.distributions[index, token].item() > 0 for index, token in enumerate(proposal.tokens))


def test_a_model_in_a_batch_is_listened_to_while_it_computes_the_same(pair: Path) -> None:
    model, _ = load(pair)
    mtp = open_mtp(pair, model, any_tokens(0, 20), "pair")
    assert mtp is not None
    batch, alone, row = Batch(mtp.model), make_prompt_cache(model), row_of("r", (5,))
    batch.join(row, make_prompt_cache(model))
    for _ in range(3):
        logits = batch.forward()
        own = model(mx.array([[row.last_token]]), cache=alone)[:, -1]
        assert mx.allclose(logits, own, atol=1e-5).item()
        commit(row, [int(mx.argmax(logits))])
        batch.inputs = mx.array([row.last_token], dtype=mx.int32)


def test_a_trained_head_is_right_at_every_depth(embedding_head: Path) -> None:
    model, _ = load(embedding_head)
    mtp = open_mtp(embedding_head, model, any_tokens(0, 40), "known")
    assert mtp is not None
    rows = [row_of(f"r{start}", orbit(start, 3)) for start in (3, 50)]
    Driver(mtp, rows).step(*([after(row.last_token)] for row in rows))
    for row, proposal in zip(rows, propose(mtp, *((row, 4) for row in rows)), strict=True):
        assert list(proposal.tokens) == orbit(after(row.last_token), 4)


def test_nothing_is_drafted_before_the_last_hidden_state_was_heard(embedding_head: Path) -> None:
    model, _ = load(embedding_head)
    mtp = open_mtp(embedding_head, model, any_tokens(0, 40), "known")
    assert mtp is not None
    row = row_of("r", orbit(3, 3))
    driver = Driver(mtp, [row])
    assert propose(mtp, (row, 2)) == [Proposal()]
    driver.step([after(row.last_token)])
    assert len(propose(mtp, (row, 2))[0].tokens) == 2
    assert propose(mtp, (row, 2)) == [Proposal()]  # the same place again
    driver.step([after(row.last_token)])
    commit(row, [after(row.last_token)])  # by a forward that nobody told of
    assert propose(mtp, (row, 2)) == [Proposal()]
    row = row_of("r", row.tokens)
    driver = Driver(mtp, [row])
    driver.step([after(row.last_token)])
    assert len(propose(mtp, (row, 2))[0].tokens) == 2
    mtp.forget(row.request.id)
    mtp.forget(RequestId("never seen"))
    assert (mtp.nbytes, propose(mtp, (row, 2))) == (0, [Proposal()])


def test_a_row_that_is_not_asked_for_long_waits_with_a_bounded_history(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtp_module, "BACKLOG", 12)
    model, _ = load(pair)
    mtp, head = open_mtp(pair, model, any_tokens(0, 20), "pair"), load_mtp_head(pair, model)
    assert mtp is not None
    assert head is not None
    settle_contract(head, model, any_tokens(0, 20), "pair")
    row = row_of("r", words(1, 4))
    driver = Driver(mtp, [row])
    driver.step([5])
    assert len(propose(mtp, (row, 1))[0].tokens) == 1
    for token in any_tokens(5, 20):  # more than wait: between these and the history is a gap
        driver.step([token])
    logits = expected(head, model, row, len(row.tokens) - 1 - 12, 1)
    assert propose(mtp, (row, 1)) == [Proposal((int(mx.argmax(logits[0])),))]


@pytest.mark.parametrize("first", ["embedding", "hidden"])
@pytest.mark.parametrize("hidden", ["pre", "post"])
@pytest.mark.parametrize("centred", [False, True])
def test_the_contract_is_found_by_what_agrees(
    tmp_path: Path, first: Any, hidden: Any, centred: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = known(tmp_path / "model", "hidden", first=first, hidden=hidden, centred=centred)
    model, _ = load(folder)
    head = load_mtp_head(folder, model)
    assert head is not None
    with caplog.at_level(logging.INFO):
        assert settle_contract(head, model, orbit(3, 40), "known") == 1
    assert head.contract[:2] == (hidden, first)
    expected_level = logging.INFO if (hidden, first) == ("post", "embedding") else logging.WARNING
    assert [record.levelno for record in caplog.records if "mtp-contract" in record.message] == [expected_level]


def test_a_wrong_order_agrees_on_next_to_nothing(embedding_head: Path) -> None:
    model, _ = load(embedding_head)
    head = load_mtp_head(embedding_head, model)
    assert head is not None
    assert settle_contract(head, model, any_tokens(0, 60), "known") == 1
    assert head.contract == Contract("post", "embedding", centred=False)
    right, wrong = Mtp(model, head, "right"), Mtp(model, load_wrong(embedding_head, model), "wrong")
    for mtp in (right, wrong):
        rows = [row_of("r", any_tokens(1, 9))]
        Driver(mtp, rows).step([50])
    assert propose(right, (rows[0], 2)) == [Proposal((57, 64))]
    assert propose(wrong, (rows[0], 2))[0].tokens[0] != 57


def load_wrong(folder: Path, model: Any) -> MtpHead:
    head = load_mtp_head(folder, model)
    assert head is not None
    head.contract = head.contract._replace(first="hidden")
    return head


def test_offsets_from_one_are_told_by_their_values(tmp_path: Path) -> None:
    for centred in (False, True):
        folder = known(tmp_path / f"centred {centred}", "embedding", centred=centred)
        model, _ = load(folder)
        head = load_mtp_head(folder, model)
        assert head is not None
        assert head.contract.centred == centred
        assert mx.allclose(head.pre_fc_norm_hidden.weight, mx.ones(320), atol=1e-6).item()


def test_a_head_that_is_never_right_is_reported_once(
    embedding_head: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mtp_module, "WINDOW", 6)
    model, _ = load(embedding_head)
    head = load_mtp_head(embedding_head, model)
    assert head is not None
    mtp, row = Mtp(model, head, "known"), row_of("r", orbit(3, 3))
    driver = Driver(mtp, [row])
    for step in range(20):
        driver.step([after(row.last_token) if step == 4 else 100 + step])
        assert propose(mtp, (row, 1))[0].tokens == (after(row.last_token),)
    told = [record.message for record in caplog.records if "mtp-useless" in record.message]
    assert told == ["mtp-useless model=known: its head's last 6 first drafts were refused"]


def test_a_head_that_agrees_nowhere_is_reported_when_it_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = known(tmp_path / "model", "embedding")
    weights = load_file(folder / "model-mtp.safetensors")
    weights["mtp.fc.weight"] = -weights["mtp.fc.weight"]
    save(folder / "model-mtp.safetensors", weights)
    model, _ = load(folder)
    assert open_mtp(folder, model, any_tokens(0, 40), "known") is not None
    assert any("mtp-useless model=known: its head agrees" in record.message for record in caplog.records)


@pytest.mark.parametrize("pays", [True, False])
def test_a_corrector_is_used_if_it_pays(tmp_path: Path, pays: bool) -> None:
    """The head's guessed states have known wrong signs."""
    folder = known(tmp_path / "model", "hidden", drifts=True)
    model, _ = load(folder)
    head = load_mtp_head(folder, model)
    assert head is not None
    signs = np.array(mx.sign(head.norm.weight * trunk(model).norm.weight), np.float32)
    nothing = identity(320)._replace(scale=signs, bias=np.zeros(320, np.float32))
    told = account(size=320, after=(0.5, 0.6) if pays else (0.5, 0.4))
    mtp = open_mtp(folder, model, orbit(3, 40), "known", Corrector([nothing] * 2, told))
    assert mtp is not None
    rows = [row_of(f"r{start}", orbit(start, 3)) for start in range(3, 11)]
    Driver(mtp, rows).step(*([after(row.last_token)] for row in rows))
    # With two depths corrected the third guess is the last that is made from what is as good as a true state.
    right = [
        list(proposal.tokens[:3]) == orbit(after(row.last_token), 3)
        for row, proposal in zip(rows, propose(mtp, *((row, 4) for row in rows)), strict=True)
    ]
    assert all(right) == pays


def test_the_last_depth_is_corrected_too(tmp_path: Path) -> None:
    folder = known(tmp_path / "model", "hidden")
    model, _ = load(folder)
    negative = Corrector([identity(320)._replace(scale=np.full(1, -1, np.float32))], account(size=320))
    mtp = open_mtp(folder, model, orbit(3, 40), "known", negative)
    assert mtp is not None
    row = row_of("r", orbit(3, 3))
    Driver(mtp, [row]).step([after(row.last_token)])
    first, second = propose(mtp, (row, 2))[0].tokens
    assert [first] == orbit(after(row.last_token), 1)
    assert second != after(first)


def test_a_corrector_of_another_model_is_reported_and_not_used(
    embedding_head: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = load(embedding_head)
    mtp = open_mtp(embedding_head, model, any_tokens(0, 40), "known", Corrector([identity(24)], account()))
    assert mtp is not None
    assert "corrector-unusable model=known: the corrector is for hidden states of 24 channels" in caplog.text
    row = row_of("r", orbit(3, 3))
    Driver(mtp, [row]).step([after(row.last_token)])
    assert len(propose(mtp, (row, 3))[0].tokens) == 3


def test_a_model_without_a_head_has_no_such_proposer() -> None:
    assert open_mtp(Path("/nowhere"), tiny().model, [1, 2, 3], "tiny") is None


def test_a_head_that_cannot_be_used_is_reported_and_its_model_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = random_pair(tmp_path / "model")
    model, _ = load(folder)
    weights = load_file(folder / "model-mtp.safetensors")
    for spoilt, reason in (
        ({"mtp.fc.weight": np.ones((3, 3))}, "do not fit its config.json"),
        ({"mtp.layers.1.input_layernorm.weight": np.ones(64)}, "of more than one layer is of an unknown layout"),
    ):
        save(folder / "model-mtp.safetensors", {**weights, **spoilt})
        caplog.clear()
        assert open_mtp(folder, model, [1, 2, 3], "tiny") is None
        assert "mtp-unusable model=tiny: " in caplog.text
        assert reason in caplog.text
    save(folder / "model-mtp.safetensors", weights)
    assert open_mtp(folder, tiny("llama").model, [1, 2, 3], "tiny") is None
    assert "llama is of an unknown layout" in caplog.text
    (folder / "model-mtp.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"model-mtp\.safetensors cannot be read"):
        load_mtp_head(folder, model)


def test_experts_are_joined_however_the_file_holds_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    experts = {name: random.standard_normal((3, 4, 5)).astype(np.float32) for name in ("gate_proj", "up_proj")}
    down = random.standard_normal((3, 5, 4)).astype(np.float32)
    apart = {
        f"model.mtp.layers.0.mlp.experts.{number}.{name}.weight": array[number]
        for name, array in [*experts.items(), ("down_proj", down)]
        for number in range(3)
    }
    together = {
        "mtp.layers.0.mlp.experts.gate_up_proj": np.concatenate([experts["gate_proj"], experts["up_proj"]], axis=1),
        "mtp.layers.0.mlp.experts.down_proj": down,
    }
    for name, weights in (("apart", apart), ("together", together)):
        (tmp_path / name).mkdir()
        others = {"model.norm.weight": down, "mtp.embed_tokens.weight": down}
        save(tmp_path / name / "model.safetensors", {**weights, **others, "mtp.norm.weight": np.ones(5)})
        found = read_mtp_weights(tmp_path / name)
        assert found.keys() == {"norm.weight"} | {
            f"layers.0.mlp.switch_mlp.{each}.weight" for each in ("gate_proj", "up_proj", "down_proj")
        }
        assert np.array_equal(np.array(found["layers.0.mlp.switch_mlp.up_proj.weight"]), experts["up_proj"])
        assert np.array_equal(np.array(found["layers.0.mlp.switch_mlp.down_proj.weight"]), down)


def test_a_head_with_experts_is_loaded_and_guesses(tmp_path: Path) -> None:
    """Of Qwen3-Next, whose file holds each expert by itself, beside a model that was converted already."""
    config = {"num_experts": 4, "num_experts_per_tok": 2}
    folder = build_tiny_model(tmp_path / "model", "qwen3_next", config=config)
    prefix = "model.layers.1."
    layer = {
        f"mtp.layers.0.{name.removeprefix(prefix)}": value
        for name, value in load_file(folder / "model.safetensors").items()
        if name.startswith(prefix)
    }
    for projection in ("gate_proj", "up_proj", "down_proj"):
        for number, expert in enumerate(layer.pop(f"mtp.layers.0.mlp.switch_mlp.{projection}.weight")):
            layer[f"mtp.layers.0.mlp.experts.{number}.{projection}.weight"] = expert
    ones = {f"mtp.{name}.weight": np.ones(64) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    source = np.random.default_rng(0)
    save(folder / "mtp.safetensors", {**layer, **ones, "mtp.fc.weight": source.standard_normal((64, 128)) / 8})
    model, _ = load(folder)
    head = load_mtp_head(folder, model)
    assert head is not None
    assert head.layers[0].mlp.switch_mlp.up_proj.weight.shape[0] == 4
    mtp, row = Mtp(model, head, "experts"), row_of("r", words(1, 6))
    Driver(mtp, [row]).step([9])
    logits = expected(head, model, row, 5, 2)
    assert propose(mtp, (row, 2)) == [Proposal(tuple(int(mx.argmax(each)) for each in logits))]


def test_a_quantised_head_stays_packed(tmp_path: Path) -> None:
    folder = random_pair(tmp_path / "model")
    model, _ = load(folder)
    weights = load_file(folder / "model-mtp.safetensors")
    packed, scales, biases = mx.quantize(mx.array(weights.pop("mtp.fc.weight")), group_size=32, bits=8)
    arrays = {name: mx.array(value) for name, value in weights.items()}
    mx.save_safetensors(
        str(folder / "model-mtp.safetensors"),
        {**arrays, "mtp.fc.weight": packed, "mtp.fc.scales": scales, "mtp.fc.biases": biases},
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 32, "bits": 8}}))
    head = load_mtp_head(folder, model)
    assert head is not None
    assert (head.fc.bits, head.fc.weight.dtype) == (8, mx.uint32)
