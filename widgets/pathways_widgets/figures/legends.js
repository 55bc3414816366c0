// What stands above a figure as text of the page: its legends, its clients, and what is folded of its time.

// Bokeh draws no legend itself: it would cut it off where a page is narrow.
const hideLegends = (node) => {
  if (node === null || typeof node !== "object") return
  if (node.type === "object" && node.name === "Legend") node.attributes.visible = false
  for (const child of Object.values(node)) hideLegends(child)
}

// The entries of the legends of a figure, above it, as text that is broken into lines: those that explain something. An
// entry that hides what it explains is a button.
const legends = (doc, Bokeh) => {
  const figures = figuresOf(doc).filter(({above}) => above.some(({type}) => type === "Legend"))
  for (const figure of figures) {
    const row = flowing("Legend"), models = figure.above.filter(({type}) => type === "Legend").reverse()
    row.style.fontSize = models[0].label_text_font_size
    let due = false
    const fill = () => {
      due = false
      refill(row, models.flatMap((legend) => legend.items.filter(({visible}) => visible).flatMap((item) => entries(legend, item))))
      row.style.display = figure.visible && row.children.length ? "flex" : "none"
    }
    const later = () => { if (!due) { due = true; queueMicrotask(fill) } }
    const watched = models.flatMap(({items}) => items.flatMap((item) => [item, ...item.renderers.flatMap((one) => [one, one.glyph, one.data_source])]))
    for (const model of new Set([figure, ...watched])) model.change.connect(later)
    above(Bokeh.index.find_one(figure), row)
    fill()
  }
}

// Replaces what a row contains, if it has changed: what is pressed or has the focus would be lost while a run goes on.
const refill = (row, children) => {
  const html = (all) => Array.from(all, ({outerHTML}) => outerHTML).join("")
  if (html(row.children) === html(children)) return
  const focused = row.getRootNode().activeElement, name = row.contains(focused) && focused.textContent
  row.replaceChildren(...children)
  if (name) children.find(({textContent}) => textContent === name)?.focus()
}

// In front of a figure; where several are side by side, in front of all of them.
const above = (view, row) => {
  while (view.parent?.model.type === "Row") view = view.parent
  view.el.before(row)
}

const flowing = (what) => {
  const row = document.createElement("div")
  row.className = "pathways-legend"
  row.style.cssText = `font: ${sized(12)} sans-serif; padding: 4px 12px 0; display: flex; gap: 3px 12px; flex-wrap: wrap; align-items: center`
  row.setAttribute("role", "group")
  row.setAttribute("aria-label", what)
  return row
}

// The title of a figure over time, as text that is broken into lines: it may be longer than a page is wide.
const titles = (doc, Bokeh) => {
  for (const figure of overTime(doc).filter(({title}) => title?.visible)) {
    const {title} = figure, line = document.createElement("div"), say = () => { explain(line, title.text) }
    line.className = "pathways-title"
    line.style.cssText = `font: ${title.text_font_size} sans-serif; opacity: 0.75; text-align: right; padding: 2px 12px 0`
    title.visible = false
    title.properties.text.change.connect(say)
    above(Bokeh.index.find_one(figure), line)
    say()
  }
}

// What is folded of the time: a break at the left edge of every figure over time, and above the first one a button that
// says what was there and unfolds it, or folds it again.
const folds = (doc, Bokeh) => {
  const range = doc.get_model_by_name("timeline_x"), figures = overTime(doc)
  if (!range || !figures.length) return
  const views = figures.map((figure) => Bokeh.index.find_one(figure)), button = document.createElement("button")
  const edges = views.map(() => document.createElement("div")), row = flowing("Folded time")
  button.className = "pathways-fold"
  button.type = "button"
  button.style.cssText = "font: inherit; color: inherit; background: none; border: none; padding: 0; cursor: pointer"
  row.append(button)
  above(views[0], row)
  const place = () => {
    const [fold] = range.tags, isFolded = fold && range.start > fold.whole[0] + 0.5 * (fold.until - fold.whole[0])
    row.style.display = fold ? "flex" : "none"
    if (!fold) { for (const edge of edges) edge.style.display = "none"; return }
    button.textContent = `↯ ${isFolded ? fold.words : fold.less}`
    button.setAttribute("aria-expanded", String(!isFolded))
    for (const [i, view] of views.entries()) {
      const {left, top, height} = view.frame.bbox, edge = edges[i]
      edge.style.cssText = `position: absolute; pointer-events: none; left: ${left}px; top: ${top}px; width: 5px; height: ${height}px; opacity: 0.6;
        background: repeating-linear-gradient(45deg, currentColor 0 1px, transparent 1px 4px)`
      edge.style.display = isFolded ? "block" : "none"
      if (edge.parentNode !== view.shadow_el) view.shadow_el.append(edge)
    }
  }
  button.addEventListener("click", () => {
    const [{folded, whole}] = range.tags, [start, end] = button.getAttribute("aria-expanded") === "true" ? folded : whole
    range.setv({start, end})
  })
  range.change.connect(place)
  for (const figure of figures) for (const one of ["inner_width", "inner_height", "outer_width"]) figure.properties[one].change.connect(place)
  place()
}

