import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.methods.base import unit
from selfsame.methods.neighbours import nearest


def plain(query, table, k, label_m, label_n, allowed):
    """Every query on its own: score the rows that may be chosen, sort, take k."""
    values = []
    for m in range(len(query)):
        found = [float(query[m] @ table[n]) for n in allowed if label_m is None or int(label_n[n]) != int(label_m[m])]
        found = sorted(found, reverse=True)[:k]
        values.append(found + [-float("inf")] * (min(k, len(allowed)) - len(found)))
    return torch.tensor(values, dtype=query.dtype).reshape(len(query), min(k, len(allowed)))


@settings(max_examples=60)
@given(data=st.data())
def test_equals_a_plain_sort_for_any_sizes_labels_subsets_and_blocks(data):
    m, n = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    k, block = data.draw(st.integers(1, 33)), data.draw(st.integers(1, 35))
    seed = data.draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    # Small integers: exact products, and many ties.
    query = torch.randint(-2, 3, (m, 3), generator=generator).double()
    table = torch.randint(-2, 3, (n, 3), generator=generator).double()
    label_n = torch.randint(0, 4, (n,), generator=generator)
    label_m = torch.randint(0, 4, (m,), generator=generator) if data.draw(st.booleans()) else None
    subset = None
    if data.draw(st.booleans()):
        subset = torch.randperm(n, generator=generator)[: data.draw(st.integers(1, n))]
    value, index = nearest(query, table, k, label_M=label_m, label_N=label_n, subset_S=subset, block=block)

    allowed = list(range(n)) if subset is None else subset.tolist()
    assert torch.equal(value, plain(query, table, k, label_m, label_n, allowed))
    assert index.min() >= 0 and index.max() < n
    real = torch.isfinite(value)
    assert torch.equal((query[:, None] * table[index]).sum(-1)[real], value[real])
    for row in range(m):
        chosen = index[row][real[row]].tolist()
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(allowed)
        assert label_m is None or all(label_n[i] != label_m[row] for i in chosen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_row_labels_a_row_is_labelled_by_its_index(dtype):
    table = torch.randn(9, 4, dtype=dtype)
    value, index = nearest(table[[2, 7]], table, 8, label_M=torch.tensor([2, 7]), block=4)
    assert value.dtype == dtype and index.shape == (2, 8)
    assert 2 not in index[0].tolist() and 7 not in index[1].tolist()


def test_a_view_gives_cosines_block_by_block():
    query, table = torch.randn(3, 4).double(), torch.randn(11, 4).double()
    value, index = nearest(unit(query), table, 5, view=unit, block=3)
    whole_value, whole_index = nearest(unit(query), unit(table), 5)
    assert torch.allclose(value, whole_value) and torch.equal(index, whole_index)


def test_where_everything_is_skipped_all_values_are_minus_infinity():
    value, index = nearest(torch.ones(1, 2), torch.ones(3, 2), 5, label_M=torch.tensor([1]), label_N=torch.ones(3))
    assert value.tolist() == [[-float("inf")] * 3]
    assert index.max() < 3


def test_one_row_of_the_cohort_equals_the_client_alone():
    query, table, label = torch.randn(5, 4).double(), torch.randn(20, 4).double(), torch.arange(5)
    value, index = nearest(query, table, 3, label_M=label, block=6)
    for m in range(5):
        alone_value, alone_index = nearest(query[m : m + 1], table, 3, label_M=label[m : m + 1], block=6)
        assert torch.allclose(alone_value[0], value[m]) and torch.equal(alone_index[0], index[m])
