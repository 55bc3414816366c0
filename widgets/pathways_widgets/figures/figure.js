// Shared by the widget (live.js) and by pages without a kernel: embed an item and keep it in the page's theme.

const isDark = () => {
  const jupyter = document.body.dataset.jpThemeLight
  if (jupyter !== undefined) return jupyter === "false"
  if (document.body.dataset.vscodeThemeKind) return !document.body.dataset.vscodeThemeKind.includes("light")
  if (["dark", "light"].includes(document.body.dataset.theme)) return document.body.dataset.theme === "dark"
  return matchMedia("(prefers-color-scheme: dark)").matches
}

const onThemeChange = (callback) => {
  const watcher = new MutationObserver(callback)
  const attributeFilter = ["data-jp-theme-light", "data-vscode-theme-kind", "data-theme"]
  watcher.observe(document.body, {attributes: true, attributeFilter})
  const media = matchMedia("(prefers-color-scheme: dark)")
  media.addEventListener("change", callback)
  return () => { watcher.disconnect(); media.removeEventListener("change", callback) }
}

const setProperties = (doc, byModel) => {
  for (const [name, properties] of Object.entries(byModel)) doc.get_model_by_name(name)?.setv(properties)
}

// The figures that share a time axis.
const overTime = (doc) => ["timeline", "memory", "schedules"].map((name) => doc.get_model_by_name(name)).filter((figure) => figure)

// Pixels between the labels of a time axis, at least.
const APART = 75

// What depends on the width of the page: how many times an axis names, and which texts fit on boxes. Texts are fitted to a
// page of some width; on a narrower one, or after a zoom on a page without a kernel, a letter or nothing is written.
const fitToWidth = (doc) => {
  const [figure] = overTime(doc), marks = doc.get_model_by_name("timeline_marks"), range = doc.get_model_by_name("timeline_x")
  if (!figure) return () => {}
  const context = document.createElement("canvas").getContext("2d")
  let scale = 0
  const fit = () => {
    if (!marks?.data.long || !range || !figure.inner_width) return
    scale = figure.inner_width / (range.end - range.start)
    const {glyph} = figure.renderers.find((one) => one.data_source === marks)
    context.font = `${glyph.text_font_size.value ?? glyph.text_font_size} ${glyph.text_font.value ?? glyph.text_font}`
    const {long, letter, seconds, x, y} = marks.data, taken = new Map()
    // Boxes of a lane may overlap, such as those of two dispatchers: the text of the wider one, which comes first, stays.
    const isFree = (i, wide) => {
      const [from, to] = [x[i] * scale - wide / 2, x[i] * scale + wide / 2], others = taken.get(y[i]) ?? []
      if (wide > seconds[i] * scale || others.some(([left, right]) => from < right && left < to)) return false
      taken.set(y[i], [...others, [from, to]])
      return true
    }
    const text = Array.from(long, (words, i) => [words, letter[i]].find((one) => isFree(i, context.measureText(one).width)) ?? "")
    if (text.join() !== Array.from(marks.data.text).join()) marks.data = {...marks.data, text}
  }
  const ticks = () => {
    for (const one of overTime(doc)) one.below[0].ticker.desired_num_ticks = Math.max(2, Math.min(10, Math.floor(one.inner_width / APART)))
    fit()
  }
  // Each has its own width, which may change after that of the first.
  for (const one of overTime(doc)) one.properties.inner_width.change.connect(ticks)
  range?.change.connect(() => { if (Math.abs(figure.inner_width / (range.end - range.start) / scale - 1) > 0.01) fit() })
  ticks()
  return fit
}

// Set properties in the JSON of an item, before models are made, so that the first paint has the right colours.
const dress = (node, byModel) => {
  if (node === null || typeof node !== "object") return
  const properties = byModel[node.attributes?.name]
  if (properties) Object.assign(node.attributes, properties)
  for (const child of Object.values(node)) dress(child, byModel)
}

