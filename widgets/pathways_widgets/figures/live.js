// The browser's part of LiveFigure. Everything arrives as state of the widget, so a figure can be drawn at any time
// without asking the kernel, which may be busy. Only traits such as `view`, the visible part of the time axis, go back.

const loadBokeh = async (model) => {
  const asset = await model.widget_manager.get_model(model.get("_assets"))
  const version = asset.get("version")
  globalThis.pathwaysBokeh ??= {}
  if (!globalThis.pathwaysBokeh[version]) {
    for (const source of asset.get("src")) new Function("define", "module", "exports", source).call(globalThis)
    globalThis.pathwaysBokeh[version] = globalThis.Bokeh[version] ?? globalThis.Bokeh
  }
  return globalThis.pathwaysBokeh[version]
}

const ARRAYS = {
  u1: Uint8Array, i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array,
}

// An image of one row, in the form that Bokeh expects.
const strip = (pixels) => Object.assign(pixels, {dimension: 2, shape: [1, pixels.length]})

// Mirrors pack() in packing.py: length of the head, head as JSON, then columns at multiples of 8 bytes.
const unpack = (view) => {
  if (!view?.byteLength) return null
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)
  const length = new Uint32Array(bytes, 0, 1)[0]
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)))
  const column = ({type, start, size, words, width}) => {
    const numbers = new ARRAYS[type](bytes, start, size)
    if (width) return Array.from({length: size / width}, (_, row) => strip(numbers.slice(row * width, (row + 1) * width)))
    return words ? Array.from(numbers, (number) => words[number]) : numbers
  }
  return Object.fromEntries(Object.entries(head).map(([name, where]) => [name, column(where)]))
}

// Milliseconds to wait for an answer of the kernel before the next request is sent.
const PATIENCE = 250

// Until the user pans or zooms, the time axis shows the whole run; `reset` returns to that. Boxes are sent for half a
// window more on each side, so a pan shows boxes at once, and the next ones are requested before they are needed.
const follow = (doc, model) => {
  const range = doc.get_model_by_name("timeline_x")
  if (!range) return {show: () => {}, reveal: () => {}, arrived: () => {}, stop: () => {}}
  let following = true, moving = false, timer = null, asked = [], askedAt = 0
  const show = () => {
    const properties = JSON.parse(model.get("_properties")).timeline_x
    if (!properties) return
    moving = true
    range.setv(following ? properties : {tags: properties.tags})
    moving = false
  }
  const send = (view) => { asked = view; askedAt = performance.now(); model.set("view", view); model.save_changes() }
  const enough = () => {
    const [start, end] = asked, span = end - start
    return Math.abs((range.end - range.start) / span - 1) < 0.01 && range.start > start - span / 4 && range.end < end + span / 4
  }
  const ask = () => {
    clearTimeout(timer)
    if (following || enough()) return
    const patience = askedAt && askedAt + PATIENCE - performance.now()
    if (patience > 0) timer = setTimeout(ask, patience)
    else send([range.start, range.end])
  }
  range.change.connect(() => { if (!moving) { following = false; ask() } })
  const reset = () => { clearTimeout(timer); following = true; show(); send([]) }
  // Moves the axis, as wide as it is, to a time that is out of sight: a step that cannot be seen would be none.
  const reveal = (time) => {
    const span = range.end - range.start
    if (time < range.start || time > range.end) range.setv({start: time - span / 4, end: time + 3 * span / 4})
  }
  for (const figure of overTime(doc)) figure.on_event("reset", reset)
  if (model.get("view").length) send([])
  return {show, reveal, arrived: () => { askedAt = 0; ask() }, stop: () => clearTimeout(timer)}
}

// Rows of pixels are made for the width of the figure, which is reported once it has stopped changing.
const tellWidth = (doc, model, el) => {
  const figure = doc.get_model_by_name("schedules")
  let timer = null
  const tell = () => {
    if (!figure?.inner_width || model.get("pixels") === figure.inner_width) return
    model.set("pixels", figure.inner_width)
    model.save_changes()
  }
  const watcher = new ResizeObserver(() => { clearTimeout(timer); timer = setTimeout(tell, PATIENCE) })
  watcher.observe(el)
  return watcher
}

