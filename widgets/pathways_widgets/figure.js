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

// Picking a node marks its bars and the other way round: what belongs together has a common id.
const link = (doc) => {
  const nodes = doc.get_model_by_name("graph_nodes"), bars = doc.get_model_by_name("timeline_boxes")
  if (!nodes || !bars) return () => {}
  let chosen = new Set(), marking = false
  const rows = (ids) => chosen.size ? Array.from(ids ?? []).flatMap((id, i) => id.split(" ").some((one) => chosen.has(one)) ? [i] : []) : []
  const mark = () => {
    marking = true
    nodes.selected.indices = rows(nodes.data.ids)
    bars.selected.indices = rows(bars.data.id)
    marking = false
  }
  const listen = (source, column) => source.selected.properties.indices.change.connect(() => {
    if (marking) return
    chosen = new Set(source.selected.indices.flatMap((i) => source.data[column][i].split(" ")).filter((id) => id))
    mark()
  })
  listen(nodes, "ids")
  listen(bars, "id")
  return () => { if (chosen.size) mark() }
}

// The summary goes in as text, never as HTML.
const mount = async (Bokeh, item, element) => {
  const host = document.createElement("div"), summary = document.createElement("div")
  summary.style.cssText = "font: 12px sans-serif; padding: 4px 12px; white-space: pre-wrap; opacity: 0.8"
  summary.textContent = item.summary
  element.classList.add("pathways-figure")  // a still picture beside it hides
  element.replaceChildren(host, summary)
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
  const mark = link(doc)
  const dispose = () => { unwatch(); for (const view of [...views]) view.remove() }
  return {doc, summary, mark, dispose}
}