// Selecting a node selects its bars, and the other way round: they have a common id, and a box for many nodes has the id
// `program#*`. A word typed into the field selects everything with that name, and everything linked with it.
// What was selected by hand is told to `picked`, with the view's model name and its rows.
const link = (doc, picked) => {
  const views = [["graph_nodes", "ids", "title"], ["timeline_boxes", "id", "name"]].flatMap(([model, ids, names]) => {
    const source = doc.get_model_by_name(model)
    return source ? [{model, source, ids, names}] : []
  })
  if (!views.length) return {mark: () => {}, field: null, find: () => 0, chosen: () => [], choose: () => {}}
  let chosen = new Set(), word = "", marking = false
  const some = (all, one) => all.endsWith("#*") && one.startsWith(all.slice(0, -1))
  const isChosen = (id) => chosen.has(id) || [...chosen].some((other) => some(id, other) || some(other, id))
  const isNamed = ({source: {data}, names}, i) =>
    word !== "" && data[names][i].toLowerCase().includes(word) && data.quality?.[i] !== "merged"
  const rows = ({source, ids}) => Array.from(source.data[ids] ?? [], (_, i) => i)
  const idsOf = ({source, ids}, indices) => indices.flatMap((i) => source.data[ids][i].split(" ")).filter((id) => id)
  const mark = () => {
    if (word) chosen = new Set(views.flatMap((view) => idsOf(view, rows(view).filter((i) => isNamed(view, i)))))
    if (!word && !chosen.size && !views.some(({source}) => source.selected.indices.length)) return 0
    marking = true
    for (const view of views) {
      const known = new Map()
      const fits = (ids) => { if (!known.has(ids)) known.set(ids, ids.split(" ").some(isChosen)); return known.get(ids) }
      const found = rows(view).filter((i) => isNamed(view, i) || (chosen.size && fits(view.source.data[view.ids][i])))
      // The card that leads back stands for nothing that could fade.
      view.source.selected.indices = found.length ? [...new Set([...found, ...rows(view).filter((i) => view.source.data.back?.[i])])] : found
    }
    marking = false
    return views.reduce((count, {source}) => count + source.selected.indices.length, 0)
  }
  const find = (text) => { word = text.trim().toLowerCase(); chosen = new Set(); return mark() }
  const field = searchField(find)
  for (const view of views) view.source.selected.properties.indices.change.connect(() => {
    if (marking) return
    word = field.value = ""
    const rows = [...view.source.selected.indices]
    chosen = new Set(idsOf(view, rows))
    mark()
    picked(view.model, rows)
  })
  const choose = (ids) => { word = field.value = ""; chosen = new Set(ids); mark() }
  return {mark, field, find, chosen: () => [...chosen], choose}
}

const searchField = (find) => {
  const field = document.createElement("input"), what = "Mark nodes and bars by name"
  Object.assign(field, {type: "search", placeholder: "find", title: what})
  field.setAttribute("aria-label", what)
  field.style.cssText = "font: inherit; color: inherit; background: transparent; width: 9em; border: 1px solid; border-radius: 3px; padding: 0 4px; height: 1.6em"
  field.addEventListener("input", () => {
    const count = find(field.value)
    field.style.outline = field.value.trim() && !count ? "2px dashed" : "none"
    field.title = field.value.trim() ? `${count} boxes are named so` : what
  })
  return field
}

// The graph of a step's modules shows one level at a time: a click on a card opens its level, and beside it stands the
// source of what is selected, the line itself marked. A bar that is selected is shown where its card is.
const modules = (doc, Bokeh) => {
  const [shown, levels, texts, nodes, place] = ["graph_shown", "graph_levels", "graph_texts", "graph_nodes", "graph_code"].map((name) => doc.get_model_by_name(name))
  if (!shown || !place) return {picked: () => {}, sayFirst: () => {}, open: () => {}}
  const say = sourcePane(Bokeh, place, texts), now = () => shown.data.level[0]
  const open = (level) => {
    const height = levels.data.height[level] + 10, figure = doc.get_model_by_name("graph")
    shown.data = {level: [level]}
    for (const model of [figure, place]) model.height = Math.round(height)
    figure.y_range.setv({start: height, end: 0})
  }
  const sayFirst = () => {
    if (levels.data.line?.length) say(levels.data.line[now()], `costliest line of ${levels.data.title[now()]}`)
  }
  const fewest = (rows) => rows.reduce((one, other) => nodes.data.ids[other].length < nodes.data.ids[one].length ? other : one)
  const picked = (model, rows) => {
    if (!rows.length) return
    const row = rows[0]
    if (model === "graph_nodes") {
      const {opens, line, title} = nodes.data
      if (opens[row] >= 0) open(opens[row])
      if (nodes.data.back[row]) sayFirst()
      else say(line[row], opens[row] >= 0 ? `costliest line of ${title[row]}` : title[row])
      return
    }
    const boxes = doc.get_model_by_name("timeline_boxes").data, found = nodes.selected.indices.filter((i) => !nodes.data.back[i])
    if (!found.length) return
    const least = fewest(found), alone = boxes.id[row].split(" ").length < 3
    if (alone && nodes.data.level[least] !== now()) open(nodes.data.level[least])
    else if (!found.some((i) => nodes.data.level[i] === now())) open(0)
    const line = (boxes.line[row] || "").split(" · ")[0]
    say(Array.from(texts.data.line).includes(line) ? line : nodes.data.line[least], boxes.name[row])
  }
  const tap = ({x, y}) => {
    const {data, selected} = nodes
    const hit = Array.from(data.x, (_, i) => i).find((i) => data.level[i] === now() &&
      Math.abs(x - data.x[i]) < data.width[i] / 2 && Math.abs(y - data.y[i]) < data.height[i] / 2)
    const indices = hit === undefined ? [] : [hit]
    if (indices.join() === selected.indices.join()) picked("graph_nodes", indices)
    else selected.indices = indices
  }
  const figure = doc.get_model_by_name("graph")
  onTaps(figure, tap)
  return {picked, sayFirst, open}
}

