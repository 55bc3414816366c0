// A view of a figure as a text, written like the query of an address (viewpoint.py): what is zoomed to, selected, hidden
// and searched for. It is read off a figure by "copy this view", and a figure opens at it.

const short = (number) => String(Number(number.toPrecision(7)))

// Each part of a view: how its values are read off the figure, and how they are brought back. `home` returns the axis that
// shows everything, `brush` selects a range where somebody can add it up.
const viewParts = (doc, element, {link, modules, filter, home, brush}) => {
  const [range, graph, timeline] = ["timeline_x", "graph", "timeline"].map((name) => doc.get_model_by_name(name))
  const shown = doc.get_model_by_name("graph_shown"), parts = {}
  const select = timeline?.toolbar.tools.find(({type}) => type === "BoxSelectTool")
  if (range && overTime(doc).length) parts.time = {
    read: () => {
      const whole = home(), {start, end} = range, slack = 1e-4 * (end - start)
      const isWhole = whole && Math.abs(start - whole.start) < slack && Math.abs(end - whole.end) < slack
      return isWhole ? [] : [`${short(start)},${short(end)}`]
    },
    apply: ([value]) => { const [start, end] = value.split(",").map(Number); range.setv({start, end}) },
  }
  if (graph && shown) parts.level = {
    read: () => shown.data.level[0] ? [String(shown.data.level[0])] : [],
    apply: ([value]) => { if (+value < doc.get_model_by_name("graph_levels").data.height.length) modules.open(+value) },
  }
  else if (graph) parts.graph = {
    read: () => { const at = graphAt(graph); return at ? [at.map(short).join()] : [] },
    apply: ([value]) => setGraphAt(graph, value.split(",").map(Number)),
  }
  if (select && brush) parts.brush = {
    read: () => select.overlay.visible && Number.isFinite(select.overlay.left) ? [`${short(select.overlay.left)},${short(select.overlay.right)}`] : [],
    apply: ([value]) => brush(value.split(",").map(Number)),
  }
  if (link.field) {
    parts.find = {read: () => link.field.value.trim() ? [link.field.value.trim()] : [], apply: ([value]) => { link.field.value = value; link.find(value) }}
    parts.pick = {read: () => link.field.value.trim() ? [] : link.chosen(), apply: link.choose}
  }
  // Before what is hidden, which a filter would show again.
  if (filter.row) parts.filter = {read: filter.conditions, apply: ([value]) => filter.apply(JSON.parse(value))}
  // Whatever a button above the figure hides: kinds of events, clients, levels of memory.
  const toggles = () => everyOne(element, ".pathways-legend button[aria-pressed]"), nameOf = ({lastChild}) => lastChild.textContent.trim()
  parts.hide = {
    read: () => toggles().filter((one) => one.getAttribute("aria-pressed") === "false").map(nameOf),
    apply: (values) => { for (const one of toggles()) if (values.includes(nameOf(one)) !== (one.getAttribute("aria-pressed") === "false")) one.click() },
  }
  return {
    read: () => new URLSearchParams(Object.entries(parts).flatMap(([name, part]) => part.read().map((value) => [name, value]))).toString().replaceAll("%2C", ","),
    apply: (text) => {
      const asked = new URLSearchParams(text)
      for (const [name, part] of Object.entries(parts)) if (asked.has(name)) part.apply(asked.getAll(name))
    },
  }
}

// The elements that a selector finds in an element, also within the shadow roots in which Bokeh lays out a figure.
const everyOne = (root, selector) => [...root.querySelectorAll("*")].flatMap((one) =>
  [...(one.matches(selector) ? [one] : []), ...(one.shadowRoot ? everyOne(one.shadowRoot, selector) : [])])

// The middle of the visible part of a graph, and how often it is enlarged; null while it is as it was fitted. Both are the
// same on a page of another width.
const graphAt = ({x_range, y_range}) => {
  const span = x_range.reset_end - x_range.reset_start, tall = y_range.reset_start - y_range.reset_end, slack = 1e-3 * span
  const isFitted = ["start", "end"].every((side) => [x_range, y_range].every((one) => Math.abs(one[side] - one[`reset_${side}`]) < slack))
  if (isFitted || !(span > 0 && tall > 0)) return null
  return [(x_range.start + x_range.end) / 2, (y_range.start + y_range.end) / 2, span / (x_range.end - x_range.start)]
}
const setGraphAt = (figure, [x, y, times]) => {
  const {x_range, y_range} = figure, {inner_width} = figure.properties
  if (!(x_range.reset_end > x_range.reset_start)) {  // it is fitted once it has a width
    const later = () => { inner_width.change.disconnect(later); setGraphAt(figure, [x, y, times]) }
    inner_width.change.connect(later)
    return
  }
  const wide = (x_range.reset_end - x_range.reset_start) / times / 2, tall = (y_range.reset_start - y_range.reset_end) / times / 2
  x_range.setv({start: x - wide, end: x + wide})
  y_range.setv({start: y + tall, end: y - tall})
}

// The button that gives the view, and the line below the figure with what it gave: `write` makes a line of the view, and
// `save` a page of it where one can be made. Where a page may not write to the clipboard, the line is selected.
const viewButton = (host, read, {write, save}) => {
  const place = document.createElement("div")
  place.className = "pathways-view"
  place.style.cssText = `font: ${sized(13)}/1.5 sans-serif; margin: 4px 12px; display: none; gap: 6px; align-items: center; flex-wrap: wrap`
  host.after(place)
  const close = () => { place.style.display = "none" }
  const copy = async () => {
    const field = document.createElement("input"), said = document.createElement("span"), at = read()
    Object.assign(field, {type: "text", readOnly: true, value: write(at)})
    field.setAttribute("aria-label", "This view")
    field.style.cssText = "flex: 1 1 24em; min-width: 8em; font: 0.9em monospace; color: inherit; background: transparent; border: 1px solid; border-radius: 3px; padding: 2px 6px"
    said.setAttribute("role", "status")
    const parts = [field, said, ...(save ? [button("save as a page", "One HTML file that opens with this view, without a kernel", () => save(at))] : []), button("×", "Close", close)]
    parts.at(-1).setAttribute("aria-label", "Close")
    place.replaceChildren(...parts)
    place.style.display = "flex"
    field.select()
    let isCopied = true
    try { await navigator.clipboard.writeText(field.value) } catch { isCopied = document.execCommand("copy") }
    said.textContent = isCopied ? "copied" : "press Ctrl+C or ⌘C to copy"
  }
  const made = button("copy this view", "Copy what opens this figure with zoom, selection and what is hidden as they are now", copy)
  made.style.cssText += "; align-self: flex-start; white-space: nowrap"
  return made
}
