// Every figure by keyboard, and told to a screen reader: its boxes are those that have a tooltip, and a box is told by what
// a tap or its tooltip says. Keys work on the picture that has the focus; buttons below do the same.

const KEYS = "Arrows: from box to box; up and down also from lane to lane. Home, End: first and last box. Enter: what a click does. " +
  "+ and −, or W and S: zoom. A and D: pan. F: fit. /: find by name. Escape: close. Tab: on to the next control."
const PAN = 0.2, ZOOM = 1.5

const figuresOf = (doc) => [...new Set(doc.roots().flatMap((root) => [...root.references()]))].filter(({type}) => type === "Figure")
const nameOf = ({name}) => { const words = (name ?? "picture").replaceAll("_", " "); return words[0].toUpperCase() + words.slice(1) }

// For each kind of glyph the sides of a box, from functions that return a property of a row.
const SIDES_OF = {
  Quad: (of) => { const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map(of); return (i) => ({left: left(i), right: right(i), top: top(i), bottom: bottom(i)}) },
  Rect: (of) => {
    const [x, y, width, height] = ["x", "y", "width", "height"].map(of)
    return (i) => ({left: x(i) - width(i) / 2, right: x(i) + width(i) / 2, top: y(i) - height(i) / 2, bottom: y(i) + height(i) / 2})
  },
  Scatter: (of) => { const [x, y] = ["x", "y"].map(of); return (i) => ({left: x(i), right: x(i), top: y(i), bottom: y(i)}) },
}

// All boxes that are visible or would be after a pan.
const boxesOf = (figure) => figure.toolbar.tools.filter(({type}) => type === "HoverTool").flatMap((tool) =>
  [...tool.renderers].filter(({visible, glyph}) => visible && glyph.type in SIDES_OF).flatMap(({glyph, data_source: source, view}) => {
    const of = (name) => {
      const {field, value} = typeof glyph[name] === "object" ? glyph[name] : {value: glyph[name]}
      return field === undefined ? () => value : (i) => source.data[field][i]
    }
    const sides = SIDES_OF[glyph.type](of)
    return [...view.indices].map((row) => ({tool, source, row, ...sides(row)}))
  }))

// The rows of a box's tooltip as pairs of label and text, without those that say nothing. Some have their label in the
// text, which a script makes (tooltips.py).
const tooltipOf = (Bokeh, {tool, source, row}) => {
  const {replace_placeholders} = Bokeh.require("core/util/templating"), formatters = new Map(tool.formatters.entries?.() ?? Object.entries(tool.formatters))
  return tool.tooltips.flatMap(([said, format]) => {
    const label = said || (formatters.get(format.split("{")[0])?.args.label ?? "")
    const text = replace_placeholders(format, source, row, tool.formatters, {index: row}).replaceAll(" · ", ", ").trim()
    const rest = !said && text.startsWith(`${label}: `) ? text.slice(label.length + 2) : text
    return rest && rest !== "???" ? [[label, rest]] : []
  })
}

// The lanes that the axis at the left names, from the top: none if it has numbers, as that of memory also has.
const lanesOf = (figure, view) => {
  const axis = figure.left[0], ticks = axis?.visible && figure.name !== "memory" ? [...axis.ticker.ticks ?? []] : []
  const at = ticks.map((tick) => view.frame.y_scale.compute(tick)), order = ticks.map((_, i) => i).sort((a, b) => at[a] - at[b])
  const texts = axis?.formatter.doFormat(ticks, {loc: 0}) ?? []
  return order.map((i, n) => {
    const toward = (other) => other === undefined ? NaN : (at[other] - at[i]) / 2, above = toward(order[n - 1]), below = toward(order[n + 1])
    // The outermost reach as far outwards as to their neighbours: a box of all devices fills a part of each of their lanes.
    return {text: texts[i], middle: at[i], from: at[i] + (above || -below || -Infinity), to: at[i] + (below || -above || Infinity)}
  })
}

// Along a lane in the order of time, and to what there is at the same time in the lane above or below: the box, if there is
// one, and its lane; or why there is neither.
const nextInLanes = (lanes, boxes, {box, lane: last}, pixels, {start, end}, [right, down]) => {
  const inLane = (n) => boxes.filter((one) => {
    const {y0, y1} = pixels(one), {from, to} = lanes[n]
    return Math.min(y1, to) - Math.max(y0, from) > 0.5 * Math.min(y1 - y0, to - from)
  }).sort((a, b) => a.left - b.left || a.right - b.right)
  if (!box) {
    const first = lanes.findIndex((_, n) => inLane(n).length), row = first < 0 ? [] : inLane(first)
    return {to: row.find((one) => one.right >= start && one.left <= end) ?? row[0], lane: Math.max(first, 0)}
  }
  const lane = Math.min(last, lanes.length - 1)
  if (down) {
    const next = lane + Math.sign(down)
    if (!lanes[next]) return {none: "No lane further on."}
    const far = (one) => Math.max(one.left - box.left, 0) || Math.max(box.left - one.right, 0) + Math.abs(one.left - box.left) / 1e3
    return {to: inLane(next).reduce((best, one) => !best || far(one) < far(best) ? one : best, null), lane: next}
  }
  const row = inLane(lane), isAfter = (one) => one.left > box.left || one.left === box.left && one.right > box.right
  const isBefore = (one) => one.left < box.left || one.left === box.left && one.right < box.right
  const to = Math.abs(right) === Infinity ? (right > 0 ? row.at(-1) : row[0]) : right > 0 ? row.find(isAfter) : row.findLast(isBefore)
  return to ? {to, lane} : {none: `Nothing ${right > 0 ? "after" : "before"} this on ${lanes[lane].text}.`}
}

