"""One step three times on one axis: predicted, profiled as a node, and from a profile of plain JAX that JAX wrote."""

from __future__ import annotations

from tests.jax.adopt.test_steps_here import run

__all__ = ["run"]


def test_a_step_predicted_profiled_and_read_from_a_foreign_trace(run):
    run(
        """
pw.attach("cpu", islands=[[0, 1, 2, 3]])
mesh = mesh_of(AxisType.Auto)
x = batch(mesh)
step, state = steps_here.plain(mesh)
adopted = pw.adopt(step, state, x)
with pw.profile("ours") as own:
    for _ in range(3):
        state, loss = adopted(state, x)
_, state = steps_here.plain(mesh)
state = jax.block_until_ready(step(state, x)[0])
with jax.profiler.trace("written", create_perfetto_trace=True):
    for _ in range(3):
        state, loss = step(state, x)
    jax.block_until_ready(state)

foreign = pw.load("written")
assert foreign.islands == (4,) and foreign.about["trace"]["devices"] == [f"CPU {n}" for n in range(4)]
assert {"compute", "collective"} <= set(foreign.events["kind"]) and set(foreign.events["devices"]) == {1}
ops = foreign.ops.of(launch="train_step")
assert len(np.unique(ops["run"])) == 3
mine = own.ops.of(launch="train_step")
assert sorted(mine["name"]) == sorted(ops["name"]), "the same ops, by the same reader"
node = "jit(pw_train_step)/"  # around a step that is a node
sources = lambda ops: {(op.name, op.source.replace(node, ""), op.line, op.kind) for op in ops}
same = sources(ops) & sources(mine)  # some that the compiler adds are named after arguments, which differ
assert len(same) > 0.9 * len(sources(ops)), sources(ops) ^ sources(mine)
assert any(op.line.startswith("steps_here.py:") for op in ops)

predicted = pw.compare(adopted, foreign)
matched = predicted.op_difference
assert len(matched) > 10 * matched.only_a, (len(matched), matched.only_a, matched.only_b)
assert len(predicted.b.events) == 1 and predicted.b.events["name"].tolist() == ["train_step"]
assert "ops matched" in predicted.summary_line()
assert "0 events matched" not in predicted.summary_line(), "its launch has another name and program"
beside = pw.compare(own, foreign)
matched = beside.op_difference
assert len(matched) > 10 * max(matched.only_a, matched.only_b), (len(matched), matched.only_a, matched.only_b)
beside.savefig("both.svg", show=("ops",))

import pathlib
(text,) = pathlib.Path("written").rglob("perfetto_trace.json.gz")
again = pw.load(text)
assert again.islands == (4,) and len(again.events) == len(foreign.events)
assert sorted(again.events["name"]) == sorted(foreign.events["name"])
again.save("again.run")
assert len(pw.load("again.run").ops) == len(again.ops)
""",
        XLA_FLAGS="",
        JAX_ENABLE_COMPILATION_CACHE="false",
    )