// What lies above all boxes, such as the mark at a step, ends at the edge of its figure: Bokeh cuts off only layers below.
const keepInFrame = ({computed_renderer_views: views}) => {
  for (const view of views) if (view.model.type === "GlyphRenderer" && view.model.level === "overlay") Object.defineProperty(view, "needs_clip", {value: true})
}

// The pane with the source: it shows the text around a line, below a heading. The line has the colour in the place's tags.
const sourcePane = (Bokeh, place, texts) => {
  const pane = document.createElement("div")
  pane.className = "pathways-code"
  pane.style.cssText = "position: absolute; inset: 4px 8px; overflow: auto; font: 12px/1.45 monospace"
  return (line, head) => {
    const at = Array.from(texts.data.line ?? []).indexOf(line), first = texts.data.first?.[at]
    const title = document.createElement("div")
    title.style.cssText = "font: bold 12px sans-serif; padding-bottom: 4px; white-space: pre-wrap; overflow-wrap: anywhere"
    title.textContent = [head, line].filter((text) => text).join(" · ")
    const rows = at < 0 ? [] : texts.data.text[at].split("\n").map((text, i) => {
      const row = document.createElement("div"), isIt = line.endsWith(`${line.includes(", line ") ? " " : ":"}${first + i}`)
      row.style.cssText = "white-space: pre; width: max-content; min-width: 100%" + (isIt ? `; background: ${place.tags[0]}; font-weight: bold` : "")
      if (isIt) row.dataset.marked = line
      row.textContent = `${isIt ? "▸" : " "}${String(first + i).padStart(4)}  ${text}`
      return row
    })
    pane.replaceChildren(title, ...rows)
    const view = Bokeh.index.find_one(place)
    if (view && pane.parentNode !== view.shadow_el) view.shadow_el.append(pane)
  }
}

// Bokeh draws only what is on the page, and notebooks keep cells that are out of sight off it: this element tells when it
// comes onto the page.
if (!customElements.get("pathways-host")) customElements.define("pathways-host", class extends HTMLElement {
  connectedCallback() { this.dispatchEvent(new Event("connected")) }
})
const onPage = (host) => host.isConnected || new Promise((come) => host.addEventListener("connected", come, {once: true}))

const embed = async (Bokeh, item, host) => {
  for (;;) {
    await onPage(host)
    try {
      return await Bokeh.embed.embed_item({...item, target_id: null}, host)
    } catch (error) {
      if (host.isConnected) throw error  // else it left the page again in the meantime
    }
  }
}

// A size of text on the page, as many times as large as that in the picture is made by its style: a projector's style would
// leave it behind.
const sized = (pixels) => `calc(${pixels}px * var(--pathways-size, 1))`
const takeSize = (element, doc) => {
  const font = parseFloat(overTime(doc)[0]?.title.text_font_size), times = font ? font / 11 : doc.get_model_by_name("graph_chips") && doc.get_model_by_name("graph").tags[3]
  element.style.setProperty("--pathways-size", times || 1)
}