// The nearest box in a direction, as above: what is straight ahead is nearer than what is aside.
const nextInPlane = (boxes, box, pixels, [right, down]) => {
  const all = boxes.map((one) => ({one, at: pixels(one)}))
  if (!box || Math.abs(right) === Infinity) {
    const order = all.sort((a, b) => a.at.x - b.at.x || a.at.y - b.at.y)
    return {to: (right === Infinity ? order.at(-1) : order[0]).one}
  }
  const from = pixels(box), far = ({at}) => {
    const ahead = right * (at.x - from.x) + down * (at.y - from.y), aside = Math.abs(right ? at.y - from.y : at.x - from.x)
    return ahead > 1 ? ahead + 2 * aside : Infinity
  }
  const best = all.reduce((one, other) => far(other) < far(one) ? other : one)
  return far(best) < Infinity ? {to: best.one} : {none: "Nothing further in this direction."}
}

// One figure: its cursor, the box that is outlined, and what is said of it.
const readable = (figure, Bokeh, {tell, say}) => {
  const view = Bokeh.index.find_one(figure), surface = view.canvas_view.events_el, outline = document.createElement("div")
  const wheel = figure.toolbar.tools.find(({type}) => type === "WheelZoomTool" || type === "PanTool")
  const ranges = wheel ? {width: [figure.x_range], height: [figure.y_range], both: [figure.x_range, figure.y_range]}[wheel.dimensions] : []
  let box = null, lane = -1
  outline.className = "pathways-cursor"
  const pixels = ({left, right, top, bottom}) => {
    const {x_scale, y_scale} = view.frame, [x0, x1] = [x_scale.compute(left), x_scale.compute(right)].sort((a, b) => a - b)
    const [y0, y1] = [y_scale.compute(top), y_scale.compute(bottom)].sort((a, b) => a - b)
    return {x0, x1, y0, y1, x: (x0 + x1) / 2, y: (y0 + y1) / 2}
  }
  const place = () => {
    const {left, right, top, bottom} = view.frame.bbox, at = box && pixels(box)
    const isSeen = at && surface.matches(":focus") && at.x1 >= left && at.x0 <= right && at.y1 >= top && at.y0 <= bottom
    outline.style.cssText = `position: absolute; pointer-events: none; box-sizing: border-box; border: 3px solid currentColor; outline: 1px solid Canvas; display: ${isSeen ? "block" : "none"}`
    if (!isSeen) return
    const [x0, x1, y0, y1] = [Math.max(at.x0, left), Math.min(at.x1, right), Math.max(at.y0, top), Math.min(at.y1, bottom)]
    Object.assign(outline.style, {left: `${x0 - 3}px`, top: `${y0 - 3}px`, width: `${x1 - x0 + 6}px`, height: `${y1 - y0 + 6}px`})
    if (outline.parentNode !== view.shadow_el) view.shadow_el.append(outline)
  }
  // A box that is outside of what is visible comes into its middle, or its beginning there if it is larger.
  const reveal = () => {
    for (const [range, ...sides] of [[figure.x_range, box.left, box.right], [figure.y_range, box.top, box.bottom]]) {
      const [[low, high], [from, to]] = [[range.start, range.end], sides].map((ends) => ends.sort((a, b) => a - b))
      const by = to - from > high - low ? from - low : (from + to) / 2 - (low + high) / 2
      if (ranges.includes(range) && (to < low || from > high)) range.setv({start: range.start + by, end: range.end + by})
    }
  }
  const sentence = () => {
    const rows = tooltipOf(Bokeh, box), why = tell(figure, box), says = ([label, text], i) => i && label ? `${label} ${text}` : text
    return why ? `${rows.filter(([label], i) => !i || ["start", "takes"].includes(label)).map(says).join(", ")}. ${why}` : rows.map(says).join("; ")
  }
  const go = (to, lanes, next = lane) => {
    const prefix = lanes.length && (next !== lane || !box) ? `${lanes[next].text}: ` : ""
    if (lanes.length && !to) say(`${lanes[next].text}: nothing here`)
    lane = next
    if (to) { box = to; reveal(); say(prefix + sentence()) }
    place()
  }
  const move = (by) => {
    const lanes = lanesOf(figure, view), boxes = boxesOf(figure)
    if (!boxes.length) return say("Arrows find nothing here: this picture has no boxes.")
    const found = lanes.length ? nextInLanes(lanes, boxes, {box, lane}, pixels, figure.x_range, by) : nextInPlane(boxes, box, pixels, by)
    if (found.none) say(found.none)
    else go(found.to, lanes, found.lane)
  }
  const zoom = (factor) => {
    for (const range of ranges) {
      const [from, to] = !box ? [] : range === figure.x_range ? [box.left, box.right] : [box.top, box.bottom]
      const inside = box && (from - range.start) * (from - range.end) <= 0 && (to - range.start) * (to - range.end) <= 0
      const middle = inside ? (from + to) / 2 : (range.start + range.end) / 2
      range.setv({start: middle + (range.start - middle) / factor, end: middle + (range.end - middle) / factor})
    }
  }
  const pan = (by) => {
    const range = figure.x_range, step = by * (range.end - range.start)
    if (ranges.includes(range)) range.setv({start: range.start + step, end: range.end + step})
  }
  const tap = () => {
    if (!box) return
    const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2, at = pixels(box), {Tap} = Bokeh.require("core/bokeh_events")
    if (figure.toolbar.tools.some(({type, renderers}) => type === "TapTool" && renderers.some((one) => one.data_source === box.source)))
      box.source.selected.indices = [box.row]
    figure.trigger_event(new Tap(at.x, at.y, x, y, {}))
  }
  const leave = () => { box = null; lane = -1; say(""); place() }
  for (const range of [figure.x_range, figure.y_range]) range.change.connect(place)
  for (const name of ["inner_width", "inner_height"]) figure.properties[name].change.connect(place)
  const ring = () => { surface.style.outline = surface.matches(":focus-visible") ? "2px solid" : "none"; place() }
  surface.style.outlineOffset = "-2px"
  for (const event of ["focus", "blur"]) surface.addEventListener(event, ring)
  return {figure, surface, ranges, move, zoom, pan, tap, leave, fit: () => view.reset()}
}

