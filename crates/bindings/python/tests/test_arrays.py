"""`untorn.memmap` and `untorn.open_memmap`."""

from __future__ import annotations

import gc
import os
import pickle
import threading

import pytest
from conftest import forked

import untorn

np = pytest.importorskip("numpy", reason="skipped: numpy is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def on_disk(name: str) -> bytes:
    with untorn.open(name, "rb") as file:
        return file.read()


def test_flush_is_the_commit() -> None:
    array = untorn.memmap("a", "<u4", "w+", shape=(100, 10))
    assert isinstance(array, np.ndarray) and array.shape == (100, 10) and not array.any()
    array[3] = 7
    assert on_disk("a") == b""
    array.flush()
    assert np.frombuffer(on_disk("a"), "<u4").sum() == 70
    array[4] = 8
    array.rollback()
    assert array.sum() == 70
    array[5] = 1
    array.flush_async().result()
    assert np.frombuffer(on_disk("a"), "<u4").sum() == 80
    array.close()
    with untorn.memmap("a", "<u4", "r", shape=(100, 10)) as again:
        assert again.sum() == 80
        with pytest.raises(ValueError):
            again[0] = 1
    with open("a", "rb") as file:
        assert len(file.read()) == 4000


def test_blocks_commit_or_roll_back() -> None:
    with untorn.memmap("a", mode="w+", shape=10) as array:
        array[:] = 1
    with pytest.raises(ZeroDivisionError), untorn.memmap("a") as array:
        array[:] = 2
        1 / 0
    assert on_disk("a") == b"\1" * 10
    array = untorn.memmap("a")
    array[:] = 3
    with pytest.raises(untorn.Uncommitted, match="flush"):
        array.close()
    array.close()
    assert on_disk("a") == b"\1" * 10


def test_close_waits_for_no_view_and_keeps_memory_safe() -> None:
    array = untorn.memmap("a", "f8", "w+", shape=(8, 8))
    array.flush()
    for make in (
        lambda: array[1:],
        lambda: array.T,
        lambda: np.asarray(array),
        lambda: np.asarray(array)[2:],
        lambda: array.view(np.ndarray).reshape(-1),
        lambda: array[2:].view(np.ndarray),
        lambda: array.resized(4),
    ):
        view = make()
        with pytest.raises(BufferError, match="views"):
            array.close()
        view[0] = 1
        del view
    memory = memoryview(array)
    array.flush()
    array.close()
    # Memory that somebody may still have stays, and cannot be changed through the array.
    assert memory[0, 0] == 1.0 and array[0, 0] == 1.0
    with pytest.raises(ValueError):
        array[0, 0] = 2
    for call in (array.flush, array.rollback, array.flush_async):
        with pytest.raises(ValueError, match="closed"):
            call()
    with untorn.memmap("a", "f8") as other:
        assert other[0] == 1.0


# A collection does nothing while another thread collects.
@pytest.mark.thread_unsafe
def test_views_in_a_cycle_do_not_count() -> None:
    array = untorn.memmap("a", "f8", "w+", shape=8)
    array.flush()
    cycle: list[object] = [array[1:]]
    cycle.append(cycle)
    del cycle
    array.close()


def test_results_of_computations_are_plain_arrays() -> None:
    with untorn.memmap("a", "f8", "w+", shape=8) as array:
        assert type(array + 1) is np.ndarray and type(array.sum()) is np.float64
        assert type(array[[1, 2]]) is np.ndarray and type(array[1:]) is untorn.memmap
        assert type(pickle.loads(pickle.dumps(array))) is np.ndarray
        array[1:].flush()


def test_a_finaliser_never_commits() -> None:
    array = untorn.memmap("a", mode="w+", shape=10)
    array[:] = 1
    array.flush()
    array[:] = 2
    with pytest.warns(ResourceWarning, match="unclosed memmap"):
        del array
        gc.collect()
    assert on_disk("a") == b"\1" * 10


def test_shapes_offsets_and_orders() -> None:
    with untorn.memmap("a", "<u2", "w+", offset=6, shape=(2, 3), order="F") as array:
        array[:] = [[1, 2, 3], [4, 5, 6]]
    assert np.frombuffer(on_disk("a")[6:], "<u2").tolist() == [1, 4, 2, 5, 3, 6]
    with untorn.memmap("a", "<u2", "r", offset=6) as array:
        assert array.shape == (6,)
    with pytest.raises(ValueError, match="multiple"):
        untorn.memmap("a", "<u4", offset=1)
    with pytest.raises(ValueError, match="too short"):
        untorn.memmap("a", "<u4", "r", shape=100)
    with pytest.raises(ValueError, match="shape"):
        untorn.memmap("b", mode="w+")
    with pytest.raises(ValueError, match="mode"):
        untorn.memmap("b", mode="x")
    with pytest.raises(FileNotFoundError):
        untorn.memmap("b")
    with untorn.memmap("a", "<u2", offset=6) as array:
        with pytest.raises(ValueError, match="resized"):
            array.resize(1000)
        larger = array.resized((1000,))
        assert larger[:6].tolist() == [1, 4, 2, 5, 3, 6] and not larger[6:].any()
        larger[999] = 9
        array[0] = 8
        del larger
    assert len(on_disk("a")) == 6 + 2000
    with untorn.memmap("e", "u1", "w+", shape=0) as array:
        assert array.size == 0


def test_stores_to_a_copy_never_reach_the_file() -> None:
    with untorn.memmap("a", "u1", "w+", shape=10) as array:
        array[:] = 1
    plain = np.memmap("plain", "u1", "w+", shape=10)
    plain[:] = 1
    plain.flush()
    for name, module in ("plain", np), ("plain", untorn), ("a", untorn):
        copy = module.memmap(name, "u1", "c", offset=2)
        copy[0] = 2
        copy[1:].flush()
        copy.flush()
        assert copy.tolist() == [2] + [1] * 7 and copy.mode == copy[1:].mode == "c"
        with pytest.raises(ValueError):
            module.memmap(name, "u1", "c", shape=11)
    assert on_disk("a") == on_disk("plain") == b"\1" * 10
    with untorn.Store("store") as store:
        array = store.memmap("a", "u1", "w+", shape=4)
        array[:] = 1
        with store.memmap("a", "u1", "c") as copy, store.memmap("a", "u1") as other:
            copy[:] = 2
            with pytest.raises(TypeError):
                untorn.sync(array, copy)
            for call in copy.rollback, copy.flush_async:
                with pytest.raises(ValueError, match="a copy"):
                    call()
            array.flush()
            assert other.tolist() == [1] * 4 and copy.tolist() == [2] * 4
            copy.close()
        array.close()
    assert untorn.Reader("store").read("a") == b"\1" * 4
    with untorn.open_memmap("a.npy", "w+", "<f4", (3,)) as array:
        array[:] = 1
    copy = untorn.open_memmap("a.npy", "c")
    copy[:] = 2
    assert np.load("a.npy").tolist() == [1, 1, 1]


def test_npy_files() -> None:
    for fortran in (False, True):
        with untorn.open_memmap("a.npy", "w+", "<f4", (3, 4), fortran) as array:
            array[:] = np.arange(12).reshape(3, 4)
        assert (np.load("a.npy") == np.arange(12).reshape(3, 4)).all()
        with untorn.open_memmap("a.npy") as array:
            assert array.dtype == "<f4" and array.flags.f_contiguous == fortran
            array[1, 1] = 100
        assert np.load("a.npy")[1, 1] == 100
    with pytest.raises(ValueError, match="objects"):
        untorn.open_memmap("b.npy", "w+", object, 3)


def test_arrays_of_a_store_commit_with_files() -> None:
    with untorn.Store("store") as store:
        array = store.memmap("field", "u1", "w+", shape=5)
        with store.open("log", "w") as log:
            array[:] = 1
            log.write("one")
            untorn.sync(log, array)
        reader = untorn.Reader("store")
        assert reader.read("field") == b"\1" * 5 and reader.read("log") == b"one"
        shown = reader.memmap("field", "u1")
        array[:] = 2
        array.flush()
        assert shown.tolist() == [1] * 5 and reader.memmap("field")[0] == 2
        with pytest.raises(ValueError):
            shown[0] = 1
        array.close()
        with store.open("field", "rb") as file:
            assert file.read() == b"\2" * 5


def test_a_child_can_look_and_not_commit() -> None:
    array = untorn.memmap("a", "u1", "w+", shape=5)
    array[:] = 1
    array.flush()

    def child() -> None:
        assert array.tolist() == [1] * 5
        array[:] = 2
        for call in (array.flush, array.rollback, array.close):
            with pytest.raises(untorn.Forked):
                call()

    assert forked(child) == (0, "")
    assert array.tolist() == [1] * 5
    array.close()


def test_many_arrays_of_one_file_from_threads() -> None:
    with untorn.Store("store") as store:
        store.memmap("a", "u1", "w+", shape=8000).flush()

        def work(number: int) -> None:
            for _ in range(10):
                array = store.memmap("a", "u1")
                array[number * 1000 : (number + 1) * 1000] = number
                array.flush()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert untorn.Reader("store").read("a") == b"".join(bytes([n]) * 1000 for n in range(8))
    assert os.path.getsize("store/a") == 8000
