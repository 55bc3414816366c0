"""The text of tooltips over a schedule's boxes, as scripts.

Names of actions are made in the browser from numbers: the text of every box would otherwise be sent at
every change of a control. ``WHY`` must say the same as ``Timing.why`` in Python.
"""

_NAMES = """
    const {data} = source
    const number = (value) => Number(value.toPrecision(6)).toString()
    const action = (i) => (data.direction[i] ? String.fromCharCode(data.direction[i]) : "") + data.stage[i]
      + "FIWB"[data.operation[i]] + data.microbatch[i] + (data.token_slice[i] < 0 ? "" : "." + data.token_slice[i])
    const cell = (i) => {
      const other = data.pair[i]
      return other < 0 ? action(i) : `(${action(Math.min(i, other))};${action(Math.max(i, other))})OVERLAP_F_B`
    }
    const row = special_vars.index
"""
CELL = _NAMES + "    return `${cell(row)} on device ${data.device[row]}`"
"""Script: which cell, and on which device."""
SPAN = _NAMES + "    return `${number(data.begin[row])} to ${number(data.end[row])}`"
"""Script: its start and end."""
WHY = (
    _NAMES
    + """
    const by = data.by[row], wire = data.wire[row], first = data.pair[row] >= 0 ? Math.min(row, data.pair[row]) : row
    if (by < 0) return "nothing to wait for"
    const last = data.pair[by] >= 0 ? Math.max(by, data.pair[by]) : by
    const there = `device ${data.device[by]}`
    if (data.device[by] === data.device[row] && last === first - 1) return `${there} was busy with ${cell(by)}`
    return `waited for ${cell(by)} on ${there}` + (wire ? `, ${number(wire)} on the way` : "")
"""
)
"""Script: what let it start, in the words of ``Timing.why``."""
IDLE = _NAMES + "    return number(data.idle[row])"
"""Script: how long the device was idle before."""