// A page of the figure is made by the kernel, which has all of its data, and kept by the browser.
const keepPage = ({name}, [bytes]) => {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(new Blob([bytes], {type: "text/html"}))
  link.download = name
  link.click()
  URL.revokeObjectURL(link.href)
}

const draw = async (model, el) => {
  const set = (trait, value) => { model.set(trait, value); model.save_changes() }
  const properties = () => JSON.parse(model.get("_properties")), brush = (range) => set("brushed", range)
  const write = (at) => `${model.get("_call")}${[model.get("view_beside"), at].filter((part) => part).join("&")}")`
  const save = model.get("_has_page") ? (at) => model.send({page: at}) : null
  const link = model.get("_call") ? {write, save} : null
  const {doc, say, fit, mark, filter, sayFirst, view, dispose} = await mount(await loadBokeh(model), {...JSON.parse(model.get("_item")), properties: properties()}, el,
    {link, home: () => properties().timeline_x, brush})
  const handlers = [], {show, reveal, arrived, stop} = follow(doc, model)
  const on = (trait, handler) => { handlers.push([`change:${trait}`, handler]); model.on(`change:${trait}`, handler); handler() }
  for (const name of model.get("_sources")) {
    on(`_data_${name}`, () => {
      const data = unpack(model.get(`_data_${name}`))
      if (data) doc.get_model_by_name(name).data = data
      if (name === "graph_nodes" || name === "timeline_boxes") mark()
      if (name === "graph_texts") sayFirst()
      if (name === "timeline_marks") fit()
      if (name === "timeline_step" && data?.x0.length) reveal(data.x0[0])
      if (["timeline_boxes", "memory_levels", "schedules_held"].includes(name)) arrived()
    })
  }
  const widthTold = tellWidth(doc, model, el)
  on("_properties", () => {
    const {timeline_x, ...rest} = properties()
    setProperties(doc, rest)
    show()
  })
  for (const trait of ["headline", "summary", "totals", "description"]) on(trait, () => say({[trait]: model.get(trait)}))
  const timeline = doc.get_model_by_name("timeline")
  on("chosen", () => filter.apply(model.get("chosen") ?? {}))
  filter.onChange((state) => { if (JSON.stringify(state) !== JSON.stringify(model.get("chosen"))) set("chosen", state) })
  // A range that Python has set is shown as one that was dragged.
  on("brushed", () => {
    const [from, to] = model.get("brushed") ?? [], tool = timeline?.toolbar.tools.find(({type}) => type === "BoxSelectTool")
    if (!tool || to === undefined) { if (tool) tool.overlay.visible = false; return }
    tool.overlay.setv({left: Math.min(from, to), right: Math.max(from, to), visible: true})
  })
  timeline?.on_event("selectiongeometry", ({geometry, final}) => {
    if (geometry.type === "rect" && final !== false) brush([geometry.x0, geometry.x1])
  })
  timeline?.on_event("reset", () => {
    for (const tool of timeline.toolbar.tools) if (tool.type === "BoxSelectTool") tool.overlay.visible = false
    brush([])
  })
  view.apply(model.get("_at"))
  return () => { for (const [event, handler] of handlers) model.off(event, handler); stop(); widthTold.disconnect(); dispose() }
}

export default {
  async render({model, el}) {
    let item, end = () => {}
    const redraw = async () => {
      do {
        end()
        item = model.get("_item")
        end = await draw(model, el)
      } while (item !== model.get("_item"))  // it may have changed while the figure was not on the page yet
    }
    await redraw()
    model.on("change:_item", redraw)
    model.on("msg:custom", keepPage)
    return () => { model.off("change:_item", redraw); model.off("msg:custom", keepPage); end() }
  },
}
