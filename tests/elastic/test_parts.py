"""The pure parts: which samples a step uses, who owns them, what the ledger shows, and how sums are ordered."""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dorm.elastic
from dorm.elastic import ledger
from dorm.elastic.chunks import Chunks
from dorm.elastic.contract import Contract
from dorm.elastic.errors import ContractError, PeerError, StateError
from dorm.elastic.job import Job
from dorm.elastic.ownership import computed_by, owned_by, shared_out, targets
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol.handover import Handover, unchanged
from dorm.elastic.state import Keeper
from dorm.elastic.summing import combine, partial_sums
from dorm.elastic.values import pack, unpack

FOLDER = Path(dorm.elastic.__file__).parent


FIRST_ORDER = [16, 9, 8, 10, 19, 7, 5, 12, 13, 17, 2, 11, 0, 14, 6, 15, 18, 1, 3, 4]


class TestChunks:
    @settings(deadline=None)
    @given(st.integers(1, 300), st.integers(1, 80), st.data())
    def test_an_epoch_uses_each_sample_exactly_once(self, samples: int, batch: int, data: st.DataObject) -> None:
        chunks = Chunks(samples, batch, data.draw(st.integers(1, samples)), seed=data.draw(st.integers(0, 9)))
        epoch = data.draw(st.integers(0, 3))
        seen: list[int] = []
        for step in range(epoch * chunks.steps_per_epoch, (epoch + 1) * chunks.steps_per_epoch):
            parts = [chunks.part(step, chunk) for chunk in range(chunks.count)]
            size = sum(map(len, parts))
            assert (size, list(map(len, parts))) == (chunks.size(step), chunks.sizes(step))
            assert size == batch or (chunks.ends_epoch(step) and size == samples - batch * (chunks.steps_per_epoch - 1))
            for chunk, part in enumerate(parts):
                assert set(part) <= set(chunks.samples_of(chunk))
            seen += itertools.chain.from_iterable(parts)
        assert sorted(seen) == list(range(samples))

    @settings(deadline=None)
    @given(st.integers(1, 300), st.integers(1, 80), st.data())
    def test_no_step_has_fewer_samples_than_a_least_share(self, samples: int, batch: int, data: st.DataObject) -> None:
        least = data.draw(st.integers(0, min(batch, samples)))
        drop_last = data.draw(st.booleans()) and samples >= batch
        chunks = Chunks(samples, batch, data.draw(st.integers(1, samples)), least=least, drop_last=drop_last)
        steps = range(2 * chunks.steps_per_epoch, 3 * chunks.steps_per_epoch)
        sizes = [chunks.size(step) for step in steps]
        assert sizes[:-1] == [batch] * (len(sizes) - 1)
        assert sizes[-1] == batch if drop_last else max(least, 1) <= sizes[-1] < batch + max(least, 1)
        parts = [chunks.part(step, chunk) for step in steps for chunk in range(chunks.count)]
        left_out = [chunks.left_out(step, chunk) for step in steps for chunk in range(chunks.count)]
        assert sum(map(len, left_out)) == (samples % batch if drop_last else 0)
        assert ledger.entry_of([*parts, *left_out]) == ledger.expected(samples)

    def test_each_epoch_has_an_order_of_its_own_which_never_changes(self) -> None:
        chunks = Chunks(20, 20, 1, seed=3)
        # Written down: another order would let a job that continues from a checkpoint use samples twice.
        assert chunks.part(0, 0).tolist() == FIRST_ORDER
        assert chunks.part(1, 0).tolist() != FIRST_ORDER

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ((0, 1, 1), "no_samples"),
            ((5, 0, 1), "batch"),
            ((5, 1, 6), "chunks"),
            ((5, 1, 0), "chunks"),
            ((5, 6, 1, 0, 0, True), "drop_last"),
            ((5, 2, 1, 0, 3), "least"),
            ((2, 5, 1, 0, 3), "least"),
            ((5, 2, 1, 0, -1), "least"),
        ],
    )
    def test_indivisible_batches_are_refused(self, arguments: tuple[Any, ...], code: str) -> None:
        with pytest.raises(ContractError) as error:
            Chunks(*arguments)
        assert error.value.code == f"elastic.contract.{code}"


class TestLedger:
    @given(st.integers(1, 200), st.randoms(use_true_random=False))
    def test_the_digest_is_that_of_every_sample_once_in_any_order(self, samples: int, random: object) -> None:
        order = list(range(samples))
        random.shuffle(order)  # type: ignore[attr-defined]
        cut = samples // 3
        total = ledger.entry_of([np.array(order[:cut], dtype=np.int64)]) + ledger.entry_of(
            [np.array(order[cut:], dtype=np.int64)]
        )
        assert total == ledger.expected(samples)

    @given(st.integers(2, 200), st.data())
    def test_a_lost_a_repeated_and_an_exchanged_sample_change_it(self, samples: int, data: st.DataObject) -> None:
        one, other = data.draw(st.lists(st.integers(0, samples - 1), min_size=2, max_size=2, unique=True))
        whole = list(range(samples))
        for wrong in ([s for s in whole if s != one], [*whole, one], [other if s == one else s for s in whole]):
            assert ledger.entry_of([np.array(wrong, dtype=np.int64)]) != ledger.expected(samples)


