// The picture of a graph on a page of any width: all of it is visible, at most as large as it was laid out. Where it would
// be too small to read, a part is visible, and a small map of all of it shows which; a drag in the map moves it.

// The least that a graph is made smaller, on a screen and in a style whose texts are larger, which are read from afar.
const LEAST = 0.6, LEAST_ENLARGED = 0.85, MAP = 140

const fitGraph = (doc, Bokeh) => {
  const figure = doc.get_model_by_name("graph"), nodes = doc.get_model_by_name("graph_nodes")
  if (!figure || !doc.get_model_by_name("graph_chips")) return
  const view = Bokeh.index.find_one(figure), {x_range, y_range} = figure, resize = sizesOf(figure)
  if (doc.get_model_by_name("graph_shown")) return fitModules(figure, resize)
  placeRow(doc, view)
  const map = graphMap(figure, nodes, view)
  let drawn = ""
  const fit = () => {
    const [width, height, top, factor, tallest] = figure.tags, room = figure.inner_width
    if (!width || !room || drawn === [...figure.tags, room].join()) return
    drawn = [...figure.tags, room].join()
    const scale = Math.min(factor, Math.max(room / width, (factor > 1 ? LEAST_ENLARGED : LEAST) * factor))
    resize(scale / factor)
    const down = Math.min(height - top, tallest / scale), at = graphAt(figure)
    for (const [range, start, end] of [[x_range, 0, room / scale], [y_range, top + down, top]]) range.setv({start, end, reset_start: start, reset_end: end})
    if (at) setGraphAt(figure, at)  // a page that becomes narrower leaves the reader where they are
    figure.height = Math.round(scale * down) + 8
    map()
  }
  for (const property of [figure.properties.tags, figure.properties.inner_width]) property.change.connect(fit)
  for (const range of [x_range, y_range]) range.change.connect(map)
  fit()
}

// A function that makes texts and points of a figure some times as large as they are now.
const sizesOf = ({renderers}) => {
  const glyphs = renderers.flatMap((one) => [one.glyph, one.selection_glyph, one.nonselection_glyph].filter((glyph) => glyph?.type))
  const sizes = glyphs.flatMap((glyph) => ["text_font_size", "size"].filter((name) => name in glyph).map((name) => [glyph, name, parseFloat(glyph[name]?.value ?? glyph[name])]))
  return (scale) => { for (const [glyph, name, size] of sizes) glyph[name] = {value: name === "size" ? size * scale : `${size * scale}px`} }
}

// The cards of a step's modules are as wide as the page lets them be, and the text on them is as much smaller. The
// figure's tag is the width at which it has its own size.
const fitModules = (figure, resize) => {
  const fit = () => { if (figure.inner_width) resize(Math.min(1, figure.inner_width / figure.tags[0])) }
  figure.properties.inner_width.change.connect(fit)
  fit()
}

// The virtual slices by colour, as text above the graph.
const placeRow = (doc, view) => {
  const row = flowing("Virtual slices"), [chips, texts] = ["graph_chips", "graph_legend"].map((name) => doc.get_model_by_name(name))
  const fill = () => {
    const names = Array.from(texts.data.text ?? [])
    row.replaceChildren(...names.map((text, i) => {
      const entry = document.createElement("span"), chip = document.createElement("span")
      entry.style.cssText = "display: flex; gap: 4px; align-items: center; overflow-wrap: anywhere"
      chip.style.cssText = `flex: none; box-sizing: border-box; width: 1.2em; height: 1.2em; border-radius: 3px; background: ${chips.data.fill?.[i]}; border: 2px solid ${chips.data.outline?.[i]}`
      entry.append(chip, document.createTextNode(text))
      return entry
    }))
    row.style.display = names.length ? "flex" : "none"
    row.style.fontSize = `${11 * (doc.get_model_by_name("graph").tags[3] ?? 1)}px`
  }
  for (const table of [chips, texts]) table.properties.data.change.connect(fill)
  above(view, row)
  fill()
}

// A small map of the whole graph above it, while only a part of it is visible.
const graphMap = (figure, {properties: {data}}, view) => {
  const {x_range, y_range} = figure, svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  const rect = (x, y, width, height, style) => {
    const one = document.createElementNS(svg.namespaceURI, "rect")
    for (const [name, value] of Object.entries({x, y, width, height, style})) one.setAttribute(name, value)
    return one
  }
  const row = flowing("Map")
  row.style.display = "none"
  row.append(svg)
  above(view, row)
  svg.setAttribute("class", "pathways-map")
  svg.setAttribute("role", "img")
  svg.setAttribute("aria-label", "Map of the whole graph; drag to move what is visible")
  const move = ({offsetX, offsetY}) => {
    const [width, height, top] = figure.tags, to = MAP / Math.max(width, height - top)
    const center = (range, at, least, most) => {
      const half = Math.abs(range.end - range.start) / 2, middle = Math.min(Math.max(at, least + half), Math.max(most - half, least + half))
      return range.start < range.end ? {start: middle - half, end: middle + half} : {start: middle + half, end: middle - half}
    }
    x_range.setv(center(x_range, offsetX / to, 0, width))
    y_range.setv(center(y_range, top + offsetY / to, top, height))
  }
  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); move(event); event.stopPropagation() })
  svg.addEventListener("pointermove", (event) => { if (event.buttons) move(event); event.stopPropagation() })
  return () => {
    const [width, height, top] = figure.tags, to = MAP / Math.max(width, height - top), nodes = data.get_value()
    row.style.display = "none"
    if (!width) return
    const isWhole = x_range.start <= 1 && x_range.end >= width - 1 && y_range.start >= height - 1 && y_range.end <= top + 1
    row.style.display = isWhole ? "none" : "flex"
    svg.style.cssText = `width: ${to * width}px; height: ${to * (height - top)}px; cursor: move; touch-action: none;
      background: color-mix(in srgb, currentColor 8%, transparent); border: 1px solid color-mix(in srgb, currentColor 40%, transparent)`
    svg.replaceChildren(...Array.from(nodes.x ?? [], (x, i) => rect(to * (x - nodes.width[i] / 2), to * (nodes.y[i] - nodes.height[i] / 2 - top), to * nodes.width[i], to * nodes.height[i], `fill: ${nodes.outline[i]}`)),
      rect(to * x_range.start, to * (y_range.end - top), to * (x_range.end - x_range.start), to * (y_range.start - y_range.end), "fill: none; stroke: currentColor; stroke-width: 1.5"))
  }
}
