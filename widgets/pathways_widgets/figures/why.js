// A tap on the timeline: below the figure stands why an event began when it did, and back step by step what it waited for.
// The sentences are in the page (why_columns.py), so this needs no kernel.

const LANE_MARGIN = 0.09

const whyPanel = (doc) => {
  const [figure, table, facts, asked] = ["timeline", "timeline_why", "timeline_facts", "timeline_asked"].map((name) => doc.get_model_by_name(name))
  const panel = document.createElement("div")
  if (!figure || !table) return {panel: null, tellNodes: () => {}, tell: () => "", close: () => {}}
  panel.className = "pathways-why"
  panel.style.cssText = `font: ${sized(13)}/1.5 sans-serif; margin: 4px 12px; padding: 4px 8px; border: 1px solid; border-radius: 4px; overflow-wrap: anywhere; display: none`
  panel.setAttribute("role", "group")
  panel.setAttribute("aria-label", "Why")
  panel.setAttribute("aria-live", "polite")
  const close = () => { panel.style.display = "none"; panel.replaceChildren(); outline([], null) }
  // What was asked and what led to it, and the gap itself.
  const outline = (rows, gap) => {
    const {data} = table, of = (name) => rows.map((row) => data[name][row])
    const boxes = {left: of("left"), right: of("right"), top: of("top"), bottom: of("bottom")}
    if (gap !== null) for (const [side, from] of [["left", "free"], ["right", "left"], ["top", "top"], ["bottom", "bottom"]]) boxes[side].push(data[from][gap])
    asked.data = boxes
  }
  const open = (...parts) => {
    panel.replaceChildren(button("×", "Close", close), ...parts)
    panel.firstChild.style.float = "right"
    panel.firstChild.setAttribute("aria-label", "Close")
    panel.style.display = "block"
  }
  // A chain grows by a step with each "why?", or to its beginning at once.
  const chain = (row, gap) => {
    const list = document.createElement("ol"), rows = [], more = document.createElement("div")
    list.style.cssText = "margin: 2px 0; padding-left: 2em; max-height: 16em; overflow: auto"
    const add = () => {
      const item = document.createElement("li"), {data} = table, at = rows.length ? data.next[rows.at(-1)] : row
      rows.push(at)
      explain(item, data.text[at])
      list.append(item)
      if (data.next[at] < 0) more.replaceChildren()
    }
    const show = () => { outline(rows, gap); list.scrollTop = list.scrollHeight }
    more.append(button("and why that?", "One step back", () => { add(); show() }),
      button("back to the beginning", "All steps", () => { while (more.children.length) add(); show() }))
    add()
    show()
    return [list, more]
  }
  onTaps(figure, ({x, y}) => {
    const {data} = table, count = data.left?.length ?? 0
    if (!count) { if (table.tags.length) open(lineOf(table.tags[0])); return }
    const lane = Array.from({length: count}, (_, i) => i).filter((i) => data.top[i] - LANE_MARGIN <= y && y <= data.bottom[i] + LANE_MARGIN)
    if (!lane.length) { close(); return }
    const hit = lane.findLast((i) => data.left[i] <= x && x <= data.right[i])
    if (hit !== undefined) { open(...factLines(facts, data.fact[hit]), ...chain(hit, null)); return }
    const next = lane.find((i) => data.left[i] > x)  // rows are in the order of their starts
    if (next === undefined) { outline([], null); open(lineOf("Nothing runs here any more.")) }
    else open(...chain(next, data.free[next] < data.left[next] ? next : null))
  })
  table.properties.data.change.connect(close)
  const tellNodes = (ids) => {
    const chosen = new Set(ids), rows = Array.from(facts.data.id ?? []).flatMap((of, i) => of.split(" ").some((id) => chosen.has(id)) ? [i] : [])
    if (!rows.length) return
    outline([], null)
    open(...rows.slice(0, 8).flatMap((row) => factLines(facts, row)), ...(rows.length > 8 ? [lineOf(`and ${rows.length - 8} more`)] : []))
  }
  // The sentence of a box of this figure that is one event; its places are rounded, unlike those of the table.
  const tell = (of, box) => {
    const {data} = table, least = box.right - box.left, isAt = (i, side, slack) => Math.abs(data[side][i] - box[side]) <= slack
    if (of !== figure) return ""
    const row = Array.from(data.left ?? []).findIndex((_, i) => ["left", "right"].every((side) => isAt(i, side, 1e-3 * least)) && ["top", "bottom"].every((side) => isAt(i, side, 1e-3)))
    return row < 0 ? "" : data.text[row]
  }
  return {panel, tellNodes, tell, close}
}

const lineOf = (text) => { const made = document.createElement("div"); explain(made, text); return made }

// What all events of one kind took, and a slider: how long all would take if these were faster.
const factLines = ({data}, row) => {
  const factors = Object.keys(data).filter((name) => name.startsWith("faster") && data[name][row])
  if (!factors.length) return [lineOf(data.text[row])]
  const slider = document.createElement("input"), said = document.createElement("span"), place = document.createElement("label")
  Object.assign(slider, {type: "range", min: 0, max: factors.length, step: 1, value: 0})
  slider.style.cssText = "width: 8em; vertical-align: middle; margin-right: 6px"
  slider.setAttribute("aria-label", "What if it were faster")
  const say = () => { said.textContent = +slider.value ? data[factors[slider.value - 1]][row] : "what if it were faster?" }
  slider.addEventListener("input", say)
  say()
  place.append(slider, said)
  return [lineOf(data.text[row]), place]
}

// Two clicks in quick succession at different places are two clicks; the second one at the same place is none.
const onTaps = (figure, tap) => {
  let last = [NaN, NaN]
  const go = (event) => { last = [event.sx, event.sy]; tap(event) }
  figure.on_event("tap", go)
  figure.on_event("doubletap", (event) => { if (Math.hypot(event.sx - last[0], event.sy - last[1]) > 8) go(event) })
}

const button = (text, title, press) => {
  const made = document.createElement("button")
  Object.assign(made, {type: "button", textContent: text, title})
  made.style.cssText = "font: inherit; color: inherit; background: transparent; border: 1px solid; border-radius: 3px; padding: 0 8px; margin-right: 6px; cursor: pointer"
  made.addEventListener("click", press)
  return made
}