class TestOwnership:
    @given(
        st.integers(1, 40),
        st.sets(st.integers(0, 12), min_size=1, max_size=8),
        st.sets(st.integers(0, 12), min_size=1, max_size=8),
        st.dictionaries(st.integers(0, 12), st.floats(0.1, 100)),
    )
    def test_each_chunk_has_one_owner_and_few_move(
        self, count: int, old: set[int], new: set[int], rates: dict[int, float]
    ) -> None:
        before = shared_out([-1] * count, sorted(old), {})
        after = shared_out(before, sorted(new), rates)
        wanted = targets(count, sorted(new), rates)
        assert {slot: len(owned_by(after, slot)) for slot in new} == wanted
        stayed = sum(was == now for was, now in zip(before, after, strict=True))
        assert stayed == sum(min(wanted[slot], len(owned_by(before, slot))) for slot in new & old)

    @given(
        st.lists(st.integers(0, 3), min_size=1, max_size=40).map(lambda extra: [sum(extra) % 9 + one for one in extra]),
        st.sets(st.integers(0, 12), min_size=1, max_size=8),
        st.dictionaries(st.integers(0, 12), st.floats(0.1, 100)),
        st.integers(1, 12),
    )
    def test_each_member_computes_its_least_share_or_nothing(
        self, sizes: list[int], members: set[int], rates: dict[int, float], least: int
    ) -> None:
        if sum(sizes) < least:
            sizes = [*sizes, least]
        owners = shared_out([-1] * len(sizes), sorted(members), rates)
        given = computed_by(sizes, owners, sorted(members), least)
        shares = [sum(sizes[chunk] for chunk in owned_by(given, slot)) for slot in members]
        assert sum(shares) == sum(sizes), "each part is computed once, by a member"
        assert all(share >= least or not share for share in shares)
        assert [slot for slot, size in zip(given, sizes, strict=True) if not size] == [
            owner for owner, size in zip(owners, sizes, strict=True) if not size
        ], "parts without samples stay with their owners"

    def test_small_batches_are_shared_fairly(self) -> None:
        owners = shared_out([-1] * 32, [0, 1, 2], {})
        sizes = [1] * 8 + [0] * 24
        given = computed_by(sizes, owners, [0, 1, 2], 1)
        assert [sum(sizes[chunk] for chunk in owned_by(given, slot)) for slot in (0, 1, 2)] == [3, 3, 2]
        given = computed_by([1] * 5 + [0] * 27, owners, [0, 1, 2], 2)
        assert sorted(len([c for c in owned_by(given, slot) if c < 5]) for slot in (0, 1, 2)) == [0, 2, 3]

    @given(st.integers(1, 12), st.integers(1, 4))
    def test_owners_compute_their_own_parts_of_large_batches(self, size: int, members: int) -> None:
        slots = list(range(members))
        owners = shared_out([-1] * 32, slots, {})
        sizes = [size + (chunk < 16) for chunk in range(32)]
        assert computed_by([size] * 32, owners, slots, 1) == owners
        assert sum(a != b for a, b in zip(computed_by(sizes, owners, slots, 1), owners, strict=True)) <= 4

    def test_a_slow_member_gets_fewer(self) -> None:
        assert targets(30, [0, 1], {0: 100.0, 1: 50.0}) == {0: 20, 1: 10}


class TestSums:
    @given(st.integers(1, 24), st.data())
    def test_the_bits_do_not_depend_on_who_owns_what(self, count: int, data: st.DataObject) -> None:
        parts = [np.array([data.draw(st.floats(-1e6, 1e6)), 1e-3 * chunk]) for chunk in range(count)]
        alone = combine(count, partial_sums(count, range(count), lambda chunk: [parts[chunk]]))
        owners = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        sent: dict[tuple[int, int], list[np.ndarray]] = {}
        for slot in range(4):
            sent.update(partial_sums(count, owned_by(owners, slot), lambda chunk: [parts[chunk]]))
        assert [a.tobytes() for a in combine(count, sent)] == [a.tobytes() for a in alone]

    def test_a_missing_chunk_and_parts_of_different_shapes_are_refused(self) -> None:
        sums = partial_sums(4, [0, 1, 3], lambda chunk: [np.zeros(2)])
        with pytest.raises(ContractError) as error:
            combine(4, sums)
        assert error.value.code == "elastic.contract.missing_chunk"
        with pytest.raises(ContractError) as error:
            partial_sums(2, [0, 1], lambda chunk: [np.zeros(1 + chunk)])
        assert error.value.code == "elastic.contract.shapes"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
)