const entries = ({click_policy}, {label, renderers, tags}) => {
  const {glyph, data_source: {data}} = renderers[0], field = label.field ?? null
  const words = field ? [...new Set(Array.from(data[field] ?? []))] : [label.value ?? label]
  return words.map((text) => {
    const i = field ? Array.from(data[field]).indexOf(text) : 0, hides = click_policy === "hide"
    const meaning = meaningOf(text), entry = hides ? clientButton(text, "", `Hide or show: ${meaning || text}`) : document.createElement("span")
    if (!hides && meaning) entry.title = meaning
    if (!hides) {
      entry.style.cssText = "display: flex; gap: 4px; align-items: center"
      entry.append(document.createElement("span"), document.createTextNode(text))
    }
    swatch(entry.firstChild, glyph, data, i, tags)
    if (hides) {
      entry.addEventListener("click", () => { for (const one of renderers) one.visible = !one.visible })
      press(entry, renderers[0].visible)
    }
    return entry
  })
}

// What Bokeh draws of a glyph, as a small box: its fill, its pattern, its edge, or a line.
const swatch = (box, glyph, data, i, [letter = "", ink = ""]) => {
  const part = (value) => value?.field !== undefined ? data[value.field]?.[i] : value !== null && typeof value === "object" && "value" in value ? value.value : value
  const lines = (angle) => `repeating-linear-gradient(${angle}deg, ${colour} 0 1px, transparent 1px 4px)`
  const isText = "background_fill_color" in glyph
  const [fill, edge, pattern, dash] = [isText ? glyph.background_fill_color : glyph.fill_color, isText ? null : glyph.line_color, glyph.hatch_pattern, glyph.line_dash].map(part)
  const colour = `color-mix(in srgb, ${part(glyph.hatch_color) ?? "currentColor"} ${100 * (part(glyph.hatch_alpha) ?? 1)}%, transparent)`, width = Math.min(part(glyph.line_width) ?? 1, 3)
  const patterns = {"|": [90], "-": [0], "/": [135], "x": [45, 135]}[pattern] ?? []
  const isLine = !isText && !("fill_color" in glyph), style = `${width}px ${dash?.length ? "dashed" : "solid"} ${edge}`
  box.style.cssText = `flex: none; box-sizing: border-box; font-size: 0.85em; width: 1.4em; height: ${isLine ? 0 : 1.4}em; line-height: 1.4em; text-align: center; color: ${ink}`
  if (isLine) box.style.borderTop = style
  else {
    // A dashed edge is that of any box, and dark: on a dark page it needs a ground.
    box.style.backgroundColor = fill ?? (dash?.length ? "color-mix(in srgb, currentColor 30%, transparent)" : "transparent")
    if (edge && edge !== fill) box.style.border = style
    if ("marker" in glyph) box.style.borderRadius = "50%"
  }
  if (patterns.length) box.style.backgroundImage = patterns.map(lines).join(", ")
  if (isText) box.style.color = part(glyph.text_color)
  box.textContent = isText ? part(glyph.text) : letter
}

// A button for each client if there are several: pressed while its boxes are visible. The figure's tags list the
// clients (number, name, colour), the source `timeline_hidden` lists those whose boxes are hidden.
const clientRow = (doc) => {
  const figure = doc.get_model_by_name("timeline"), hidden = doc.get_model_by_name("timeline_hidden")
  if (!figure || !hidden) return null
  const row = flowing("Clients: press to hide or show")
  const away = new Set(), listeners = []
  const fill = () => {
    refill(row, figure.tags.map(([, name, colour]) => {
      const button = clientButton(name, colour)
      button.addEventListener("click", () => {
        if (!away.delete(name)) away.add(name)
        hide()
        press(button, !away.has(name))
      })
      press(button, !away.has(name))
      return button
    }))
    row.style.display = figure.tags.length ? "flex" : "none"
    hide()
  }
  const hide = () => {
    const numbers = figure.tags.filter(([, name]) => away.has(name)).map(([number]) => number)
    if (numbers.join() === hidden.data.client.join()) return
    hidden.data = {client: numbers}
    for (const tell of listeners) tell()
  }
  // Shows these clients only; no names mean all.
  const show = (names) => {
    away.clear()
    for (const [, name] of figure.tags) if (names.length && !names.includes(name)) away.add(name)
    fill()
  }
  fill()
  figure.properties.tags.change.connect(fill)
  return {row, away, show, onChange: (tell) => listeners.push(tell)}
}

const clientButton = (name, colour, title = `Hide or show what is done for ${name}`) => {
  const button = document.createElement("button"), swatch = document.createElement("span")
  Object.assign(button, {type: "button", title})
  button.style.cssText = "font: inherit; color: inherit; background: none; border: none; padding: 0; cursor: pointer; display: flex; gap: 4px; align-items: center"
  swatch.style.cssText = `width: 1em; height: 1em; background: ${colour}`
  button.append(swatch, document.createTextNode(name))
  return button
}

const press = (button, shown) => {
  button.setAttribute("aria-pressed", String(shown))
  button.style.opacity = shown ? "1" : "0.4"
}