const ARROWS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0]}

// The keys of all pictures of a document; a line that says what was reached, and buttons for what keys do.
const keyboard = (doc, Bokeh, {tell, close, field}) => {
  const said = document.createElement("div"), buttons = document.createElement("div")
  said.className = "pathways-said"
  said.setAttribute("role", "status")
  said.style.cssText = `font: ${sized(13)}/1.5 sans-serif; margin: 0 12px; overflow-wrap: anywhere`
  const say = (text) => { said.textContent = text }
  const pictures = figuresOf(doc).map((figure) => readable(figure, Bokeh, {tell, say}))
  let current = pictures.find(({figure}) => overTime(doc).includes(figure)) ?? pictures.find(({ranges}) => ranges.length) ?? pictures[0]
  const actions = {
    "+": () => current.zoom(ZOOM), "=": () => current.zoom(ZOOM), w: () => current.zoom(ZOOM),
    "-": () => current.zoom(1 / ZOOM), "−": () => current.zoom(1 / ZOOM), s: () => current.zoom(1 / ZOOM),
    a: () => current.pan(-PAN), d: () => current.pan(PAN), f: () => current.fit(),
    Enter: () => current.tap(), Escape: () => { close(); current.leave() },
    "/": () => field ? field.focus() : say("There are no names to find here."),
    "?": () => say(KEYS),
  }
  for (const picture of pictures) {
    const {surface, figure} = picture, on = new Map(Object.entries(actions))
    surface.setAttribute("role", "application")
    surface.setAttribute("aria-label", `${nameOf(figure)}: arrow keys go from box to box, ? tells all keys`)
    surface.addEventListener("focus", () => { current = picture })
    surface.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return
      const {key} = event, action = key in ARROWS ? () => picture.move(ARROWS[key]) : on.get(key.length > 1 ? key : key.toLowerCase())
      if (!action) return
      event.preventDefault()
      action()
    })
  }
  buttons.setAttribute("role", "group")
  buttons.setAttribute("aria-label", "Zoom and filter")
  buttons.style.cssText = "display: flex; align-items: flex-start; white-space: nowrap"
  const zooms = [["−", "Zoom out (−)", "-"], ["+", "Zoom in (+)", "+"], ["fit", "Show everything (F)", "f"]]
  for (const [text, title, key] of [...(current?.ranges.length ? zooms : []), ["?", "Keys of this picture (?)", "?"]]) {
    const one = button(text, title, actions[key])
    one.setAttribute("aria-label", title)
    buttons.append(one)
  }
  return {said, buttons: pictures.length ? buttons : null}
}
