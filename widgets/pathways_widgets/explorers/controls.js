// The browser's part of MirroredControls: `_tree` says which controls there are, `_states` what they show, and `_sent`
// takes back what the user does.

const element = (name, properties = {}, style = "") => {
  const made = Object.assign(document.createElement(name), properties)
  made.style.cssText = style
  return made
}

const FIELD = "font: inherit; color: inherit; background: transparent; border: 1px solid; border-radius: 3px; padding: 1px 4px; box-sizing: border-box"

// For each kind the element that takes input, and how it shows a state.
const KINDS = {
  check: () => element("input", {type: "checkbox"}),
  menu: () => element("select", {}, FIELD),
  lines: () => element("textarea", {}, FIELD),
  number: () => element("input", {type: "number", step: "any"}, FIELD),
  slider: () => element("input", {type: "range"}),
  field: () => element("input", {type: "text"}, FIELD),
  button: ({description}) => element("button", {textContent: description}, FIELD + "; cursor: pointer"),
  play: () => element("button", {textContent: "play"}, FIELD + "; cursor: pointer"),
  text: () => element("span", {role: "status"}),
  html: () => element("div"),
}
const show = {
  check: (at, {value}) => { at.checked = value },
  menu: (at, {value, options}) => {
    at.replaceChildren(...options.map((label) => element("option", {textContent: label})))
    at.selectedIndex = value
  },
  slider: (at, {min, max, step, value}) => { Object.assign(at, {min, max, step}); at.value = value; at.title = value },
  html: (at, {value}) => { at.innerHTML = value },
  text: (at, {value}) => { at.textContent = value },
  button: (at, {disabled}) => { at.disabled = disabled },
  play: () => {},
}
const read = {check: (at) => at.checked, menu: (at) => at.selectedIndex, slider: (at) => Number(at.value), number: (at) => Number(at.value)}

// A button that moves on step by step, as long as there are steps.
const playing = (at, state, send) => {
  let timer = null
  const stop = () => { clearInterval(timer); timer = null; at.textContent = "play" }
  at.addEventListener("click", () => {
    if (timer) return stop()
    at.textContent = "pause"
    timer = setInterval(() => {
      const {value, max} = state()
      if (value >= max) stop()
      else send(value + 1)
    }, state().interval)
  })
  return stop
}

export default {
  render({model, el}) {
    let states = JSON.parse(model.get("_states")), count = 0
    const shown = [], ends = []
    const make = (one) => {
      const {number, kind, description, tooltip, placeholder, width, inside} = one
      if (kind === "row" || kind === "column") {
        const box = element("div", {}, kind === "row" ? "display: flex; flex-flow: row wrap; align-items: center; gap: 4px 12px" : "")
        box.append(...inside.map(make))
        return box
      }
      if (kind === "fold") {
        const box = element("div")
        inside.forEach((child, index) => {
          const folded = element("details"), title = element("summary")
          folded.append(title, make(child))
          box.append(folded)
          shown.push([number, (state) => { title.textContent = state.titles[index] }])
        })
        return box
      }
      const at = KINDS[kind](one), send = (value) => { model.set("_sent", [number, value, ++count]); model.save_changes() }
      const pressed = kind === "button" || kind === "play"  // a label would take the button's name away
      const label = element(pressed ? "span" : "label", {title: tooltip}, "display: inline-flex; align-items: center; gap: 4px; max-width: 100%")
      if (placeholder) at.placeholder = placeholder
      if (!pressed && description) label.append(description)
      if (width && kind !== "check") at.style.width = width
      if (width.endsWith("%")) Object.assign(label.style, {display: "flex"})
      label.append(at)
      if (kind === "play") ends.push(playing(at, () => states[number], send))
      else if (kind === "button") at.addEventListener("click", () => send(0))
      else at.addEventListener(kind === "slider" ? "input" : "change", () => send((read[kind] ?? ((a) => a.value))(at)))
      shown.push([number, (state) => {
        label.hidden = state.hidden
        if (state.hidden) label.style.display = "none"
        else label.style.display = width.endsWith("%") ? "flex" : "inline-flex"
        if (kind === "lines") at.rows = state.rows
        if (kind === "field" && state.options?.length) suggest(at, label, state.options)
        if (at === document.activeElement && kind === "slider") return  // the user is dragging it
        ;(show[kind] ?? ((a, {value}) => { a.value = value }))(at, state)
      }])
      return label
    }
    const suggest = (at, label, options) => {
      const list = label.querySelector("datalist") ?? element("datalist", {id: `pathways-${Math.random().toString(36).slice(2)}`})
      list.replaceChildren(...options.map((value) => element("option", {value})))
      label.append(list)
      at.setAttribute("list", list.id)
    }
    const update = () => {
      states = JSON.parse(model.get("_states"))
      for (const [number, draw] of shown) draw(states[number])
    }
    el.append(...JSON.parse(model.get("_tree")).map(make))
    el.style.font = "13px/1.5 sans-serif"
    update()
    model.on("change:_states", update)
    return () => { model.off("change:_states", update); for (const end of ends) end() }
  },
}
