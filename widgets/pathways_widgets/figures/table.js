// The table behind a figure: what the tooltips of its boxes say, made when it is opened.

const MOST_ROWS = 500

const tables = (doc, Bokeh) => {
  const details = document.createElement("details"), word = document.createElement("summary"), place = document.createElement("div")
  word.textContent = "as a table"
  word.style.cursor = "pointer"
  place.style.cssText = "max-height: 24em; overflow: auto"
  place.tabIndex = 0
  place.setAttribute("role", "group")
  place.setAttribute("aria-label", "The figure as a table")
  details.className = "pathways-table"
  details.append(word, place)
  details.addEventListener("toggle", () => {
    const found = details.open ? figuresOf(doc).flatMap((figure) => tablesOf(figure, Bokeh)) : []
    details.parentElement.style.flexBasis = details.open ? "100%" : "16em"  // all of the page for its columns
    place.replaceChildren(...(found.length ? found : ["No boxes are drawn."]))
  })
  return details
}

// A table for each kind of box of a figure, first of what has most to say.
const tablesOf = (figure, Bokeh) => {
  const boxes = boxesOf(figure), tools = [...new Set(boxes.map(({tool}) => tool))].sort((a, b) => b.tooltips.length - a.tooltips.length)
  return tools.map((one, i) => tableOf(i ? `${nameOf(figure)}: ${one.tooltips[0][0]}` : nameOf(figure), boxes.filter(({tool}) => tool === one), Bokeh))
}

const tableOf = (name, boxes, Bokeh) => {
  const table = document.createElement("table")
  const rows = boxes.slice(0, MOST_ROWS).map((box) => new Map(tooltipOf(Bokeh, box))), labels = [...new Set(rows.flatMap((row) => [...row.keys()]))]
  const cells = (tag, texts) => {
    const row = document.createElement("tr")
    row.append(...texts.map((text) => {
      const cell = document.createElement(tag)
      cell.textContent = text
      cell.style.cssText = "text-align: left; vertical-align: top; padding: 1px 10px 1px 0"
      if (tag === "th") cell.scope = "col"
      return cell
    }))
    return row
  }
  const more = boxes.length > MOST_ROWS ? ` (the first ${MOST_ROWS} of ${boxes.length})` : ""
  table.style.cssText = "border-collapse: collapse; font: inherit; overflow-wrap: normal"  // it has a scroll bar
  table.createCaption().textContent = name + more
  table.caption.style.cssText = "text-align: left; font-weight: bold; padding: 4px 0"
  table.append(cells("th", labels.map((label) => label || "what")), ...rows.map((row) => cells("td", labels.map((label) => row.get(label) ?? ""))))
  return table
}
