// Pictures over time in the output of one cell: a zoom of one is a zoom of all, and a line in the others is where the
// pointer is. What has no cell, such as a page of several figures, is not linked.

// Each widget has a copy of this script, and all know each other by this map: cell -> its pictures.
const linkedCells = globalThis.pathwaysCells ??= new Map()

const linkInCell = (doc, Bokeh, element) => {
  const cell = element.closest(".jp-Cell, .cell"), range = doc.get_model_by_name("timeline_x")
  const figures = overTime(doc).filter((figure) => figure.x_range === range)
  if (!cell || !range || !figures.length) return () => {}
  const views = figures.map((figure) => Bokeh.index.find_one(figure)), lines = views.map(() => document.createElement("div"))
  const show = (time) => {
    for (const [i, view] of views.entries()) {
      const line = lines[i], {left, top, width, height} = view.frame.bbox, x = time === null ? NaN : view.frame.x_scale.compute(time)
      line.className = "pathways-pointed"
      line.style.cssText = `position: absolute; pointer-events: none; left: ${x}px; top: ${top}px; width: 0; height: ${height}px; border-left: 1px dotted; opacity: 0.7`
      line.style.display = x >= left && x <= left + width ? "block" : "none"
      if (line.parentNode !== view.shadow_el) view.shadow_el.append(line)
    }
  }
  const own = {range, show, home: null}, all = linkedCells.get(cell) ?? new Set()
  linkedCells.set(cell, all.add(own))
  const others = (act) => { for (const one of all) if (one !== own) act(one) }
  const zoom = ({x0, x1}) => others((other) => {
    other.home ??= [other.range.start, other.range.end]
    other.range.setv({start: x0, end: x1})
  })
  const reset = () => others((other) => {
    if (other.home) other.range.setv({start: other.home[0], end: other.home[1]})
    other.home = null
  })
  for (const figure of figures) {
    figure.on_event("rangesupdate", zoom)
    figure.on_event("reset", reset)
    figure.on_event("mousemove", ({x}) => others((other) => other.show(x)))
    figure.on_event("mouseleave", () => others((other) => other.show(null)))
  }
  return () => { all.delete(own); if (!all.size) linkedCells.delete(cell) }
}
