// The filter of a timeline: one state of what its legend, its row of clients, a row of lists and fields, and the field
// "find" leave. Bokeh's filter tests it on boxes (event_filter.py), so this needs no kernel; a live figure tells Python.

const LISTS = ["client", "program", "place", "kind"]

const filterRow = (doc, {field, clients}) => {
  const [figure, hidden, boxes] = ["timeline", "timeline_hidden", "timeline_boxes"].map((name) => doc.get_model_by_name(name))
  if (!figure || !hidden || !boxes) return {row: null, toggle: null, apply: () => {}, onChange: () => {}}
  const row = flowing("Filter"), toggle = button("filter", "Show some events only", () => open(row.style.display === "none"))
  const count = document.createElement("span"), listeners = [], {view} = figure.renderers.find((one) => one.data_source === boxes)
  const kinds = figure.above.filter(({type}) => type === "Legend").flatMap(({items}) => items).filter(({name}) => name?.startsWith("timeline_kind_"))
    .map((item) => ({item, name: item.name.slice("timeline_kind_".length), text: item.label.value, swatch: item.renderers[0]}))
  const numbers = {shortest: numberOf("takes at least"), longest: numberOf("at most")}
  const only = document.createElement("input"), onlyText = document.createElement("label")
  toggle.className = "pathways-filter"
  only.type = "checkbox"
  onlyText.append(only, document.createTextNode(" only names that have what is in "), Object.assign(document.createElement("i"), {textContent: "find"}))
  const lists = Object.fromEntries(LISTS.map((what) => [what, document.createElement("select")]))
  let chosen = {program: [], place: []}, applying = false
  const words = (what) => ({
    client: () => figure.tags.map(([, name]) => name),
    kind: () => kinds.filter(({item}) => item.visible).map(({name}) => name),
  })[what]?.() ?? boxes.tags[0]?.[what] ?? []
  // A list of no words means all of them, so what leaves none is a word that nothing has.
  const some = (shown, all) => shown.length === all.length ? [] : shown.length ? shown : [""]
  const read = () => {
    const names = words("client"), shown = words("kind"), away = clients?.away ?? new Set()
    return {
      client: some(names.filter((name) => !away.has(name)), names),
      ...chosen,
      kind: some(kinds.filter(({name, swatch}) => shown.includes(name) && swatch.visible).map(({name}) => name), shown),
      shortest: numbers.shortest.seconds() ?? 0,
      longest: numbers.longest.seconds(),
      text: only.checked ? field.value.trim() : "",
    }
  }
  const conditions = (state) => LISTS.filter((what) => state[what].length).length + (state.shortest > 0) + (state.longest !== null) + (state.text !== "")
  const say = (state) => {
    const used = conditions(state), all = boxes.data.left?.length ?? 0
    toggle.textContent = used ? `filter (${used})` : "filter"
    toggle.style.fontWeight = used ? "bold" : "normal"
    count.textContent = used ? `${[...view.indices].length.toLocaleString("en")} of ${all.toLocaleString("en")} boxes` : ""
    clear.style.display = used ? "inline" : "none"
  }
  const fill = () => {
    const state = read()
    for (const what of LISTS) {
      const all = words(what), now = state[what], select = lists[what], texts = new Map(kinds.map(({name, text}) => [name, text]))
      const options = [["", `every ${what}`], ...(now.length > 1 ? [["\u0000", `${now.length} of ${all.length}`]] : []), ...all.map((word) => [word, (what === "kind" && texts.get(word)) || word])]
      // A list that is open must not be made anew while a run goes on.
      const key = JSON.stringify(options)
      if (select.dataset.key !== key) select.replaceChildren(...options.map(([value, text]) => Object.assign(document.createElement("option"), {value, textContent: text})))
      select.dataset.key = key
      select.value = now.length > 1 ? "\u0000" : now[0] ?? ""
      select.style.display = all.length > 1 ? "inline" : "none"
    }
  }
  const show = () => {
    const state = read(), {program, place, shortest, longest, text} = state
    hidden.tags = [{program, place, shortest, longest, text}]
    fill()
    say(state)
    return state
  }
  const changed = () => {
    if (applying) return
    const state = show()
    for (const tell of listeners) tell(state)
  }
  // Shows a state that Python has set; parts that it lacks leave everything.
  const apply = (state) => {
    const {client = [], kind = [], program = [], place = [], shortest = 0, longest = null, text = ""} = state
    if (JSON.stringify(read()) === JSON.stringify({client, program, place, kind, shortest, longest, text})) return
    applying = true
    chosen = {program, place}
    clients?.show(client)
    for (const {name, swatch} of kinds) swatch.visible = !kind.length || kind.includes(name)
    numbers.shortest.set(shortest || null)
    numbers.longest.set(longest)
    if (text) { field.value = text; field.dispatchEvent(new Event("input")) }
    only.checked = text !== ""
    applying = false
    if (conditions(show())) open(true)
  }
  const open = (isOpen) => {
    row.style.display = isOpen ? "flex" : "none"
    toggle.setAttribute("aria-expanded", String(isOpen))
  }
  const clear = button("clear", "Clear the filter", () => { apply({}); changed() })
  for (const what of LISTS) {
    const select = lists[what]
    select.style.cssText = "font: inherit; color: inherit; background: Canvas; border: 1px solid; border-radius: 3px; max-width: 16em"
    select.setAttribute("aria-label", what)
    select.addEventListener("change", () => {
      const now = select.value === "\u0000" ? read()[what] : select.value ? [select.value] : []
      if (what === "client") clients.show(now)
      else if (what === "kind") {
        applying = true
        for (const {name, swatch} of kinds) swatch.visible = !now.length || now.includes(name)
        applying = false
      } else chosen = {...chosen, [what]: now}
      changed()
    })
  }
  for (const {swatch} of kinds) swatch.properties.visible.change.connect(changed)
  for (const {input} of Object.values(numbers)) input.addEventListener("input", changed)
  only.addEventListener("change", changed)
  field?.addEventListener("input", () => { if (only.checked) changed() })
  clients?.onChange(changed)
  view.properties.indices.change.connect(() => say(read()))
  boxes.properties.tags.change.connect(fill)
  row.append(...LISTS.map((what) => lists[what]), numbers.shortest.label, numbers.longest.label, ...(field ? [onlyText] : []), clear, count)
  count.setAttribute("role", "status")
  fill()
  say(read())
  open(false)
  // What legends and the row of clients do not say already, as text; nothing if it leaves everything.
  const asText = () => {
    const said = Object.entries(hidden.tags[0] ?? {}).filter(([, value]) => Array.isArray(value) ? value.length : value)
    return said.length ? [JSON.stringify(Object.fromEntries(said))] : []
  }
  return {row, toggle, apply, conditions: asText, onChange: (tell) => listeners.push(tell)}
}

// A field for a duration in milliseconds.
const numberOf = (text) => {
  const label = document.createElement("label"), input = document.createElement("input")
  Object.assign(input, {type: "number", min: 0, step: "any"})
  input.style.cssText = "font: inherit; color: inherit; background: transparent; border: 1px solid; border-radius: 3px; width: 5em"
  label.append(`${text} `, input, " ms")
  return {
    label,
    input,
    seconds: () => input.value === "" || !(input.valueAsNumber >= 0) ? null : input.valueAsNumber / 1e3,
    set: (seconds) => { input.value = seconds === null ? "" : String(Number((1e3 * seconds).toPrecision(12))) },
  }
}
