"""A child made by ``os.fork()`` says at once that the devices are its parent's; the parent goes on."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

DOORS = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")  # JAX and Python warn of forking beside threads
import jax, numpy as np, pathways_nb as pw

v = np.arange(4, dtype=np.float32)
with pw.attach({kind!r}, islands=2, devices_per_island=2) as controller:
    place = pw.virtual_slice(2)
    double = pw.jit(lambda x: x * 2, on=place)
    program = pw.program(lambda x: double(x))
    y = program(v)
    y.wait()
    other, slow = pw.client("other"), pw.program(lambda x: pw.work(0.05, on=place)(x))
    pending = [slow(v) for _ in range(4)]
    doors = {{
        "call": lambda: double(v),
        "program": lambda: program(v),
        "graph": lambda: program.graph(v),
        "put": lambda: pw.put(v, on=place),
        "result": y.result,
        "float": lambda: float(pending[0]),
        "wait": pending[-1].wait,
        "get": lambda: pw.get(pending),
        "attach": lambda: pw.attach("cpu"),
        "simulate": lambda: pw.attach("sim:tpu_v3"),
        "reset": pw.reset,
        "record": lambda: pw.record().__enter__(),
        "client": other.__enter__,
        "cancel": other.cancel,
        "close": other.close,
        "add": lambda: controller.add(devices=2),
        "remove": lambda: controller.remove(island=0),
        "status": controller.status,
        "wait_all": controller.wait_all,
        "predict": lambda: pw.predict(program, v),
    }}
    sys.stdout.flush()
    with pw.record() as run, pw.client("inside"):
        double(v)  # batched: it goes out at the end of the block
        child = os.fork()
        if child == 0:
            signal.alarm(280)  # whatever hangs, hangs no longer than this
            told = {{}}
            for name, door in doors.items():
                try:
                    told[name] = f"nothing: {{door()!r}}"
                except BaseException as error:
                    told[name] = f"{{type(error).__name__}}: {{error}}"
    if child == 0:
        del pending[1:], run, place
        assert y.done() and repr(y)
        expected = (
            f"NotAttachedError: this process is a child that os.fork() made of process {{os.getppid()}}, which had "
            f"attached devices: their threads, and those of JAX, exist in process {{os.getppid()}} only. Start the "
            f'child with multiprocessing.get_context("spawn") or subprocess and call pw.attach(...) in it, or send it '
            f"host values (y.result() before the fork)."
        )
        print("wrong:", {{name: text for name, text in told.items() if text != expected}})
        print("doors:", len(told) == len(doors))
        controller.close()
if child == 0:
    sys.stdout.flush()
    os._exit(7)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent:", len(run.events) > 0, [one.done() for one in pending])
"""


@pytest.mark.parametrize("kind", ["cpu", "sim:tpu_v3"])
def test_every_door_of_a_forked_child_says_so_at_once_and_the_parent_goes_on(fresh_python, kind) -> None:
    done = fresh_python(DOORS.format(kind=kind))
    assert done.stdout.splitlines() == ["wrong: {}", "doors: True", "child: 7", "parent: True [True, True, True, True]"]
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_child_that_exits_as_other_programs_do_neither_hangs_nor_fails(fresh_python) -> None:
    """Finalizers and what is registered for the exit run, where nothing is under way on the devices."""
    done = fresh_python("""
    import multiprocessing, os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import numpy as np, pathways_nb as pw

    v = np.arange(4, dtype=np.float32)
    pw.attach("cpu", islands=2, devices_per_island=2)
    double = pw.jit(lambda x: x * 2, on=pw.virtual_slice(2))
    y = double(v)
    print(y.result().tolist())

    def call():
        signal.alarm(280)
        try:
            double(v)
        except pw.NotAttachedError as error:
            sys.exit(5 if "multiprocessing" in str(error) else 6)

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        call()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    worker = multiprocessing.get_context("fork").Process(target=call)
    worker.start()
    worker.join()
    print(worker.exitcode)
    print(double(v).result().tolist())
    """)
    assert done.stdout.splitlines() == ["[0.0, 2.0, 4.0, 6.0]", "5", "5", "[0.0, 2.0, 4.0, 6.0]"]
    assert done.returncode == 0, done.stderr[-2000:]


def test_before_anything_runs_a_child_attaches_devices_of_its_own(fresh_python) -> None:
    done = fresh_python("""
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import numpy as np, pathways_nb as pw

    v = np.arange(4, dtype=np.float32)
    with pw.attach("cpu", islands=1, devices_per_island=2):  # devices are made when first needed
        child = os.fork()
        if child == 0:
            signal.alarm(280)
        else:  # one prints after the other
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("child" if child == 0 else "parent", pw.jit(lambda x: x * 2, on=pw.virtual_slice(2))(v).result().tolist())
        sys.stdout.flush()
    if child == 0:
        os._exit(0)
    """)
    assert done.stdout.splitlines() == ["child [0.0, 2.0, 4.0, 6.0]", "0", "parent [0.0, 2.0, 4.0, 6.0]"]
