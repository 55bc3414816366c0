"""Whether anything on a page covers anything else: texts, boxes and entries by their places in pixels."""

from __future__ import annotations

from typing import Any

WIDTHS = (600, 700, 1000, 1300, 1600)
"""Widths of pages in pixels: from a notebook beside other windows to a wide screen."""
_SETTLED = """() => new Promise((after) => {
  const ready = () => Bokeh.documents.every((one) => one.is_idle) ? after(true) : setTimeout(ready, 50)
  setTimeout(ready, 300)
})"""
_TROUBLE = """() => {
  const found = [], context = document.createElement("canvas").getContext("2d")
  const wide = (text, font) => { context.font = font; return Math.max(...text.split("\\n").map((line) => context.measureText(line).width)) }
  const fontOf = (glyph) => `${glyph.text_font_size.value ?? glyph.text_font_size} ${glyph.text_font.value ?? glyph.text_font}`
  const meet = (a, b, by) => a.left < b.right - by && b.left < a.right - by && a.top < b.bottom - by && b.top < a.bottom - by
  const boxOf = (words, x, y, width, height, scale) => ({words, left: scale * (x - width / 2), right: scale * (x + width / 2), top: scale * (y - height / 2), bottom: scale * (y + height / 2)})
  const text = (figure, source, column) => figure.renderers.find((one) => one.data_source === source && one.glyph.type === "Text" && one.glyph.text.field === column)

  for (const doc of Bokeh.documents) {
    const graph = doc.get_model_by_name("graph"), nodes = doc.get_model_by_name("graph_nodes")
    if (graph && doc.get_model_by_name("graph_chips")) {
      const scale = graph.inner_width / (graph.x_range.end - graph.x_range.start), {data} = nodes, shown = doc.get_model_by_name("graph_shown")
      for (const column of ["name", "sub"]) {
        const font = fontOf(text(graph, nodes, column).glyph)
        for (const [i, words] of Array.from(data[column]).entries())
          if (wide(words, font) > scale * data.width[i]) found.push(`graph: ${words} is ${wide(words, font)} wide in a box of ${scale * data.width[i]}`)
      }
      const labels = shown ? null : doc.get_model_by_name("graph_labels"), boxes = Array.from(data.x, (x, i) => boxOf(data.name[i], x, data.y[i], data.width[i], data.height[i], scale))
      for (const [i, words] of Array.from(labels?.data.text ?? []).entries()) {
        const box = boxOf(words, labels.data.x[i], labels.data.y[i], wide(words, fontOf(text(graph, labels, "text").glyph)) / scale, 10, scale)
        for (const other of boxes) if (meet(box, other, 2)) found.push(`graph: ${words} over ${other.words}`)
        boxes.push(box)
      }
      const isWhole = Array.from(data.x).every((x, i) => shown && data.level[i] !== shown.data.level[0] || x + data.width[i] / 2 <= graph.x_range.end && data.y[i] + data.height[i] / 2 <= graph.y_range.start)
      const maps = [...document.querySelectorAll("pathways-host")].flatMap((host) => [...allOf(host, ".pathways-map")]).filter((map) => map.getBoundingClientRect().width)
      if (!isWhole && !maps.length) found.push("graph: a part of it is hidden, and there is no map")
    }
    const timeline = doc.get_model_by_name("timeline"), marks = doc.get_model_by_name("timeline_marks")
    if (timeline && marks) {
      const {start, end} = timeline.x_range, scale = timeline.inner_width / (end - start), lanes = new Map()
      const font = fontOf(text(timeline, marks, "text").glyph)
      for (const [i, words] of Array.from(marks.data.text).entries()) {
        const half = wide(words, font) / 2, x = marks.data.x[i] * scale, y = marks.data.y[i]
        if (!words) continue
        if (2 * half > marks.data.seconds[i] * scale + 1) found.push(`timeline: ${words} is wider than its box`)
        for (const [left, right, other] of lanes.get(y) ?? []) if (x - half < right && left < x + half) found.push(`timeline: ${words} over ${other}`)
        lanes.set(y, [...(lanes.get(y) ?? []), [x - half, x + half, words]])
      }
    }
    for (const figure of ["timeline", "memory", "schedules"].map((name) => doc.get_model_by_name(name)).filter((one) => one)) {
      const view = Bokeh.index.find_one(figure), axis = figure.below[0], font = `${parseFloat(axis.major_label_text_font_size)}px helvetica`
      const ticks = axis.ticker.get_ticks_no_defaults?.(figure.x_range.start, figure.x_range.end, null, axis.ticker.desired_num_ticks)?.major ?? []
      const words = axis.formatter.doFormat(ticks, {loc: 0}), at = ticks.map((tick) => view.frame.x_scale.compute(tick))
      for (let i = 1; i < at.length; i++)
        if (at[i] - at[i - 1] < (wide(words[i], font) + wide(words[i - 1], font)) / 2) found.push(`${figure.name}: ${words[i - 1]} over ${words[i]}`)
    }
  }
  const rows = [...document.querySelectorAll("pathways-host")].flatMap((host) => [host.parentNode, host].flatMap((one) => [...allOf(one, ".pathways-legend")]))
  for (const row of new Set(rows)) {
    const boxes = [...row.children].map((one) => ({...one.getBoundingClientRect().toJSON(), text: one.textContent})).filter((one) => one.width)
    for (const [i, a] of boxes.entries()) {
      if (a.right > document.documentElement.clientWidth + 1) found.push(`legend: ${a.text} is outside of the page`)
      for (const b of boxes.slice(i + 1)) if (meet(a, b, 1)) found.push(`legend: ${a.text} over ${b.text}`)
    }
  }
  return found
}"""
_HELPERS = """() => {
  window.allOf = (root, selector, found = []) => {
    for (const one of (root.shadowRoot ?? root).querySelectorAll("*")) {
      if (one.matches(selector)) found.push(one)
      if (one.shadowRoot) allOf(one, selector, found)
    }
    return found
  }
}"""


def what_covers(tab: Any) -> list[str]:
    """What covers what on a drawn page, at each of ``WIDTHS``; empty if nothing does."""
    found = list[str]()
    tab.evaluate(_HELPERS)
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate(_SETTLED)
        found += [f"{width} px: {trouble}" for trouble in tab.evaluate(_TROUBLE)]
    return found
