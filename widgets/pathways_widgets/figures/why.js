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
  onTaps(figure, ({x, y}) => {
    const {data} = table
    if (!data.left?.length) { if (table.tags.length) open(lineOf(table.tags[0])); return }
    const {isLane, hit, next, gap} = askedAt(data, x, y)
    if (!isLane) close()
    else if (hit !== undefined) open(...factLines(facts, data.fact[hit]), ...chainOf(data, hit, (rows) => outline(rows, null)))
    else if (next !== undefined) open(...chainOf(data, next, (rows) => outline(rows, gap)))
    else { outline([], null); open(lineOf("Nothing runs here any more.")) }
  })
  table.properties.data.change.connect(close)
  const tellNodes = (ids) => {
    const chosen = new Set(ids), rows = Array.from(facts.data.id ?? []).flatMap((of, i) => of.split(" ").some((id) => chosen.has(id)) ? [i] : [])
    if (!rows.length) return
    outline([], null)
    open(...rows.slice(0, 8).flatMap((row) => factLines(facts, row)), ...(rows.length > 8 ? [lineOf(`and ${rows.length - 8} more`)] : []))
  }
  const tell = (of, box) => of === figure ? sentenceOf(table.data, box) : ""
  return {panel, tellNodes, tell, close}
}

// What is asked at a place of the timeline: the event there, else the next one in its lane, with the gap if it could have
// begun earlier; neither where nothing runs any more.
const askedAt = ({left, right, top, bottom, free}, x, y) => {
  const lane = Array.from(left, (_, i) => i).filter((i) => top[i] - LANE_MARGIN <= y && y <= bottom[i] + LANE_MARGIN)
  const hit = lane.findLast((i) => left[i] <= x && x <= right[i]), next = lane.find((i) => left[i] > x)  // in the order of their starts
  return {isLane: lane.length > 0, hit, next, gap: free[next] < left[next] ? next : null}
}

// The sentence of a box that is one event; its places are rounded, unlike those of the table.
const sentenceOf = (data, box) => {
  const least = box.right - box.left, isAt = (i, side, slack) => Math.abs(data[side][i] - box[side]) <= slack
  const row = Array.from(data.left ?? []).findIndex((_, i) => ["left", "right"].every((side) => isAt(i, side, 1e-3 * least)) && ["top", "bottom"].every((side) => isAt(i, side, 1e-3)))
  return row < 0 ? "" : data.text[row]
}

// A chain of causes, which grows by a step with each "why?", or to its beginning at once; its rows are told to `draw`.
const chainOf = (data, row, draw) => {
  const list = document.createElement("ol"), rows = [], more = document.createElement("div")
  list.style.cssText = "margin: 2px 0; padding-left: 2em; max-height: 16em; overflow: auto"
  const add = () => {
    const item = document.createElement("li"), at = rows.length ? data.next[rows.at(-1)] : row
    rows.push(at)
    explain(item, data.text[at])
    list.append(item)
    if (data.next[at] < 0) more.replaceChildren()
  }
  const show = () => { draw(rows); list.scrollTop = list.scrollHeight }
  more.append(button("and why that?", "One step back", () => { add(); show() }),
    button("back to the beginning", "All steps", () => { while (more.children.length) add(); show() }))
  add()
  show()
  return [list, more]
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
