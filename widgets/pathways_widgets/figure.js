// Shared by the widget (live.js) and by stand-alone pages: put an item into an element and keep it in the page's theme.

const isDark = () => {
  const jupyter = document.body.dataset.jpThemeLight
  if (jupyter !== undefined) return jupyter === "false"
  if (document.body.dataset.vscodeThemeKind) return !document.body.dataset.vscodeThemeKind.includes("light")
  return matchMedia("(prefers-color-scheme: dark)").matches
}

const onThemeChange = (callback) => {
  const watcher = new MutationObserver(callback)
  const attributeFilter = ["data-jp-theme-light", "data-vscode-theme-kind"]
  watcher.observe(document.body, {attributes: true, attributeFilter})
  const media = matchMedia("(prefers-color-scheme: dark)")
  media.addEventListener("change", callback)
  return () => { watcher.disconnect(); media.removeEventListener("change", callback) }
}

const setProperties = (doc, byModel) => {
  for (const [name, properties] of Object.entries(byModel)) doc.get_model_by_name(name)?.setv(properties)
}

// The same in the JSON of an item, so that its first paint is already right.
const dress = (node, byModel) => {
  if (node === null || typeof node !== "object") return
  const properties = byModel[node.attributes?.name]
  if (properties) Object.assign(node.attributes, properties)
  for (const child of Object.values(node)) dress(child, byModel)
}

// Picking a node marks its bars and the other way round: what belongs together has a common id. A word marks what is
// named so in both. `mark` is for when data have come, and says how much is marked.
const link = (doc) => {
  const views = [["graph_nodes", "ids", "title"], ["timeline_boxes", "id", "name"]].flatMap(([model, ids, names]) => {
    const source = doc.get_model_by_name(model)
    return source ? [{source, ids, names}] : []
  })
  let chosen = new Set(), word = "", marking = false
  const fits = ({source: {data}, ids, names}, i) =>
    word ? data[names][i].toLowerCase().includes(word) : data[ids][i].split(" ").some((id) => chosen.has(id))
  const mark = () => {
    if (!word && !chosen.size && !views.some(({source}) => source.selected.indices.length)) return 0
    marking = true
    for (const view of views) {
      const rows = Array.from(view.source.data[view.ids] ?? [], (_, i) => i)
      view.source.selected.indices = word || chosen.size ? rows.filter((i) => fits(view, i)) : []
    }
    marking = false
    return views.reduce((count, {source}) => count + source.selected.indices.length, 0)
  }
  for (const {source, ids} of views) source.selected.properties.indices.change.connect(() => {
    if (marking) return
    word = ""
    chosen = new Set(source.selected.indices.flatMap((i) => source.data[ids][i].split(" ")).filter((id) => id))
    mark()
  })
  const find = (text) => { word = text.trim().toLowerCase(); chosen = new Set(); return mark() }
  return {mark, find}
}

// A field to type a name into; JupyterLab must not take the letters for commands.
const searchField = (find) => {
  const field = document.createElement("input")
  Object.assign(field, {type: "search", placeholder: "find", title: "Mark nodes and bars by name"})
  field.setAttribute("aria-label", field.title)
  field.dataset.lmSuppressShortcuts = "true"
  field.style.cssText = "font: inherit; color: inherit; background: transparent; width: 9em; border: 1px solid; border-radius: 3px; padding: 0 4px; height: 1.6em"
  field.addEventListener("keydown", (event) => event.stopPropagation())
  field.addEventListener("input", () => {
    const count = find(field.value)
    field.style.outline = field.value.trim() && !count ? "2px dashed" : "none"
    field.title = field.value.trim() ? `${count} boxes are named so` : "Mark nodes and bars by name"
  })
  return field
}

// The summary goes in as text, never as HTML.
const mount = async (Bokeh, item, element) => {
  const host = document.createElement("div"), foot = document.createElement("div"), summary = document.createElement("div")
  foot.style.cssText = "font: 12px sans-serif; padding: 4px 12px; opacity: 0.8; display: flex; gap: 12px"
  summary.style.cssText = "white-space: pre-wrap; flex: 1"
  summary.textContent = item.summary
  element.classList.add("pathways-figure")  // a still picture beside it hides
  element.replaceChildren(host, foot)
  const theme = () => item.themes[isDark() ? "dark" : "light"]
  dress(item.doc, item.properties)
  dress(item.doc, theme())
  const views = await Bokeh.embed.embed_item({...item, target_id: null}, host)
  const doc = [...views][0].model.document
  const unwatch = onThemeChange(() => {
    setProperties(doc, theme())
    // Laid out anew, or recoloured legends slide over the lanes.
    const figure = doc.get_model_by_name("timeline")
    if (!figure) return
    figure.height += 1
    setTimeout(() => { figure.height -= 1 }, 50)
  })
  const {mark, find} = link(doc)
  foot.append(summary, searchField(find))
  const dispose = () => { unwatch(); for (const view of [...views]) view.remove() }
  return {doc, summary, mark, dispose}
}
