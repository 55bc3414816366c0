// The filter of a timeline: one state of what its legend, its row of clients, a row of lists and fields, and the field
// "find" leave. Bokeh's filter tests it on boxes (event_filter.py), so this needs no kernel; a live figure tells Python.

const LISTS = ["client", "program", "place", "kind"]
const SEVERAL = "\u0000"  // the value of a list in which several words are chosen elsewhere

const filterRow = (doc, {field, clients}) => {
  const [figure, hidden, boxes] = ["timeline", "timeline_hidden", "timeline_boxes"].map((name) => doc.get_model_by_name(name))
  if (!figure || !hidden || !boxes) return {row: null, toggle: null, apply: () => {}, onChange: () => {}}
  const row = flowing("Filter"), toggle = button("filter", "Show some events only", () => open(row.style.display === "none"))
  const {lists, numbers, only, onlyText, count} = filterControls(), listeners = [], kinds = kindEntries(figure)
  const {view} = figure.renderers.find((one) => one.data_source === boxes)
  let chosen = {program: [], place: []}, applying = false
  toggle.className = "pathways-filter"
  const words = (what) => ({
    client: () => figure.tags.map(([, name]) => name),
    kind: () => kinds.filter(({item}) => item.visible).map(({name}) => name),
  })[what]?.() ?? boxes.tags[0]?.[what] ?? []
  const read = () => {
    const names = words("client"), shown = words("kind"), away = clients?.away ?? new Set()
    return {
      client: someOf(names.filter((name) => !away.has(name)), names),
      ...chosen,
      kind: someOf(kinds.filter(({name, swatch}) => shown.includes(name) && swatch.visible).map(({name}) => name), shown),
      shortest: numbers.shortest.seconds() ?? 0,
      longest: numbers.longest.seconds(),
      text: only.checked ? field.value.trim() : "",
    }
  }
  const showKinds = (names) => {
    applying = true
    for (const {name, swatch} of kinds) swatch.visible = !names.length || names.includes(name)
    applying = false
  }
  const say = (state) => {
    const used = conditionsIn(state), all = boxes.data.left?.length ?? 0
    toggle.textContent = used ? `filter (${used})` : "filter"
    toggle.style.fontWeight = used ? "bold" : "normal"
    count.textContent = used ? `${[...view.indices].length.toLocaleString("en")} of ${all.toLocaleString("en")} boxes` : ""
    clear.style.display = used ? "inline" : "none"
  }
  const fill = () => {
    const state = read(), texts = {kind: new Map(kinds.map(({name, text}) => [name, text]))}
    for (const what of LISTS) fillList(lists[what], what, {all: words(what), now: state[what], texts: texts[what] ?? new Map()})
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
    showKinds(kind)
    applying = true
    chosen = {program, place}
    clients?.show(client)
    numbers.shortest.set(shortest || null)
    numbers.longest.set(longest)
    if (text) { field.value = text; field.dispatchEvent(new Event("input")) }
    only.checked = text !== ""
    applying = false
    if (conditionsIn(show())) open(true)
  }
  const open = (isOpen) => {
    row.style.display = isOpen ? "flex" : "none"
    toggle.setAttribute("aria-expanded", String(isOpen))
  }
  const clear = button("clear", "Clear the filter", () => { apply({}); changed() })
  const choose = (what, now) => {
    if (what === "client") clients.show(now)
    else if (what === "kind") showKinds(now)
    else chosen = {...chosen, [what]: now}
    changed()
  }
  for (const what of LISTS) lists[what].addEventListener("change", ({target: {value}}) => choose(what, value === SEVERAL ? read()[what] : value ? [value] : []))
  for (const {swatch} of kinds) swatch.properties.visible.change.connect(changed)
  for (const {input} of Object.values(numbers)) input.addEventListener("input", changed)
  only.addEventListener("change", changed)
  field?.addEventListener("input", () => { if (only.checked) changed() })
  clients?.onChange(changed)
  view.properties.indices.change.connect(() => say(read()))
  boxes.properties.tags.change.connect(fill)
  row.append(...LISTS.map((what) => lists[what]), numbers.shortest.label, numbers.longest.label, ...(field ? [onlyText] : []), clear, count)
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

// The entries of the legend that hide kinds.
const kindEntries = (figure) => figure.above.filter(({type}) => type === "Legend").flatMap(({items}) => items).filter(({name}) => name?.startsWith("timeline_kind_"))
  .map((item) => ({item, name: item.name.slice("timeline_kind_".length), text: item.label.value, swatch: item.renderers[0]}))

// A list of no words means all of them, so what leaves none is a word that nothing has.
const someOf = (shown, all) => shown.length === all.length ? [] : shown.length ? shown : [""]

const conditionsIn = (state) => LISTS.filter((what) => state[what].length).length + (state.shortest > 0) + (state.longest !== null) + (state.text !== "")

// The lists and fields of the filter, and the place that says how much it leaves.
const filterControls = () => {
  const only = document.createElement("input"), onlyText = document.createElement("label"), count = document.createElement("span")
  only.type = "checkbox"
  onlyText.append(only, document.createTextNode(" only names that have what is in "), Object.assign(document.createElement("i"), {textContent: "find"}))
  count.setAttribute("role", "status")
  const lists = Object.fromEntries(LISTS.map((what) => {
    const select = document.createElement("select")
    select.style.cssText = "font: inherit; color: inherit; background: Canvas; border: 1px solid; border-radius: 3px; max-width: 16em"
    select.setAttribute("aria-label", what)
    return [what, select]
  }))
  return {lists, numbers: {shortest: numberOf("takes at least"), longest: numberOf("at most")}, only, onlyText, count}
}

// Offers all words in a list, and shows those of now.
const fillList = (select, what, {all, now, texts}) => {
  const several = now.length > 1 ? [[SEVERAL, `${now.length} of ${all.length}`]] : []
  const options = [["", `every ${what}`], ...several, ...all.map((word) => [word, texts.get(word) || word])], key = JSON.stringify(options)
  // A list that is open must not be made anew while a run goes on.
  if (select.dataset.key !== key) select.replaceChildren(...options.map(([value, text]) => Object.assign(document.createElement("option"), {value, textContent: text})))
  select.dataset.key = key
  select.value = now.length > 1 ? SEVERAL : now[0] ?? ""
  select.style.display = all.length > 1 ? "inline" : "none"
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