// What is said of a figure: in `head` one sentence, and in `numbers` what is behind it, folded if it is that of a run with
// a sentence. Both are inserted as text, never as HTML: they contain names that users chose.
const told = (head, host, mayFold) => {
  const numbers = document.createElement("div"), summary = document.createElement("div"), totals = document.createElement("div")
  const details = document.createElement("details"), word = document.createElement("summary")
  head.className = "pathways-headline"
  numbers.style.cssText = "flex: 1 1 16em; min-width: 0"
  word.textContent = "details"
  word.style.cursor = "pointer"
  summary.style.whiteSpace = totals.style.whiteSpace = "pre-wrap"
  details.append(word)
  numbers.append(details, totals)
  const said = {headline: "", summary: "", totals: "", description: ""}
  const say = (news) => {
    Object.assign(said, news)
    explain(head, said.headline ?? "")
    head.style.cssText = `font: ${sized(16)} sans-serif; padding: 4px 12px 2px; white-space: pre-wrap; display: ${said.headline ? "block" : "none"}`
    const isFolded = mayFold && said.headline && said.headline !== said.summary
    details.style.display = isFolded ? "block" : "none"
    if (isFolded) details.append(summary)
    else numbers.prepend(summary)
    explain(summary, said.summary ?? "")
    explain(totals, said.totals ?? "")
    host.setAttribute("aria-label", [said.headline, said.description || said.summary].filter((text) => text).join(". ") || "Figure")
  }
  return {numbers, say}
}

// `link` says how a view of the figure is written, where it can be, and `home` what of the time its axis shows at first.
const mount = async (Bokeh, item, element, {link: given = null, home = () => item.properties.timeline_x, brush = null} = {}) => {
  const host = document.createElement("pathways-host"), foot = document.createElement("div"), head = document.createElement("div")
  const {numbers, say} = told(head, host, item.is_folded)
  host.style.display = "block"
  host.setAttribute("role", "figure")
  foot.style.cssText = `font: ${sized(12)} sans-serif; padding: 4px 12px; opacity: 0.8; display: flex; flex-wrap: wrap; gap: 3px 12px`
  say({headline: item.headline, summary: item.summary, description: item.description})
  element.style.overflowWrap = "anywhere"  // a long name must not make the page wider
  element.classList.remove("pathways-figure")
  element.replaceChildren(head, host, foot)
  const theme = () => item.themes[isDark() ? "dark" : "light"]
  dress(item.doc, item.properties)
  dress(item.doc, theme())
  hideLegends(item.doc)
  const views = await embed(Bokeh, item, host)
  // No key that is pressed here, or in the controls around, is one for the notebook. JupyterLab can be set to take keys
  // before they arrive here, except where it finds this attribute.
  const around = element.closest(".widget-vbox") ?? element
  around.dataset.lmSuppressShortcuts = "true"
  around.onkeydown = (event) => event.stopPropagation()
  element.classList.add("pathways-figure")  // hides the still image beside it (output.py), which stays if this fails
  const doc = [...views][0].model.document
  takeSize(element, doc)
  const unwatch = onThemeChange(() => {
    setProperties(doc, theme())
  })
  legends(doc, Bokeh)
  fitGraph(doc, Bokeh)
  folds(doc, Bokeh)
  titles(doc, Bokeh)
  const fit = fitToWidth(doc)
  const clients = clientRow(doc)
  if (clients) above(Bokeh.index.find_one(doc.get_model_by_name("timeline")), clients.row)
  const levels = modules(doc, Bokeh), {picked, sayFirst} = levels
  const {panel, tellNodes, tell, close} = whyPanel(doc)
  if (panel) host.after(panel)
  const linked = link(doc, (model, rows) => {
    picked(model, rows)
    if (model === "graph_nodes") tellNodes(rows.flatMap((row) => doc.get_model_by_name(model).data.ids[row].split(" ")))
  }), {mark, field} = linked
  sayFirst()
  const {said, buttons} = keyboard(doc, Bokeh, {tell, close, field})
  host.after(said)
  numbers.append(tables(doc, Bokeh), glossary(element))
  const filter = filterRow(doc, {field, clients})
  if (filter.row) foot.before(filter.row)
  if (filter.toggle) buttons?.append(filter.toggle)
  const choose = (ids) => { linked.choose(ids); tellNodes(ids) }
  const view = viewParts(doc, element, {link: {...linked, choose}, modules: levels, filter, home, brush})
  const copier = given && viewButton(host, view.read, given)
  foot.append(...[numbers, copier, buttons, field].filter((part) => part))
  for (const figure of figuresOf(doc)) {
    tooltips(figure, Bokeh)
    keepInFrame(Bokeh.index.find_one(figure))
  }
  fewArrows(doc)
  const unlink = linkInCell(doc, Bokeh, element)
  const dispose = () => { unwatch(); unlink(); for (const view of [...views]) view.remove() }
  return {doc, say, fit, mark, filter, sayFirst, view, dispose}
}