class TestValues:
    @given(values)
    def test_packed_values_are_unpacked_unchanged(self, value: object) -> None:
        assert unpack(*pack(value)) == value

    def test_arrays_come_back_with_their_kind(self) -> None:
        value: dict[str, Any] = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.float32(0.5),
            "empty": np.zeros((0, 3), dtype=np.int8),
        }
        back = unpack(*pack(value))
        assert {name: (one.dtype, one.shape) for name, one in back.items()} == {
            n: (o.dtype, o.shape) for n, o in value.items()
        }
        assert back["a"].tobytes() == value["a"].tobytes()

    @pytest.mark.parametrize("value", [object(), np.array([object()]), {"a": [set()]}, np.array(["text"])])
    def test_values_that_cannot_be_sent_are_refused_by_name(self, value: object) -> None:
        with pytest.raises(StateError) as error:
            pack(value)
        assert error.value.code == "elastic.state.kind"

    def test_a_state_must_fit_the_script(self) -> None:
        keeper = Keeper({"w": np.zeros(3)})
        for other, code in (
            ({"v": np.zeros(3)}, "names"),
            ({"w": np.zeros(4)}, "shape"),
            ({"w": np.zeros(3, np.float32)}, "shape"),
        ):
            with pytest.raises(StateError) as error:
                keeper.load(pack(other))
            assert error.value.code == f"elastic.state.{code}"
        with pytest.raises(StateError) as error:
            Keeper({"w": [1, 2]})
        assert error.value.code == "elastic.state.kind"


class TestHandover:
    def test_arrays_are_the_same_only_bit_for_bit(self) -> None:
        large = np.arange(1_000_000.0)
        last, same = large.copy(), large.copy()
        last[-1] += 1
        before: list[Any] = [
            large,
            large,
            np.array([np.nan]),
            np.array([0.0]),
            np.zeros(2),
            np.zeros(2),
            np.array(3),
            large[::2],
        ]
        after: list[Any] = [
            same,
            last,
            np.array([np.nan]),
            np.array([-0.0]),
            np.zeros(3),
            np.zeros(2, np.float32),
            np.array(3),
        ]
        assert unchanged(before, [*after, same[::2]]) == {0, 2, 6, 7}
        assert unchanged(before[:2], after[:1]) == {0}

    def test_a_newcomer_completes_the_state_from_the_first_one_that_this_leader_sent(self) -> None:
        leader, newcomer = Handover(), Handover()
        old, new, table = np.zeros(2), np.ones(2), np.arange(5)
        leader.offered = m.State(4, step=10, payload=[old, table])
        newcomer.keep(0, leader.offered, set())
        leader.holds(7, newcomer.step_held(0))
        final = m.State(5, step=12, first=False, structure="s", payload=[new, table])
        sent = leader.reduced(final, frozenset({1}), 7)
        assert ([array.tolist() for array in sent.payload], sent.kept) == ([[1, 1]], [1])
        structure, arrays = newcomer.whole(0, sent)
        assert (structure, [array.tolist() for array in arrays]) == ("s", [[1, 1], [0, 1, 2, 3, 4]])

        # A newcomer that has its first state from another leader, or has lost the connection, is sent everything.
        leader.holds(8, -1)
        leader.forget(7)
        assert leader.reduced(final, frozenset({1}), 8) is leader.reduced(final, frozenset({1}), 7) is final
        with pytest.raises(PeerError) as error:
            Handover().whole(0, sent)
        assert error.value.code == "elastic.peer.field"


class TestTheDistribution:
    def test_it_is_for_python_3_9_and_imports_numpy_alone(self) -> None:
        import sys

        for path in sorted(FOLDER.rglob("*.py")):
            tree = ast.parse(path.read_text(), feature_version=(3, 9))
            for node in ast.walk(tree):
                assert not isinstance(node, ast.Match), path
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    top = name.split(".")[0]
                    known = (
                        name.startswith("dorm.elastic")
                        or name == "dorm"
                        or top in ("numpy", "torch")
                        or top in sys.stdlib_module_names
                    )
                    assert known, f"{path} imports {name}"


def test_a_leaver_lets_the_others_make_a_step_before_it_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that they share, its farewell and the end of its process take CPU time."""
    done: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: done.append("waits") if seconds > 0.01 else None)
    for left in (False, True):
        job = Job(None, Contract())
        job.left = left
        monkeypatch.setattr(job.group, "close", lambda: done.append("says goodbye"))
        job.close()
    assert done == ["says goodbye", "waits", "says goodbye"]
