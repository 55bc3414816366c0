// Tooltips: one at a time, and above or below the picture, where it is not tall: at its mark it would cover the next boxes.

// Pixels from a mark to the edge of its picture beyond which its tooltip stays near the mark, above or below it.
const FAR = 240, NEAR = 16

const tooltips = (figure, Bokeh) => {
  const view = Bokeh.index.find_one(figure), placed = new WeakSet()
  const place = (hover, tooltip) => {
    let moving = false
    const move = () => {
      if (moving || tooltip.position === null) return
      const [x, y] = tooltip.position, {top, bottom} = view.frame.bbox, page = view.el.getBoundingClientRect()
      const height = hover._ttviews?.get(tooltip)?.el.offsetHeight ?? 0, fits = {above: page.top + top > height, below: page.top + bottom + height < innerHeight}
      const nearer = bottom - y < y - top ? "below" : "above", other = nearer === "below" ? "above" : "below"
      const side = !fits[nearer] && fits[other] ? other : nearer, edge = side === "below" ? bottom : top
      moving = true
      tooltip.setv({attachment: side, position: [x, Math.abs(edge - y) < FAR ? edge : side === "below" ? y + NEAR : y - NEAR]})
      moving = false
    }
    placed.add(tooltip)
    tooltip.properties.position.change.connect(move)
    move()
  }
  // Where several marks lie over each other the uppermost is told: tooltips of all would cover each other.
  const tellOne = (told) => {
    const height = ([renderer]) => figure.renderers.indexOf(renderer), open = told.filter(([, {visible, position}]) => visible && position !== null)
    for (const [, tooltip] of open.sort((a, b) => height(b) - height(a)).slice(1)) tooltip.clear()
  }
  figure.on_event("mousemove", () => queueMicrotask(() => {
    const hovers = [...Bokeh.index.find_one(figure)?.tool_views.values() ?? []].filter(({ttmodels}) => ttmodels)
    for (const hover of hovers) for (const tooltip of hover.ttmodels.values()) if (!placed.has(tooltip)) place(hover, tooltip)
    tellOne(hovers.flatMap(({ttmodels}) => [...ttmodels]))
  }))
}
